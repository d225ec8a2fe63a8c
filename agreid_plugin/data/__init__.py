"""Datasets, protocols, samplers, augmentations, attributes and captions."""
