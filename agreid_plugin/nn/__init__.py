"""Building blocks that no paper owns: transformers and CLIP, their weights, experts, graphs, token selection."""
