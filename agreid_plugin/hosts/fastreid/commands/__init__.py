"""Commands besides training for fast-reid: catalog, checks, explanation, conversion."""
