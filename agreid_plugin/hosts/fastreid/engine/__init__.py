"""Training and evaluation with fast-reid's own trainer."""
