"""What was recorded, read from this folder and compared with what was found; see README.md."""

import json
from pathlib import Path

import numpy as np
from torch import Tensor

FOLDER = Path(__file__).parent


def arrays_of(name: str) -> dict[str, np.ndarray]:
    """Return the recorded numbers of a released model by their names."""
    with np.load(FOLDER / f"{name}.npz") as archive:
        return dict(archive)


def shapes_of(name: str) -> dict[str, list[int]]:
    """Return the keys of a released checkpoint and the shapes behind them."""
    return json.loads((FOLDER / f"{name}.keys.json").read_text())


def assert_near(found: Tensor, expected: np.ndarray, tolerance: float) -> None:
    """No number may differ by the tolerance or more."""
    assert found.shape == expected.shape
    difference = np.abs(found.detach().numpy() - expected).max()
    assert difference < tolerance, difference
