"""One file per question: a pure function from records to a finding."""
