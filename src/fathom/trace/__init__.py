"""Profiler traces, Fathom's or any other: reader, walk, op rows, GPU time, op types, FLOP and bytes. No torch."""
