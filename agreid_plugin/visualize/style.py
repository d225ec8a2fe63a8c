"""Style of all figures: colors that the color-blind can distinguish, fonts, and sizes."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from PIL import Image

from agreid_plugin.errors import InputError, first_line
from agreid_plugin.types import UNKNOWN, Record, View, view_word

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#C9B800")
"""Okabe and Ito's colors, the yellow a little darker than theirs: it is drawn on white."""
DASHES = ("-", "--", ":", "-.")
"""Line styles for more curves than there are colors."""
RIGHT, WRONG = (0, 158, 115), (213, 94, 0)
INK, FAINT, REST = "#28282c", "#6a6a70", "#d4d4d8"
MARKERS = {View.AERIAL: "^", View.GROUND: "o", None: "s"}
VIEW_MARKERS = {View.AERIAL: "#56B4E9", View.GROUND: "#E69F00", None: "#999999"}
MAP = "Blues"  # of numbers from none to all
HEAT = "magma"  # over images
DPI = 200
TITLE, ABOUT = 11, 7  # points
_RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same everywhere
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "image.interpolation": "nearest",
}


def apply_style(draw: Callable[P, Figure]) -> Callable[P, Image.Image]:
    """Make a function that returns a figure return its picture, in this style."""

    @wraps(draw)
    def picture(*args: P.args, **kwargs: P.kwargs) -> Image.Image:
        with _matplotlib().rc_context(_RC):
            return _render(draw(*args, **kwargs))

    return picture


def figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, whose parts keep clear of each other."""
    _matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0.01, hspace=0.01)
    return Figure(figsize=(width, height), dpi=DPI, layout=layout, facecolor="white")


def describe_view(record: Record) -> str:
    """Return an image's view and camera in words."""
    view = view_word(record.view) or "view unknown"
    return view if record.camera == UNKNOWN else f"{view}, cam {record.camera}"


def hide_axes(axes: Axes, title: str = "") -> None:
    """Leave an axes nothing but its content and a title."""
    axes.set_axis_off()
    if title:
        axes.set_title(title, fontsize=8)


def add_title(drawing: Figure, title: str, about: str = "") -> None:
    """Write a title over a figure and a fainter line below it, both broken, and the figure higher, if it is narrow."""
    wide = drawing.get_figwidth()
    title, about = break_lines(title, wide, TITLE, "bold"), break_lines(about, wide, ABOUT)
    drawing.suptitle(title, fontsize=TITLE, x=0.01, ha="left", weight="bold")
    if about:
        drawing.supxlabel(about, fontsize=ABOUT, color=FAINT, x=0.01, ha="left")
    added = title.count("\n") * TITLE + about.count("\n") * ABOUT
    drawing.set_figheight(drawing.get_figheight() + 1.25 * added / 72)


def break_lines(text: str, inches: float, size: float, weight: str = "normal") -> str:
    """Break a text into lines that fit a figure of so many inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font, points = FontProperties(weight=weight), 72 * (0.98 * inches - 0.06)
    lines: list[str] = []
    for word in text.split(" "):
        wider = f"{lines[-1]} {word}" if lines else word
        if lines and TextPath((0, 0), wider, size=size, prop=font).get_extents().width > points:
            lines.append(word)
        else:
            lines[-1:] = [wider]
    return "\n".join(lines)


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise InputError(
            f'pictures need matplotlib, which does not import ({first_line(error)}): pip install "agreid-plugin[viz]"'
        ) from error
    return matplotlib


def _render(drawing: Figure) -> Image.Image:
    file = io.BytesIO()
    drawing.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
    return Image.open(file).convert("RGB")
