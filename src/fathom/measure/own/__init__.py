"""A user's own model or step, profiled as the eight are: its batch, its training, and its faults in one line."""
