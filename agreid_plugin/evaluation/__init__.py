"""Ranking metrics on features and distances."""
