"""One file for each workload that learns in a way of its own; the others learn as trainer.py does."""
