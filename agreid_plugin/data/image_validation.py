"""Which images cannot be decoded, and why: every one is, by all cores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from PIL import Image, ImageFile
from tqdm import tqdm


def broken_images(paths: Iterable[str], progress: bool = True) -> dict[str, str]:
    """Decode every image and return path -> what is wrong with it, for those that cannot be."""
    paths = sorted(set(paths))
    # Pillow decodes outside the interpreter's lock, so threads use all cores.
    with _strict_decoding(), ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = tqdm(pool.map(_fault, paths), total=len(paths), desc="decoding", unit="img", disable=not progress)
        return {path: fault for path, fault in zip(paths, faults, strict=True) if fault}


@contextmanager
def _strict_decoding() -> Iterator[None]:
    before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def _fault(path: str) -> str:
    if not os.path.isfile(path):  # a pipe would never end, a link may lead nowhere
        return "no file"
    try:
        if os.path.getsize(path) == 0:
            return "empty file, 0 bytes"
        with Image.open(path) as image:
            image.load()
    except Exception as error:  # Pillow's decoders raise whatever their format makes them
        return f"unreadable image ({' '.join(str(error).split())})"
    return ""
