"""Predictors of the time of single op calls, one file each."""
