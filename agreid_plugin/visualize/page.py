"""A page of pictures and tables that needs no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from PIL import Image

from agreid_plugin.errors import printable
from agreid_plugin.retrieval.result_page import document, source_of

READABLE = 720  # pixels of a picture's width on a small screen
_STYLE = """
:root { color-scheme: light; --ink: #28282c; --faint: #6a6a70; --line: #e0e0e4; }
body { margin: 0 auto; max-width: 1200px; padding: 16px 24px 48px; background: #fff; color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 16px 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 36px 0 6px; border-top: 1px solid var(--line); padding-top: 16px; }
p { margin: 4px 0 10px; color: var(--faint); overflow-wrap: anywhere; }
nav a { display: inline-block; margin-right: 14px; color: #0072B2; }
.wide { overflow-x: auto; }
img { max-width: 100%; min-width: var(--least); height: auto; display: block; margin: 8px 0; }
table { border-collapse: collapse; margin: 8px 0; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 16px 4px 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top;
  white-space: nowrap; }
td.told { white-space: normal; overflow-wrap: anywhere; }
td.number, th.number { text-align: right; }
"""


@dataclass(frozen=True)
class Section:
    """A part of the page: a line of words, tables as rows of cells below a header, pictures with what they show."""

    title: str
    about: str = ""
    rows: Sequence[Sequence[str]] = ()
    header: Sequence[str] = ()
    pictures: Mapping[str, Image.Image] = field(default_factory=dict)


def page(title: str, about: str, sections: Sequence[Section]) -> str:
    """Return the HTML of a page; its pictures are inside."""
    links = " ".join(f'<a href="#{_anchor(each)}">{escape(each.title)}</a>' for each in sections)
    head = f"<h1>{_text(title)}</h1>\n<p>{_text(about)}</p>\n<nav>{links}</nav>"
    return document(_text(title), _STYLE, [head, *map(_section, sections)])


def _section(section: Section) -> str:
    parts = [f'<section id="{_anchor(section)}">\n<h2>{_text(section.title)}</h2>']
    if section.about:
        parts.append(f"<p>{_text(section.about)}</p>")
    if section.rows:
        parts.append(_table(section.header, section.rows))
    parts += [_picture(name, image) for name, image in section.pictures.items()]
    return "\n".join([*parts, "</section>"])


def _picture(name: str, image: Image.Image) -> str:
    """Return an image as wide as the page, but never so small that its words cannot be read: it is scrolled then."""
    least = min(image.width, READABLE)
    shown = f'<img src="{source_of(image, "PNG")}" alt="{_text(name)}">'
    return f'<div class="wide" style="--least: {least}px">{shown}</div>'


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table: of numbers below a header, or of names and what is told of each, which may be long."""
    kind = _class if header else _told
    head = "".join(f"<th{_class(rows[0][n], n)}>{_text(name)}</th>" for n, name in enumerate(header))
    body = "\n".join(
        "<tr>" + "".join(f"<td{kind(cell, n)}>{_text(cell)}</td>" for n, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table>\n{f"<tr>{head}</tr>" if header else ""}\n{body}\n</table></div>'


def _class(cell: str, _: int) -> str:
    return ' class="number"' if cell.replace(".", "", 1).isdigit() else ""


def _told(_: str, place: int) -> str:
    return ' class="told"' if place else ""


def _anchor(section: Section) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in section.title.lower())


def _text(text: str) -> str:
    return escape(printable(text))
