"""Pictures of what a model does: figures as PIL images, from plain arrays."""
