"""Kinds of images: what filters and hiding rules of protocols compare, the person left out, is the same within one.

Shapes: N images, K kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from agreid_plugin.types import Record

TAGS = ("time", "scene", "source")
"""The tags that a filter may compare."""


class Kinds:
    """The kinds of some images. They are few, so that a filter looks at one image of each and not at all images.

    Attributes:
        examples: the first image of each kind, K of them.
        kind: (N,) the place of each image's kind in `examples`.
        pid: (N,) identities.
    """

    def __init__(self, records: Sequence[Record]):
        numbers: dict[tuple, int] = {}
        self.kind = np.array([numbers.setdefault(_key(each), len(numbers)) for each in records], dtype=np.int64)
        self.examples = [records[first] for first in np.unique(self.kind, return_index=True)[1].tolist()]
        self.pid = np.array([each.pid for each in records], dtype=np.int64)

    def places(self, kinds: Iterable[int]) -> np.ndarray:
        """Return the places of all images of some kinds, rising."""
        chosen = np.zeros(len(self.examples), dtype=bool)
        chosen[list(kinds)] = True
        return np.flatnonzero(chosen[self.kind])


def _key(record: Record) -> tuple:
    tags = [record.tags.get(name) for name in TAGS] if record.tags else ()
    return record.split, record.view, record.camera, record.platform, not record.captions, *tags
