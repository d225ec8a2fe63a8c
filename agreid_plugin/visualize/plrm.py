"""What PLRM does to images: each beside several draws, and how likely each patch is selected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from agreid_plugin.data.transforms import PLRM
from agreid_plugin.errors import InputError
from agreid_plugin.visualize.patches import WIDTH, enlarged
from agreid_plugin.visualize.style import MAP, bare, figure, head, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAP_WIDTH = 1.9  # inches of the probabilities
LARGEST = 2048  # rows or columns of an image, of which several are held at once
MOST_NUMBERS = 200  # patches whose probabilities are written out


def sized(plrm: PLRM, pictures: Iterable[Image.Image], size: tuple[int, int]) -> np.ndarray:
    """Bring pictures to a size, rows and columns, that has patches in it: (B, H, W, 3) of uint8."""
    if not plrm.n <= min(size) <= max(size) <= LARGEST:
        raise InputError(f"images of {size[0]}x{size[1]} should have {plrm.n} (a patch) to {LARGEST} rows and columns")
    return np.stack([np.asarray(each.resize(size[::-1], Image.Resampling.BICUBIC)) for each in pictures])


def drawn(plrm: PLRM, images: np.ndarray, draws: int, seed: int = 0) -> np.ndarray:
    """Return what PLRM makes of images: (B, H, W, 3) of uint8 -> (draws, B, H, W, 3)."""
    if draws < 1:
        raise InputError(f"draws={draws} should be 1 or more")
    generator = torch.Generator().manual_seed(seed)
    batch = torch.from_numpy(images).movedim(-1, 1).contiguous()
    return np.stack([plrm.train()(batch, generator).movedim(1, -1).numpy() for _ in range(draws)])


@styled
def draw_plrm(plrm: PLRM, images: np.ndarray, made: np.ndarray, title: str) -> Figure:
    """Draw a row for each image: itself and the draws; to the right how likely each patch is selected.

    Args:
        plrm: the augmentation.
        images: (B, H, W, 3).
        made: (draws, B, H, W, 3).
        title: stands above all.
    """
    count, rows, cols = images.shape[:3]
    wide = (1 + len(made)) * (WIDTH + 0.06)
    drawing = figure(wide + MAP_WIDTH, 0.75 + count * (WIDTH * rows / cols + 0.06))
    left, right = drawing.subfigures(1, 2, squeeze=False, width_ratios=(wide, MAP_WIDTH))[0]
    panels = left.subplots(count, 1 + len(made), squeeze=False)
    for number, row in enumerate(panels):
        for axes, pixels in zip(row, [images[number], *made[:, number]], strict=True):
            axes.imshow(enlarged(pixels))
            axes.set_axis_off()
    for axes, name in zip(panels[0], ["image", *(f"draw {n + 1}" for n in range(len(made)))], strict=True):
        bare(axes, name)
    _probabilities(right, plrm, (rows, cols))
    changed = f"of all images {100 * plrm.p_img:g} % are changed; shown are those that are"
    told = f"patches of {plrm.n} pixels, turned up to {plrm.theta_max:g}° and mixed with alpha = {plrm.alpha:g}"
    head(drawing, title, f"{told}; {changed}")
    return drawing


def _probabilities(drawing: Figure, plrm: PLRM, size: Sequence[int]) -> None:
    chances = plrm.probabilities(size[0] // plrm.n, size[1] // plrm.n).numpy()
    axes = drawing.subplots()
    image = axes.imshow(chances, cmap=MAP, vmin=0, vmax=1)
    if chances.size <= MOST_NUMBERS:
        for (row, column), chance in np.ndenumerate(chances):
            color = "white" if chance > 0.6 else "black"
            axes.text(column, row, f"{chance:.2f}".lstrip("0"), ha="center", va="center", fontsize=5.5, color=color)
    else:
        drawing.colorbar(image, ax=axes, shrink=0.7, pad=0.03, aspect=25).outline.set_visible(False)
    bare(axes, "how likely a patch\nis selected")
