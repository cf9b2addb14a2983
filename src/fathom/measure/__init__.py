"""Measuring: the timed pass, its stopping rule, the profiled pass, and a user's own model."""
