"""Prediction without running: hardware from a catalogue, communication models, data-parallel step time."""
