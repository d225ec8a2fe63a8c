"""Fixes of mmengine and mmpretrain for today's Python and torch."""
