"""Records -> findings: selection of runs, statistics, comparison, and one file per question. No torch."""
