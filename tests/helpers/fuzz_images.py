"""Images, damaged, in every format that people keep them in, and of every mode."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from fuzz_cases import damaged
from fuzz_targets import Target
from hypothesis import strategies as st
from PIL import Image

from agreid_plugin.data.images import find_broken_images, read_image

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 16, 3), dtype=np.uint8)
MODES = {
    "JPEG": ("RGB", "L", "CMYK"),
    "PNG": ("RGB", "1", "L", "LA", "P", "RGBA", "I;16"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("P", "L"),
    "TIFF": ("RGB", "1", "CMYK", "F", "I;16", "LAB"),
    "BMP": ("RGB", "1", "P"),
}
"""Format -> modes that it keeps."""


def image_bytes(kind: str, mode: str) -> bytes:
    """Return an image as a file has it."""
    buffer = io.BytesIO()
    image = Image.fromarray(PIXELS)
    if mode == "I;16":
        image = Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257)
    elif mode == "LAB":
        image = Image.frombytes("LAB", (16, 24), PIXELS.tobytes())
    else:
        image = image.convert("L").convert(mode) if mode == "LA" else image.convert(mode)
    image.save(buffer, kind, **({"exif": Image.Exif()} if kind == "JPEG" else {}))
    return buffer.getvalue()


def _file(kind: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "person.jpg").write_bytes(image_bytes(kind, MODES[kind][0]))
        return folder / "person.jpg"

    return make


def _read(file: Path) -> None:
    """Read an image as training and `fastreid data check` do."""
    find_broken_images([str(file)], progress=False)
    found = read_image(file)
    assert found.mode == "RGB"
    assert np.asarray(found).shape == (found.height, found.width, 3)


def _damage(kind: str) -> Callable[[bytes], st.SearchStrategy[bytes]]:
    everyone = [image_bytes(kind, mode) for mode in MODES[kind]]
    return lambda original: damaged(original) | st.sampled_from(everyone).flatmap(damaged) | st.sampled_from(everyone)


IMAGE_TARGETS = [Target(f"{kind} image", _file(kind), _read, _damage(kind)) for kind in MODES]
