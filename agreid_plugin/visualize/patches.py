"""Pictures of patches: those that a model chooses or attends to, and those that PLRM changes.

Shapes: H x W pixels, R x K the grid of N patches, M queries, k patches that each chooses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from agreid_plugin.data.transforms import PLRM
from agreid_plugin.errors import InputError
from agreid_plugin.types import Record
from agreid_plugin.visualize.style import HEAT, MAP, PALETTE, add_title, apply_style, describe_view, figure, hide_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

MIN_ROWS = 256  # rows that an image has at least when something is drawn over it
WIDTH = 0.78  # inches of an image
ACROSS = 8  # images in a row
BAR = 0.12  # inches of the scale beside them
MIN_WIDTH = 2.6  # inches of a picture, for its title
FADING = 0.78  # how far what was not chosen fades
MAP_WIDTH = 1.9  # inches of the probabilities
MAX_SIZE = 2048  # rows or columns of an image, of which several are held at once
MAX_NUMBERS = 200  # patches whose probabilities are written out


@dataclass(frozen=True)
class Choice:
    """What one branch chooses of an image: (M, k) patches, counted row by row."""

    name: str
    places: np.ndarray


@dataclass(frozen=True)
class PatchView:
    """An image as the model had it, (H, W, 3), and what the model did with its patches."""

    record: Record
    pixels: np.ndarray
    grid: tuple[int, int]
    choices: tuple[Choice, ...] = ()
    attention: np.ndarray | None = None  # (N,) adding up to 1, or less where other tokens have some of it


def build_mask(view: PatchView, places: np.ndarray) -> np.ndarray:
    """Return which patches are among some places: (R, K) of True and False."""
    mask = np.zeros(view.grid[0] * view.grid[1], dtype=bool)
    mask[places] = True
    return mask.reshape(view.grid)


def count_shares(view: PatchView, choice: Choice) -> np.ndarray:
    """Return what share of the queries chooses each patch: (R, K)."""
    return np.mean([build_mask(view, places) for places in choice.places], axis=0)


@apply_style
def draw_choices(views: Sequence[PatchView], title: str, queries: int = 3, about: str = "") -> Figure:
    """Draw a row for each image: itself and, for each branch, how many queries choose a patch, then single queries.

    Args:
        views: the images.
        title: stands above all.
        queries: of each branch, drawn one by one.
        about: a line below.
    """
    columns = _columns(views[0], queries)
    rows, cols = views[0].pixels.shape[:2]
    width = 0.5 + (1 + len(columns)) * (WIDTH + 0.06)
    drawing = figure(width, 0.85 + len(views) * (WIDTH * rows / cols + 0.06))
    panels = drawing.subplots(len(views), 1 + len(columns), squeeze=False)
    for row, each in zip(panels, views, strict=True):
        row[0].imshow(enlarge(each.pixels))
        about_it = describe_view(each.record).replace(", ", "\n")
        row[0].text(-0.06, 0.5, about_it, transform=row[0].transAxes, ha="right", va="center", fontsize=7)
        for axes, (branch, query) in zip(row[1:], columns, strict=True):
            _draw_choice(axes, each, branch, query)
    for axes in panels.flat:
        hide_axes(axes)
    for axes, words in zip(
        panels[0], ["image", *(_format_choice(views[0], *column) for column in columns)], strict=True
    ):
        hide_axes(axes, words)
    add_title(drawing, title, about)
    return drawing


def _draw_choice(axes: Axes, view: PatchView, branch: int, query: int | None) -> None:
    choice = view.choices[branch]
    if query is None:
        axes.imshow(fade(view.pixels, count_shares(view, choice)))
    else:
        mask = build_mask(view, choice.places[query])
        axes.imshow(fade(view.pixels, mask))
        _outline(axes, mask, PALETTE[5] if branch % 2 and len(choice.places) > 1 else PALETTE[0])


@apply_style
def draw_attention(views: Sequence[PatchView], title: str) -> Figure:
    """Draw images with what CLS attends to below each, on one scale: 1 is as much as the mean patch has."""
    across = min(ACROSS, len(views))
    bands = -(-len(views) // across)
    rows, cols = views[0].pixels.shape[:2]
    drawing = figure(max(0.65 + across * (WIDTH + 0.06), MIN_WIDTH), 0.45 + bands * (2 * WIDTH * rows / cols + 0.24))
    panels = drawing.subplots(2 * bands, across, squeeze=False)
    maps = [relative_attention(each) for each in views]
    most = max(float(np.quantile(np.stack(maps), 0.995)), 1.0)
    for axes in panels.flat:
        hide_axes(axes)
    for place, (each, heat) in enumerate(zip(views, maps, strict=True)):
        band, column = divmod(place, across)
        above, below = panels[2 * band][column], panels[2 * band + 1][column]
        above.imshow(enlarge(each.pixels))
        above.set_title(describe_view(each.record), fontsize=7)
        mapped = _draw_heat(below, each.pixels, heat, most)
    add_title(drawing, title)
    wide, high = drawing.get_size_inches()
    # As high as the images, however few they are, which stay where they are.
    bar = {"fraction": BAR / wide, "aspect": high / BAR, "pad": 0.01, "panchor": False}
    drawing.colorbar(mapped, ax=panels, label="attention, mean patch = 1", **bar).outline.set_visible(False)
    return drawing


def _draw_heat(axes: Axes, pixels: np.ndarray, heat: np.ndarray, most: float) -> ScalarMappable:
    """Draw a heat map over an image, clear where there is little of it; return what its colors mean."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    below = enlarge(pixels).convert("L").convert("RGB")
    smooth = np.asarray(Image.fromarray(heat.astype(np.float32)).resize(below.size, Image.Resampling.BICUBIC))
    axes.imshow(below)
    axes.imshow(
        smooth, cmap=HEAT, vmin=0, vmax=most, alpha=np.clip(0.1 + 0.9 * np.sqrt(np.clip(smooth / most, 0, 1)), 0, 0.85)
    )
    return ScalarMappable(Normalize(0, most), HEAT)


