"""A tiny dataset in Market-1501's layout: every identity is a color, so that a network can learn it in seconds."""

from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (16, 32)  # width, height


def make_market(root: Path, ids: int = 8, cameras: int = 2, images: int = 3) -> Path:
    """Write train (`ids`), query and gallery (`ids` more) under `root`; returns the folder of the dataset."""
    rng = np.random.default_rng(0)
    folder = root / "Market-1501-v15.09.15"
    colors = rng.integers(0, 256, (2 * ids, 3))
    for pid in range(2 * ids):
        for camera in range(1, cameras + 1):
            for number in range(images):
                part = "bounding_box_train" if pid < ids else "query" if number == 0 else "bounding_box_test"
                _write(folder / part / f"{pid + 1:04d}_c{camera}s1_{number:06d}_00.jpg", colors[pid], rng)
    return folder


def _write(path: Path, color: np.ndarray, rng: np.random.Generator) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = color + rng.normal(0, 30, (SIZE[1], SIZE[0], 3))
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path)
