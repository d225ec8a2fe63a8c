"""Pixel statistics of pictures of people: brightness, contrast and color, beside those of real photographs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from PIL import Image
from tqdm import tqdm

from agreid_plugin.data.images import read_image

SIZE = (128, 64)
BORDER = 8  # pixels
_TORSO = slice(26, 64), slice(20, 44)
_GRAY = (0.299, 0.587, 0.114)
DARK = 0.25


@dataclass(frozen=True)
class PixelStatistics:
    """Means over pictures of 128x64.

    Attributes:
        luminance: of a picture, 0..1.
        contrast: standard deviation of the luminance in a picture.
        saturation: (largest - least) / largest of red, green and blue.
        torso_saturation: the same where the torso is.
        dark_torsos: share of the pictures whose torso has a luminance below 0.25.
        border_contrast: `contrast` of the eight pixels along the edges.
        border_saturation: `saturation` of them.
    """

    luminance: float
    contrast: float
    saturation: float
    torso_saturation: float
    dark_torsos: float
    border_contrast: float
    border_saturation: float

    @classmethod
    def average(cls, rows: Sequence[PixelStatistics]) -> PixelStatistics:
        """Return the mean of several."""
        return cls(*np.mean([astuple(row) for row in rows], axis=0).tolist())


PHOTOGRAPHS = PixelStatistics.average(
    [
        PixelStatistics(0.40, 0.189, 0.15, 0.21, 0.21, 0.170, 0.12),  # streets, six cameras
        PixelStatistics(0.39, 0.218, 0.09, 0.12, 0.64, 0.200, 0.06),  # a campus
        PixelStatistics(0.36, 0.219, 0.11, 0.15, 0.57, 0.211, 0.09),  # another campus
    ]
)
"""The mean of three public sets of photographs, each of one view from the ground."""


def measure_picture(image: Image.Image) -> PixelStatistics:
    """Return the statistics of one picture."""
    rgb = np.asarray(image.resize(SIZE[::-1], Image.Resampling.BILINEAR), dtype=np.float32) / 255
    luminance, most = rgb @ np.array(_GRAY, dtype=np.float32), rgb.max(axis=2)
    saturation = (most - rgb.min(axis=2)) / np.maximum(most, 1e-6)
    border = np.ones(SIZE, dtype=bool)
    border[BORDER:-BORDER, BORDER:-BORDER] = False
    return PixelStatistics(
        float(luminance.mean()),
        float(luminance.std()),
        float(saturation.mean()),
        float(saturation[_TORSO].mean()),
        float(luminance[_TORSO].mean() < DARK),
        float(luminance[border].std()),
        float(saturation[border].mean()),
    )


def measure_pixels(paths: Sequence[str], progress: bool = True) -> PixelStatistics:
    """Return the mean statistics of image files."""
    rows = tqdm(paths, desc="pixels", unit="img", disable=not progress)
    return PixelStatistics.average([measure_picture(read_image(path)) for path in rows])
