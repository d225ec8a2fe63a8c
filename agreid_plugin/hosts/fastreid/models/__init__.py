"""Models, heads and losses in fast-reid's registries."""
