"""Profiler traces, ours or anybody's: reading, walking, op rows, GPU time, op types, FLOP and bytes. No torch."""
