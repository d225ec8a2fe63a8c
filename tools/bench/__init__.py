"""Benchmarks: ours beside what it is compared with, on this machine."""
