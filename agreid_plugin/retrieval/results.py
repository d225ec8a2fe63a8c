"""What a search found: for every query the images most like it, best first."""

from __future__ import annotations

from dataclasses import dataclass

from agreid_plugin.types import UNKNOWN, View, view_word


@dataclass(frozen=True)
class Hit:
    """One result.

    Attributes:
        rank: from 1.
        path: the image.
        score: its cosine with the query.
        view: given, or what a model takes it for; None when nobody knows.
        camera: its number, or `UNKNOWN`.
        pid: the identity, or `UNKNOWN`.
        time: seconds since 1970, or None.
    """

    rank: int
    path: str
    score: float
    view: View | None = None
    camera: int = UNKNOWN
    pid: int = UNKNOWN
    time: float | None = None

    @property
    def view_word(self) -> str:
        """The view in a word, empty if nobody knows."""
        return view_word(self.view)


@dataclass(frozen=True)
class Answer:
    """What was found for a query.

    Attributes:
        query: in words; of an image its path.
        hits: the images, best first.
        notes: what should be known of the query.
        is_image: whether the query is an image, which can be shown beside what was found.
    """

    query: str
    hits: tuple[Hit, ...]
    notes: tuple[str, ...] = ()
    is_image: bool = False
