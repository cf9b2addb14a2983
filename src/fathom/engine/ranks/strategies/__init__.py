"""One file per strategy: a way to divide training among ranks."""
