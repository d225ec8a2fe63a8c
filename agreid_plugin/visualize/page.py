"""A page of pictures and tables that needs no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from agreid_plugin.retrieval.result_page import embed_image, render_page

TEMPLATE = Path(__file__).with_name("run_page.html")
READABLE = 720  # pixels of a picture's width on a small screen


@dataclass(frozen=True)
class Section:
    """A part of the page: a line of words, tables as rows of cells below a header, pictures with what they show."""

    title: str
    about: str = ""
    rows: Sequence[Sequence[str]] = ()
    header: Sequence[str] = ()
    pictures: Mapping[str, Image.Image] = field(default_factory=dict)

    @property
    def anchor(self) -> str:
        """Where a link of the page leads."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


def page(title: str, about: str, sections: Sequence[Section]) -> str:
    """Return the HTML of a page; its pictures are inside."""
    return render_page(
        TEMPLATE,
        title=title,
        about=about,
        sections=sections,
        is_number=lambda cell: cell.replace(".", "", 1).isdigit(),
        readable_width=READABLE,
        source=lambda image: embed_image(image, "PNG"),
    )
