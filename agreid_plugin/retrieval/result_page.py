"""Search results for people: a table for the terminal, an HTML page and a contact sheet with the images."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError
from tabulate import tabulate

from agreid_plugin.errors import InputError, printable
from agreid_plugin.retrieval.index.entries import Entry, Match, SearchResult
from agreid_plugin.types import UNKNOWN, view_word

Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont
"""What PIL may give for its default font."""
TEMPLATE = Path(__file__).with_suffix(".html")
THUMBNAIL = (128, 256)
"""Most columns and rows of a small image."""
COLUMNS = 10  # images in a row of a sheet
GAP = 8
FONT_SIZE = 14
LINE = 19  # pixels of a line of text
MIN_WIDTH = 560  # of a sheet, or a query would be broken into many lines
PAPER, INK = (250, 250, 248), (40, 40, 44)
_FRAME = (225, 225, 220)

LABELS: dict[str, Callable[[Entry], str]] = {
    "view": lambda entry: view_word(entry.view),
    "camera": lambda entry: "" if entry.camera == UNKNOWN else str(entry.camera),
    "pid": lambda entry: "" if entry.pid == UNKNOWN else str(entry.pid),
    "time": lambda entry: "" if entry.time is None else _format_time(entry.time),
}
"""Column -> the label of an image, empty if unknown."""


def format_result(result: SearchResult) -> str:
    """Return the matches of a query as a table: rank, score, the labels that any of the images has, path."""
    entries = [match.entry for match in result.matches]
    known = [label for name, label in LABELS.items() if any(map(label, entries))]
    names = [name for name, label in LABELS.items() if label in known]
    rows = [
        [str(rank), f"{match.score:.4f}", *(label(match.entry) or "-" for label in known), printable(match.entry.path)]
        for rank, match in enumerate(result.matches, start=1)
    ]
    align = ("right", "right", *["left"] * (len(known) + 1))
    return tabulate(rows, ["rank", "score", *names, "path"], tablefmt="simple", disable_numparse=True, colalign=align)


def as_json(results: Sequence[SearchResult]) -> list[dict[str, Any]]:
    """Return results as lists and dictionaries, for JSON."""
    return [
        {
            "query": result.query,
            "notes": list(result.notes),
            "hits": [_match_as_json(rank, match) for rank, match in enumerate(result.matches, start=1)],
        }
        for result in results
    ]


def _match_as_json(rank: int, match: Match) -> dict[str, Any]:
    entry = match.entry
    labels = {"camera": entry.camera, "pid": entry.pid}
    known: dict[str, int | str] = {name: value for name, value in labels.items() if value != UNKNOWN}
    if entry.time is not None:
        known["time"] = _format_time(entry.time)
    view = view_word(entry.view) or None
    return {"rank": rank, "path": entry.path, "score": round(match.score, 6), "view": view, **known}


def _format_time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, tz=timezone.utc).isoformat(timespec="seconds").replace("+00:00", "")
    except (OverflowError, ValueError, OSError):  # before year 1, or after 9999
        return f"{seconds:g}"


def make_page(results: Sequence[SearchResult], about: str = "") -> str:
    """Return an HTML page that needs no other file: small images are inside.

    Paths start at the last folder that has all images of the results in it; a query has its file's name.

    Args:
        results: each query is shown above a grid of its images.
        about: a line at the end: which gallery and model, for example.

    Raises:
        InputError: an image cannot be read.
    """
    return render_page(
        TEMPLATE,
        title=_heading(results[0]) if len(results) == 1 else f"{len(results)} queries",
        results=results,
        about=about,
        heading=_heading,
        labels=_format_labels,
        paths=_short_paths([match.entry.path for result in results for match in result.matches]),
        source=cache(_thumbnail_source),  # one image may match several queries
    )


def render_page(template: Path, **values: Any) -> str:
    """Return a page from a jinja2 template, in which every text is escaped and made printable."""
    environment = Environment(
        loader=FileSystemLoader(template.parent, encoding="utf-8"),
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template.name).render(values)


def embed_image(image: Image.Image, kind: str, **options: Any) -> str:
    """Return the `src` of an `img` that holds an image, saved by PIL as `JPEG` or `PNG`."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def _heading(result: SearchResult) -> str:
    return os.path.basename(result.query) if result.is_image else result.query


