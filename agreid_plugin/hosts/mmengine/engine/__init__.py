"""Training and evaluation with mmengine's own trainer."""
