"""Kinds of values that several commands take."""

from __future__ import annotations

import argparse


def size(text: str) -> tuple[int, int]:
    """Read HEIGHTxWIDTH."""
    height, _, width = text.lower().partition("x")
    if not (height.isdigit() and width.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not HEIGHTxWIDTH, for example 256x128")
    return int(height), int(width)
