"""Images in files, read the same way by every host."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from agreid_plugin.errors import InputError, printable


class ImageInputError(InputError):
    """An image that does not exist or cannot be read."""


def read_image(path: str | Path) -> Image.Image:
    """Read an image as RGB, whatever its own mode, upright.

    Raises:
        ImageInputError: it does not exist or cannot be read.
    """
    try:
        with Image.open(path) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except FileNotFoundError:
        raise ImageInputError(f"image {printable(str(path))} does not exist") from None
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        why = f"cannot be read ({error}): replace or remove it"
        raise ImageInputError(f"image {printable(str(path))} {why}") from None
