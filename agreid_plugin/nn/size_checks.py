"""What image transformers ask of their sizes."""

from __future__ import annotations

from collections.abc import Sequence

from agreid_plugin.errors import InputError


def whole(name: str, value: int, least: int = 1) -> int:
    """Return a whole number, or refuse what is none or too small."""
    if not isinstance(value, int) or value < least:
        raise InputError(f"{name}={value!r} should be a whole number, {least} or more")
    return value


def pair(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    """Return (rows, columns) of one number for both or of two."""
    both = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(both) != 2 or not all(isinstance(number, int) and number > 0 for number in both):
        raise InputError(f"{name}={value!r} should be two whole numbers above 0, rows and columns")
    return both


def patch_grid(image_size: tuple[int, int], patch_size: int, stride: tuple[int, int]) -> tuple[int, int]:
    """Count the rows and columns of patches that lie within the image."""
    if patch_size > min(image_size):
        raise InputError(f"patch_size={patch_size} should be at most the shorter side of image_size={image_size}")
    rows, cols = ((side - patch_size) // step + 1 for side, step in zip(image_size, stride, strict=True))
    return rows, cols
