"""What a search found, shown: a table for the terminal, a page with the images in it, a contact sheet."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from html import escape
from typing import Any, TypeAlias

from PIL import Image, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError
from tabulate import tabulate

from agreid_plugin.errors import InputError, printable
from agreid_plugin.retrieval.results import Answer, Hit
from agreid_plugin.types import UNKNOWN

Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont
"""What PIL may give for its default font."""
THUMBNAIL = (128, 256)
"""Most columns and rows of a small image."""
COLUMNS = 10  # images in a row of a sheet
GAP = 8
FONT_SIZE = 14
LINE = 19  # pixels of a line of text
LEAST_WIDTH = 560  # of a sheet, or a query would be broken into many lines
PAPER, INK = (250, 250, 248), (40, 40, 44)
_FRAME = (225, 225, 220)

_STYLE = """
:root { color-scheme: light dark; --paper: #fafaf8; --ink: #28282c; --faint: #6a6a70; --card: #fff; }
@media (prefers-color-scheme: dark) { :root { --paper: #18181b; --ink: #e8e8e6; --faint: #a0a0a8; --card: #242428; } }
body { margin: 0 auto; max-width: 1500px; padding: 12px; background: var(--paper); color: var(--ink);
  font: 15px/1.4 system-ui, sans-serif; }
h1 { font-size: 1.25rem; margin: 20px 0 4px; overflow-wrap: anywhere; }
p { margin: 4px 0; color: var(--faint); overflow-wrap: anywhere; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(132px, 1fr)); gap: 10px; margin-top: 10px; }
figure { margin: 0; padding: 8px; border-radius: 8px; background: var(--card); text-align: center; }
img { width: 100%; height: 220px; object-fit: contain; }
img.query { width: auto; display: block; }
figcaption { font-size: 0.8rem; }
.path { display: block; color: var(--faint); overflow-wrap: anywhere; }
"""


TOLD: dict[str, Callable[[Hit], str]] = {
    "view": lambda hit: hit.view_word,
    "camera": lambda hit: "" if hit.camera == UNKNOWN else str(hit.camera),
    "pid": lambda hit: "" if hit.pid == UNKNOWN else str(hit.pid),
    "time": lambda hit: "" if hit.time is None else _time(hit.time),
}
"""Column -> what is known of a result, empty where nobody knows."""


def table(answer: Answer) -> str:
    """Return the results of a query as a table: rank, score, what is known of any of the images, path."""
    known = {name: tell for name, tell in TOLD.items() if any(tell(hit) for hit in answer.hits)}
    rows = [
        [str(hit.rank), f"{hit.score:.4f}", *(tell(hit) or "-" for tell in known.values()), printable(hit.path)]
        for hit in answer.hits
    ]
    align = ("right", "right", *["left"] * (len(known) + 1))
    head = ["rank", "score", *known, "path"]
    return tabulate(rows, head, tablefmt="simple", disable_numparse=True, colalign=align)


def plain(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return answers as lists and dictionaries, for JSON."""
    return [
        {"query": answer.query, "notes": list(answer.notes), "hits": [_plain(hit) for hit in answer.hits]}
        for answer in answers
    ]


def _plain(hit: Hit) -> dict[str, Any]:
    labels = {"camera": hit.camera, "pid": hit.pid}
    known: dict[str, int | str] = {name: value for name, value in labels.items() if value != UNKNOWN}
    if hit.time is not None:
        known["time"] = _time(hit.time)
    return {"rank": hit.rank, "path": hit.path, "score": round(hit.score, 6), "view": hit.view_word or None, **known}


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, tz=timezone.utc).isoformat(timespec="seconds").replace("+00:00", "")
    except (OverflowError, ValueError, OSError):  # before year 1, or after 9999
        return f"{seconds:g}"


def page(answers: Sequence[Answer], about: str = "") -> str:
    """Return an HTML page that needs no other file: small images are inside.

    Paths start at the last folder that has all images of the answers in it; a query has its file's name.

    Args:
        answers: what was found; each query stands above a grid of its images.
        about: a line at the end: which gallery and model, for example.

    Raises:
        InputError: an image cannot be read.
    """
    small = cache(_embedded)  # one image may answer several queries
    shown = _short_paths([hit.path for answer in answers for hit in answer.hits])
    title = escape(printable(_heading(answers[0]) if len(answers) == 1 else f"{len(answers)} queries"))
    footer = f"<footer><p>{escape(printable(about))}</p></footer>"
    return document(title, _STYLE, [*(_section(answer, small, shown) for answer in answers), footer])


def _heading(answer: Answer) -> str:
    return os.path.basename(answer.query) if answer.is_image else answer.query


def _short_paths(paths: Sequence[str]) -> dict[str, str]:
    """Return path -> path from the last folder on that has all of them in it."""
    if not paths:
        return {}
    full = {path: os.path.abspath(path) for path in paths}
    start = os.path.dirname(os.path.commonpath([os.path.dirname(path) for path in full.values()]))
    return {path: os.path.relpath(each, start) for path, each in full.items()}


def document(title: str, style: str, parts: Iterable[str]) -> str:
    """Return an HTML page of parts, whose title is escaped already."""
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>",
            *parts,
            "</body>\n</html>\n",
        ]
    )


