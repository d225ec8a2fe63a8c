"""Datasets, protocols, samplers, augmentations and AG-Synth."""
