"""Visualization: figures of models and runs as PIL images, and an HTML page about a run."""
