"""Configuration of mmengine: loading, defaults and checks."""
