"""Commands besides training for mmengine: catalog, checks, explanation."""
