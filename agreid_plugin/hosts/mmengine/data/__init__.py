"""Datasets, loaders and transforms in mmengine's terms."""