def relative_attention(view: PatchView) -> np.ndarray:
    """Return the attention of each patch over that of the mean one: (R, K)."""
    if view.attention is None:
        raise ValueError(f"{view.record.path}: there is no attention to its patches")
    return (view.attention / view.attention.mean()).reshape(view.grid)


def _columns(view: PatchView, queries: int) -> list[tuple[int, int | None]]:
    """Return the panels behind the image: branch, and query or None for all of them."""
    columns: list[tuple[int, int | None]] = []
    for branch, choice in enumerate(view.choices):
        if len(choice.places) > 1:
            columns.append((branch, None))
        columns += [(branch, query) for query in range(min(queries, len(choice.places)))]
    return columns


def _format_choice(view: PatchView, branch: int, query: int | None) -> str:
    choice = view.choices[branch]
    if query is None:
        return f"{choice.name}\nall queries"
    return f"{choice.name}\nquery {query + 1}" if len(choice.places) > 1 else choice.name


def fade(pixels: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return an image, enlarged, whose patches are the paler the less of them is kept: (R, K) from 0 to 1."""
    image = np.asarray(enlarge(pixels)).astype(float)
    large = Image.fromarray(kept.astype(np.float32)).resize(image.shape[1::-1], Image.Resampling.NEAREST)
    pale = FADING * (1 - np.asarray(large))[..., None]
    return (image + pale * (255 - image)).round().astype(np.uint8)


def _outline(axes: Axes, mask: np.ndarray, color: str) -> None:
    """Draw a line around the patches of a mask over an image."""
    cols, rows = (int(max(limits)) + 1 for limits in (axes.get_xlim(), axes.get_ylim()))
    high, wide = rows / mask.shape[0], cols / mask.shape[1]
    padded = np.pad(mask, 1)
    for row, column in zip(*np.nonzero(mask), strict=True):
        top, left, bottom, right = row * high, column * wide, (row + 1) * high, (column + 1) * wide
        sides = {
            (-1, 0): ((left, right), (top, top)),
            (1, 0): ((left, right), (bottom, bottom)),
            (0, -1): ((left, left), (top, bottom)),
            (0, 1): ((right, right), (top, bottom)),
        }
        for (down, across), (xs, ys) in sides.items():
            if not padded[1 + row + down, 1 + column + across]:
                axes.plot(np.array(xs) - 0.5, np.array(ys) - 0.5, color=color, lw=1.1, solid_capstyle="projecting")
    axes.set(xlim=(-1.5, cols + 0.5), ylim=(rows + 0.5, -1.5))


def enlarge(pixels: np.ndarray) -> Image.Image:
    """Return an image of `ENLARGED` rows or more."""
    image = Image.fromarray(pixels)
    factor = max(1, -(-MIN_ROWS // image.height))
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.BICUBIC)


def resize_images(plrm: PLRM, pictures: Iterable[Image.Image], size: tuple[int, int]) -> np.ndarray:
    """Bring pictures to a size, rows and columns, that has patches in it: (B, H, W, 3) of uint8."""
    if not plrm.n <= min(size) <= max(size) <= MAX_SIZE:
        raise InputError(f"images of {size[0]}x{size[1]} should have {plrm.n} (a patch) to {MAX_SIZE} rows and columns")
    return np.stack([np.asarray(each.resize(size[::-1], Image.Resampling.BICUBIC)) for each in pictures])


def draw_samples(plrm: PLRM, images: np.ndarray, draws: int, seed: int = 0) -> np.ndarray:
    """Return several draws of PLRM for images: (B, H, W, 3) of uint8 -> (draws, B, H, W, 3)."""
    if draws < 1:
        raise InputError(f"draws={draws} should be 1 or more")
    generator = torch.Generator().manual_seed(seed)
    batch = torch.from_numpy(images).movedim(-1, 1).contiguous()
    return np.stack([plrm.train()(batch, generator).movedim(1, -1).numpy() for _ in range(draws)])


@apply_style
def draw_plrm(plrm: PLRM, images: np.ndarray, samples: np.ndarray, title: str) -> Figure:
    """Draw a row for each image: itself and the draws; to the right how likely each patch is selected.

    Args:
        plrm: the augmentation.
        images: (B, H, W, 3).
        samples: (draws, B, H, W, 3).
        title: stands above all.
    """
    count, rows, cols = images.shape[:3]
    wide = (1 + len(samples)) * (WIDTH + 0.06)
    drawing = figure(wide + MAP_WIDTH, 0.75 + count * (WIDTH * rows / cols + 0.06))
    left, right = drawing.subfigures(1, 2, squeeze=False, width_ratios=(wide, MAP_WIDTH))[0]
    panels = left.subplots(count, 1 + len(samples), squeeze=False)
    for number, row in enumerate(panels):
        for axes, pixels in zip(row, [images[number], *samples[:, number]], strict=True):
            axes.imshow(enlarge(pixels))
            axes.set_axis_off()
    for axes, name in zip(panels[0], ["image", *(f"draw {n + 1}" for n in range(len(samples)))], strict=True):
        hide_axes(axes, name)
    _probabilities(right, plrm, (rows, cols))
    changed = f"of all images {100 * plrm.p_img:g} % are changed; shown are those that are"
    settings = f"patches of {plrm.n} pixels, turned up to {plrm.theta_max:g}° and mixed with alpha = {plrm.alpha:g}"
    add_title(drawing, title, f"{settings}; {changed}")
    return drawing


def _probabilities(drawing: Figure, plrm: PLRM, size: Sequence[int]) -> None:
    chances = plrm.probabilities(size[0] // plrm.n, size[1] // plrm.n).numpy()
    axes = drawing.subplots()
    image = axes.imshow(chances, cmap=MAP, vmin=0, vmax=1)
    if chances.size <= MAX_NUMBERS:
        for (row, column), chance in np.ndenumerate(chances):
            color = "white" if chance > 0.6 else "black"
            axes.text(column, row, f"{chance:.2f}".lstrip("0"), ha="center", va="center", fontsize=5.5, color=color)
    else:
        drawing.colorbar(image, ax=axes, shrink=0.7, pad=0.03, aspect=25).outline.set_visible(False)
    hide_axes(axes, "how likely a patch\nis selected")
