"""One file per framework: how it takes a number of threads, and how it runs a step of a network."""
