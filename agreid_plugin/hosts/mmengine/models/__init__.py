"""Models, heads and losses in mmengine's registries."""
