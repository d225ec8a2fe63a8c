"""Datasets, loaders and transforms in fast-reid's terms."""
