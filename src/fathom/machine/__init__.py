"""This machine: host, devices, clock, measured peaks and energy meters."""
