"""Mixes of parts of ours, of the hosts and of other libraries, trained for a few steps and evaluated."""
