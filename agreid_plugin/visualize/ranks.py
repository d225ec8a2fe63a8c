"""Rank sheets: queries and the first images of their rankings, framed as right or wrong."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from PIL import Image, ImageDraw, ImageFont

from agreid_plugin.evaluation.rank_lists import RankList
from agreid_plugin.retrieval.result_page import INK, THUMBNAIL, Font, mount_thumbnail, wrap_lines
from agreid_plugin.types import Record
from agreid_plugin.visualize.style import RIGHT, WRONG, describe_view

PAPER, FAINT = (255, 255, 255), (106, 106, 112)
MARGIN, GAP, BETWEEN = 20, 10, 34  # around all; between images; between a query and its images
BORDER = 6  # pixels of the color around an image
TITLE, TEXT, LINE = 26, 16, 21
HEAD = 88  # pixels above the first query
CELL = THUMBNAIL[0] + 2 * BORDER, THUMBNAIL[1] + 2 * BORDER
ROW = CELL[1] + 3 * LINE + 18
BADGE = 13  # radius of the mark in an image's corner
LEGEND = (("same person", RIGHT), ("another person", WRONG))


def draw_rank_sheet(
    rankings: Sequence[RankList], title: str, about: str = "", notes: Sequence[str] = ()
) -> Image.Image:
    """Draw queries below each other, each with its images: right ones framed in green and ticked, wrong ones crossed.

    Below a query stands the rank of its first right image, which may be beyond those drawn.

    Args:
        rankings: what to draw.
        title: stands above all; say the protocol.
        about: a line below it.
        notes: a word on each query, below it.
    """
    most = max(len(ranking.listed) for ranking in rankings)
    width = 2 * MARGIN + CELL[0] + BETWEEN + most * (CELL[0] + GAP) - GAP
    width = max(width, int(2 * MARGIN + max(_font(TITLE).getlength(title), _font(TEXT).getlength(about) + 330)))
    paper = Image.new("RGB", (width, HEAD + len(rankings) * ROW), PAPER)
    pen = ImageDraw.Draw(paper)
    pen.text((MARGIN, 14), title, fill=INK, font=_font(TITLE))
    pen.text((MARGIN, 52), about, fill=FAINT, font=_font(TEXT))
    _legend(pen, width - MARGIN)
    for number, ranking in enumerate(rankings):
        note = notes[number] if notes else ""
        _row(paper, number, ranking, note)
    return paper


def format_place(row: int, rank: int) -> tuple[int, int]:
    """Return the upper left corner of an image's frame; rank 0 is the query."""
    left = MARGIN if rank == 0 else MARGIN + CELL[0] + BETWEEN + (rank - 1) * (CELL[0] + GAP)
    return left, HEAD + row * ROW


def _row(paper: Image.Image, row: int, ranking: RankList, note: str) -> None:
    pen, (_, top) = ImageDraw.Draw(paper), format_place(row, 0)
    first = "no right image" if ranking.first_right is None else f"first right: rank {ranking.first_right}"
    if ranking.caption:
        _write(pen, (MARGIN, top), shorten_lines(wrap_lines([ranking.caption], CELL[0], _font(TEXT)), CELL[1] // LINE))
        _write(pen, (MARGIN, top + CELL[1] + 4), [note, first])
    else:
        _mount(paper, (MARGIN, top), ranking.query, f"query  {note}", INK)
        _write(pen, (MARGIN, top + CELL[1] + 4 + 2 * LINE), [first])
    line = MARGIN + CELL[0] + BETWEEN // 2
    pen.line((line, top, line, top + CELL[1]), fill=(200, 200, 204), width=2)
    for number, each in enumerate(ranking.listed, start=1):
        left, _ = format_place(row, number)
        color = RIGHT if each.right else WRONG
        _mount(paper, (left, top), each.record, f"{each.rank}   {each.distance:.3f}", color)
        _badge(paper, (left + CELL[0] - BORDER - BADGE - 3, top + BORDER + BADGE + 3), each.right)


def shorten_lines(lines: list[str], most: int) -> list[str]:
    """Return as many lines as there is room for, with dots where more would follow."""
    return lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1].rpartition(' ')[0]} ..."]


def _mount(
    paper: Image.Image, corner: tuple[int, int], record: Record, words: str, color: tuple[int, int, int]
) -> None:
    """Put an image with a frame on the paper, and below it some words, its view and camera."""
    left, top = corner
    paper.paste(color, (left, top, left + CELL[0], top + CELL[1]))
    paper.paste(mount_thumbnail(record.path), (left + BORDER, top + BORDER))
    pen = ImageDraw.Draw(paper)
    pen.text((left, top + CELL[1] + 4), words, fill=INK, font=_font(TEXT))
    pen.text((left, top + CELL[1] + 4 + LINE), describe_view(record), fill=FAINT, font=_font(TEXT))


def _badge(paper: Image.Image, center: tuple[int, int], right: bool) -> None:
    """Draw a tick or a cross, which does not depend on seeing colors."""
    scale = 4  # drawn large and reduced, for smooth lines
    side = 2 * BADGE * scale
    mark = Image.new("RGBA", (side, side))
    pen = ImageDraw.Draw(mark)
    pen.ellipse((0, 0, side - 1, side - 1), fill=RIGHT if right else WRONG)
    strokes = [((26, 54), (44, 72), (76, 32))] if right else [((31, 31), (69, 69)), ((69, 31), (31, 69))]
    for stroke in strokes:
        points = [(x * side / 100, y * side / 100) for x, y in stroke]
        pen.line(points, fill="white", width=side // 9, joint="curve")
    mark = mark.resize((2 * BADGE, 2 * BADGE), Image.Resampling.LANCZOS)
    paper.paste(mark, (center[0] - BADGE, center[1] - BADGE), mark)


def _legend(pen: ImageDraw.ImageDraw, right: int) -> None:
    for words, color in reversed(LEGEND):
        right -= int(_font(TEXT).getlength(words))
        pen.text((right, 52), words, fill=INK, font=_font(TEXT))
        right -= 24
        pen.rectangle((right, 53, right + 16, 69), outline=color, width=4)
        right -= 24


def _write(pen: ImageDraw.ImageDraw, corner: tuple[int, int], lines: Sequence[str]) -> None:
    pen.multiline_text(corner, "\n".join(lines), fill=INK, font=_font(TEXT), spacing=LINE - TEXT)


@cache
def _font(size: int) -> Font:
    return ImageFont.load_default(size=size)
