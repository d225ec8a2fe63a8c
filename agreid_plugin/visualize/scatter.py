"""t-SNE of test images: a plane on which images with near features are near.

Shapes: N images, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.features import FeatureSet
from agreid_plugin.types import Record, View, view_word
from agreid_plugin.visualize.style import INK, MARKERS, PALETTE, REST, add_title, apply_style, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_COLORS = len(PALETTE)  # identities with a color
MIN_IMAGES = 5


@dataclass(frozen=True)
class Plane:
    """Where images are: (N, 2); and how many of 100 have an image of the same person nearest, among all features."""

    points: np.ndarray
    nearest: float


def choose_images(records: Sequence[Record], identities: int, most: int, seed: int = 0) -> tuple[list[int], list[int]]:
    """Choose what to show: the places of images, and identities to color, from both views where there are such.

    Args:
        records: all images.
        identities: how many to color.
        most: images at most; those of the colored identities are all among them.
        seed: of the choice.
    """
    if not 1 <= identities <= MAX_COLORS:
        raise InputError(f"identities={identities} should be 1 to {MAX_COLORS}: there are no more distinct colors")
    random = np.random.default_rng(seed)
    views: dict[int, set[View | None]] = {}
    for record in records:
        views.setdefault(record.pid, set()).add(record.view)
    drawn = random.permutation(sorted(views)).tolist()
    colored = sorted(sorted(drawn, key=lambda pid: -len(views[pid]))[:identities])
    chosen = [place for place, record in enumerate(records) if record.pid in colored]
    others = [place for place, record in enumerate(records) if record.pid not in colored]
    kept = random.permutation(others)[: max(0, most - len(chosen))].tolist()
    return sorted([*chosen, *kept]), colored


def embed(features: FeatureSet, places: Sequence[int], seed: int = 0) -> Plane:
    """Lay some images of a feature set on a plane by the cosines of their features."""
    from sklearn.manifold import TSNE

    if len(places) < MIN_IMAGES:
        raise InputError(f"{len(places)} images are too few for t-SNE: give {MIN_IMAGES} or more")
    vectors = features.images[0][list(places)].astype(np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    pids = np.array([features.records[place].pid for place in places])
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = 100 * float(np.mean(pids[cosines.argmax(axis=1)] == pids))
    perplexity = min(30.0, (len(places) - 1) / 3)
    points = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(vectors.astype(np.float32))
    return Plane(points, nearest)


@apply_style
def draw_planes(planes: Mapping[str, Plane], records: Sequence[Record], colored: Sequence[int], title: str) -> Figure:
    """Draw planes of the same images side by side: identities by color, views by shape, everybody else gray.

    Args:
        planes: what is written above a plane -> the plane.
        records: its images.
        colored: identities that have a color.
        title: stands above all.
    """
    from matplotlib.lines import Line2D

    drawing = figure(3.4 * len(planes) + 1.2, 3.9)
    panels = drawing.subplots(1, len(planes), squeeze=False)[0]
    for axes, (name, plane) in zip(panels, planes.items(), strict=True):
        _draw_plane(axes, plane, records, colored)
        axes.set_title(name)
        axes.set_xlabel(f"nearest image shows the same person: {plane.nearest:.0f} %", fontsize=7.5)
    views = [view for view in MARKERS if any(record.view == view for record in records)]
    marks = [Line2D([], [], ls="", marker="s", ms=5, color=PALETTE[n], label=str(p)) for n, p in enumerate(colored)]
    if any(record.pid not in colored for record in records):
        marks.append(Line2D([], [], ls="", marker="s", ms=5, color=REST, label="others"))
    ids = drawing.legend(handles=marks, title="identity", loc="outside right upper", title_fontsize=8)
    ids.get_frame().set_alpha(0)
    shapes = [
        Line2D([], [], ls="", marker=MARKERS[view], ms=5, mfc="white", mec=INK, label=view_word(view) or "unknown")
        for view in views
    ]
    drawing.legend(handles=shapes, title="view", loc="outside right lower", title_fontsize=8)
    add_title(drawing, title)
    return drawing


def _draw_plane(axes: Axes, plane: Plane, records: Sequence[Record], colored: Sequence[int]) -> None:
    for front in (False, True):
        for view, marker in MARKERS.items():
            rows = [n for n, r in enumerate(records) if r.view == view and (r.pid in colored) == front]
            if not rows:
                continue
            points = plane.points[rows]
            colors = [PALETTE[list(colored).index(records[row].pid)] for row in rows] if front else REST
            look = {"s": 26, "edgecolors": "white", "linewidths": 0.5} if front else {"s": 7, "linewidths": 0}
            axes.scatter(points[:, 0], points[:, 1], c=colors, marker=marker, zorder=2 + front, **look)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(True)
    axes.set_box_aspect(1)
