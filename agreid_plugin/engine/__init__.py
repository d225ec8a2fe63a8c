"""A run's parts for either host: checks, checkpoints, signals, run card, report. Imports no host."""
