"""What a search found, shown: a table for the terminal, a page with the images in it, a contact sheet."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from functools import cache
from html import escape

from PIL import Image, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError
from tabulate import tabulate

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.search import Answer, Hit

THUMBNAIL = (128, 256)
"""Most columns and rows of a small image."""
COLUMNS = 10  # images in a row of a sheet
GAP = 8
FONT_SIZE = 14
LINE = 19  # pixels of a line of text
LEAST_WIDTH = 560  # of a sheet, or a query would be broken into many lines
_PAPER, _INK, _FRAME = (250, 250, 248), (40, 40, 44), (225, 225, 220)

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
figcaption { font-size: 0.8rem; }
.path { display: block; color: var(--faint); overflow-wrap: anywhere; }
"""


def printable(text: str) -> str:
    """Return a text with line breaks, control characters and bytes that are no text spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def table(answer: Answer) -> str:
    """Return the results of a query as a table: rank, score, view if a model told any, path."""
    with_views = any(hit.view is not None for hit in answer.hits)
    head = ["rank", "score", *(["view"] if with_views else []), "path"]
    rows = [
        [str(hit.rank), f"{hit.score:.4f}", *([hit.view_word or "-"] if with_views else []), printable(hit.path)]
        for hit in answer.hits
    ]
    align = ("right", "right", *["left"] * (len(head) - 2))
    return tabulate(rows, head, tablefmt="simple", disable_numparse=True, colalign=align)


def plain(answers: Sequence[Answer]) -> list[dict]:
    """Return answers as lists and dictionaries, for JSON."""
    return [
        {
            "query": answer.query,
            "notes": list(answer.notes),
            "hits": [
                {"rank": hit.rank, "path": hit.path, "score": round(hit.score, 6), "view": hit.view_word or None}
                for hit in answer.hits
            ],
        }
        for answer in answers
    ]


def page(answers: Sequence[Answer], about: str = "") -> str:
    """Return an HTML page that needs no other file: small images are inside.

    Args:
        answers: what was found; each query stands above a grid of its images.
        about: a line at the end: which gallery and model, for example.

    Raises:
        InputError: an image cannot be read.
    """
    small = cache(_embedded)  # one image may answer several queries
    title = escape(printable(answers[0].query if len(answers) == 1 else f"{len(answers)} queries"))
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
            *(_section(answer, small) for answer in answers),
            f"<footer><p>{escape(printable(about))}</p></footer>\n</body>\n</html>\n",
        ]
    )


def _section(answer: Answer, small: Callable[[str], str]) -> str:
    notes = "".join(f"<p>{escape(printable(note))}</p>\n" for note in answer.notes)
    figures = "\n".join(_figure(hit, small(hit.path)) for hit in answer.hits)
    head = f"<h1>{escape(printable(answer.query))}</h1>\n{notes}"
    return f'<section>\n{head}<div class="grid">\n{figures}\n</div>\n</section>'


def _figure(hit: Hit, data: str) -> str:
    path = escape(printable(hit.path))
    words = f'<b>{hit.rank}</b> · {hit.score:.4f} {hit.view_word}<span class="path">{path}</span>'
    return f'<figure><img src="data:image/jpeg;base64,{data}" alt="{path}"><figcaption>{words}</figcaption></figure>'


def _embedded(path: str) -> str:
    file = io.BytesIO()
    thumbnail(path).save(file, "JPEG", quality=80)
    return base64.b64encode(file.getvalue()).decode()


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


def sheet(answers: Sequence[Answer]) -> Image.Image:
    """Draw answers below each other: the query, then its images with rank and score.

    Raises:
        InputError: an image cannot be read.
    """
    columns = min(COLUMNS, max(len(answer.hits) for answer in answers))
    width = max(LEAST_WIDTH, columns * (THUMBNAIL[0] + GAP) + GAP)
    font = ImageFont.load_default(size=FONT_SIZE)
    heads = [_wrapped([answer.query, *answer.notes], width - 2 * GAP, font) for answer in answers]
    heights = [_height(len(head), len(answer.hits)) for head, answer in zip(heads, answers, strict=True)]
    paper = Image.new("RGB", (width, sum(heights)), _PAPER)
    draw, top = ImageDraw.Draw(paper), 0
    for answer, head, height in zip(answers, heads, heights, strict=True):
        draw.multiline_text((GAP, top + GAP), "\n".join(head), fill=_INK, font=font, spacing=LINE - FONT_SIZE)
        for place, hit in enumerate(answer.hits):
            row, column = divmod(place, COLUMNS)
            corner = (GAP + column * (THUMBNAIL[0] + GAP), top + GAP + len(head) * LINE + GAP + row * _cell())
            _draw_hit(paper, draw, font, hit, corner)
        top += height
    return paper


def _cell() -> int:
    return THUMBNAIL[1] + LINE + GAP


def _height(lines: int, hits: int) -> int:
    return 2 * GAP + lines * LINE + -(-hits // COLUMNS) * _cell() + GAP


def _draw_hit(
    paper: Image.Image, draw: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont, hit: Hit, corner: tuple[int, int]
) -> None:
    left, top = corner
    image = ImageOps.contain(thumbnail(hit.path), THUMBNAIL)  # crops are often smaller
    draw.rectangle((left, top, left + THUMBNAIL[0] - 1, top + THUMBNAIL[1] - 1), fill=_FRAME)
    paper.paste(image, (left + (THUMBNAIL[0] - image.width) // 2, top + (THUMBNAIL[1] - image.height) // 2))
    words = f"{hit.rank}  {hit.score:.4f} {hit.view_word}"
    draw.text((left, top + THUMBNAIL[1] + 1), words, fill=_INK, font=font)


def _wrapped(texts: Sequence[str], width: int, font: ImageFont.FreeTypeFont) -> list[str]:
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


def _cut(word: str, width: int, font: ImageFont.FreeTypeFont) -> list[str]:
    """Cut a word where it gets too wide for a line; most are not."""
    pieces = [""]
    for letter in word:
        if font.getlength(pieces[-1] + letter) > width:
            pieces.append("")
        pieces[-1] += letter
    return pieces
