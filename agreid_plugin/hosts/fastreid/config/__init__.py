"""Configuration of fast-reid: loading, defaults and checks."""