def source_of(image: Image.Image, kind: str, **options: Any) -> str:
    """Return an image, saved by PIL as `JPEG` or `PNG`, as the source that an `img` of a page has."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def _section(answer: Answer, small: Callable[[str], str], shown: Mapping[str, str]) -> str:
    notes = "".join(f"<p>{escape(printable(note))}</p>\n" for note in answer.notes)
    figures = "\n".join(_figure(hit, small(hit.path), shown[hit.path]) for hit in answer.hits)
    asked = f'<img class="query" src="{small(answer.query)}" alt="query">\n' if answer.is_image else ""
    head = f"<h1>{escape(printable(_heading(answer)))}</h1>\n{asked}{notes}"
    return f'<section>\n{head}<div class="grid">\n{figures}\n</div>\n</section>'


def _figure(hit: Hit, source: str, path: str) -> str:
    path = escape(printable(path))
    known = {name: tell(hit) for name, tell in TOLD.items() if tell(hit)}
    told = ", ".join(f"{name} {text}" if name in ("camera", "pid") else text for name, text in known.items())
    words = f'<b>{hit.rank}</b> · {hit.score:.4f} {told}<span class="path">{path}</span>'
    return f'<figure><img src="{source}" alt="{path}"><figcaption>{words}</figcaption></figure>'


def _embedded(path: str) -> str:
    return source_of(thumbnail(path), "JPEG", quality=80)


def thumbnail(path: str, size: tuple[int, int] = THUMBNAIL) -> Image.Image:
    """Read an image, upright and as RGB, no larger than `size`, its columns and rows, and of its own proportions."""
    try:
        with Image.open(path) as image:
            image.draft("RGB", (2 * size[0], 2 * size[1]))  # a large JPEG is decoded at a part of its size
            small = ImageOps.exif_transpose(image).convert("RGB")
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise InputError(f"image {printable(path)} cannot be shown: {printable(str(error))}") from None
    small.thumbnail(size, Image.Resampling.BICUBIC)
    return small


def mounted(path: str) -> Image.Image:
    """Return an image as large as fits on a piece of paper of `THUMBNAIL` columns and rows."""
    image = ImageOps.contain(thumbnail(path), THUMBNAIL)  # crops are often smaller
    mount = Image.new("RGB", THUMBNAIL, _FRAME)
    mount.paste(image, ((THUMBNAIL[0] - image.width) // 2, (THUMBNAIL[1] - image.height) // 2))
    return mount


def sheet(answers: Sequence[Answer]) -> Image.Image:
    """Draw answers below each other: the query, first in the row if it is an image, and its images with rank and score.

    Raises:
        InputError: an image cannot be read.
    """
    cells = [_cells(answer) for answer in answers]
    columns = min(COLUMNS, max(map(len, cells)))
    width = max(LEAST_WIDTH, columns * (THUMBNAIL[0] + GAP) + GAP)
    font = ImageFont.load_default(size=FONT_SIZE)
    heads = [wrapped([_heading(answer), *answer.notes], width - 2 * GAP, font) for answer in answers]
    heights = [_height(len(head), len(own)) for head, own in zip(heads, cells, strict=True)]
    paper = Image.new("RGB", (width, sum(heights)), PAPER)
    draw, top = ImageDraw.Draw(paper), 0
    for own, head, height in zip(cells, heads, heights, strict=True):
        draw.multiline_text((GAP, top + GAP), "\n".join(head), fill=INK, font=font, spacing=LINE - FONT_SIZE)
        for place, (path, words) in enumerate(own):
            row, column = divmod(place, COLUMNS)
            left, upper = GAP + column * (THUMBNAIL[0] + GAP), top + GAP + len(head) * LINE + GAP + row * _cell()
            paper.paste(mounted(path), (left, upper))
            draw.text((left, upper + THUMBNAIL[1] + 1), words, fill=INK, font=font)
        top += height
    return paper


def _cells(answer: Answer) -> list[tuple[str, str]]:
    """Return the images of an answer with the words below each."""
    hits = [(hit.path, f"{hit.rank}  {hit.score:.4f} {hit.view_word}") for hit in answer.hits]
    return [(answer.query, "query"), *hits] if answer.is_image else hits


def _cell() -> int:
    return THUMBNAIL[1] + LINE + GAP


def _height(lines: int, images: int) -> int:
    return 2 * GAP + lines * LINE + -(-images // COLUMNS) * _cell() + GAP


def wrapped(texts: Sequence[str], width: int, font: Font) -> list[str]:
    """Break texts into lines that are at most `width` pixels wide."""
    lines: list[str] = []
    for text in texts:
        lines.append("")
        for word in printable(text).split():
            wider = f"{lines[-1]} {word}".strip()
            if font.getlength(wider) <= width:
                lines[-1] = wider
            else:
                lines += _cut(word, width, font)
    return [line for line in lines if line]


def _cut(word: str, width: int, font: Font) -> list[str]:
    """Cut a word where it gets too wide for a line; most are not."""
    pieces = [""]
    for letter in word:
        if font.getlength(pieces[-1] + letter) > width:
            pieces.append("")
        pieces[-1] += letter
    return pieces