def _short_paths(paths: Sequence[str]) -> dict[str, str]:
    """Return path -> path from the last folder on that has all of them in it."""
    if not paths:
        return {}
    full = {path: os.path.abspath(path) for path in paths}
    start = os.path.dirname(os.path.commonpath([os.path.dirname(path) for path in full.values()]))
    return {path: os.path.relpath(each, start) for path, each in full.items()}


def _format_labels(entry: Entry) -> str:
    known = {name: text for name, label in LABELS.items() if (text := label(entry))}
    return ", ".join(f"{name} {text}" if name in ("camera", "pid") else text for name, text in known.items())


def _thumbnail_source(path: str) -> str:
    return embed_image(thumbnail(path), "JPEG", quality=80)


def thumbnail(path: str, size: tuple[int, int] = THUMBNAIL) -> Image.Image:
    """Read an image, upright and as RGB, no larger than `size`, its columns and rows, with its proportions kept."""
    try:
        with Image.open(path) as image:
            image.draft("RGB", (2 * size[0], 2 * size[1]))  # a large JPEG is decoded at a part of its size
            small = ImageOps.exif_transpose(image).convert("RGB")
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise InputError(f"image {printable(path)} cannot be shown: {printable(str(error))}") from None
    small.thumbnail(size, Image.Resampling.BICUBIC)
    return small


def mount_thumbnail(path: str) -> Image.Image:
    """Return an image as large as fits on a piece of paper of `THUMBNAIL` columns and rows."""
    image = ImageOps.contain(thumbnail(path), THUMBNAIL)  # crops are often smaller
    mount = Image.new("RGB", THUMBNAIL, _FRAME)
    mount.paste(image, ((THUMBNAIL[0] - image.width) // 2, (THUMBNAIL[1] - image.height) // 2))
    return mount


def draw_sheet(results: Sequence[SearchResult]) -> Image.Image:
    """Draw results below each other: the query, first in the row if it is an image, and its images with rank and score.

    Raises:
        InputError: an image cannot be read.
    """
    cells = [_cells(result) for result in results]
    columns = min(COLUMNS, max(map(len, cells)))
    width = max(MIN_WIDTH, columns * (THUMBNAIL[0] + GAP) + GAP)
    font = ImageFont.load_default(size=FONT_SIZE)
    heads = [wrap_lines([_heading(result), *result.notes], width - 2 * GAP, font) for result in results]
    heights = [_height(len(head), len(images)) for head, images in zip(heads, cells, strict=True)]
    paper = Image.new("RGB", (width, sum(heights)), PAPER)
    draw, top = ImageDraw.Draw(paper), 0
    for images, head, height in zip(cells, heads, heights, strict=True):
        draw.multiline_text((GAP, top + GAP), "\n".join(head), fill=INK, font=font, spacing=LINE - FONT_SIZE)
        for place, (path, words) in enumerate(images):
            row, column = divmod(place, COLUMNS)
            left, upper = GAP + column * (THUMBNAIL[0] + GAP), top + GAP + len(head) * LINE + GAP + row * _cell_height()
            paper.paste(mount_thumbnail(path), (left, upper))
            draw.text((left, upper + THUMBNAIL[1] + 1), words, fill=INK, font=font)
        top += height
    return paper


def _cells(result: SearchResult) -> list[tuple[str, str]]:
    """Return the images of a result with the words below each."""
    cells = [
        (match.entry.path, f"{rank}  {match.score:.4f} {view_word(match.entry.view)}")
        for rank, match in enumerate(result.matches, start=1)
    ]
    return [(result.query, "query"), *cells] if result.is_image else cells


def _cell_height() -> int:
    return THUMBNAIL[1] + LINE + GAP


def _height(lines: int, images: int) -> int:
    return 2 * GAP + lines * LINE + -(-images // COLUMNS) * _cell_height() + GAP


def wrap_lines(texts: Sequence[str], width: int, font: Font) -> list[str]:
    """Break texts into lines that are at most `width` pixels wide."""
    lines: list[str] = []
    for text in texts:
        lines.append("")
        for word in printable(text).split():
            wider = f"{lines[-1]} {word}".strip()
            if font.getlength(wider) <= width:
                lines[-1] = wider
            else:
                lines += _cut_word(word, width, font)
    return [line for line in lines if line]


def _cut_word(word: str, width: int, font: Font) -> list[str]:
    """Cut a word where it gets too wide for a line; most are not."""
    pieces = [""]
    for letter in word:
        if font.getlength(pieces[-1] + letter) > width:
            pieces.append("")
        pieces[-1] += letter
    return pieces
