"""Calibration of a device: single op calls timed over types, shapes and precisions, and a few whole steps."""

TIMING = ".timing"  # added to a campaign's name: the call that is being timed, left by a process that ended in it
