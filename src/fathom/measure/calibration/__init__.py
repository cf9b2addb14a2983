"""Calibration of a device: single op calls timed over types, shapes and precisions, and a few whole steps."""
