"""One file per reference workload: dropping a file in is the whole registration."""
