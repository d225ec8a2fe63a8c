"""Datasets by name: files on disk -> `Dataset`, a list of records with notes about the copy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from agreid_plugin.data.attributes import AttributeSchema
from agreid_plugin.data.datasets import ag_reid, cargo, cp2108, custom, lagper_g2aps, text_sets
from agreid_plugin.data.datasets.tree import QueryGallery, Tree, normalize_name
from agreid_plugin.data.files import MAX_LABEL, shorten
from agreid_plugin.errors import InputError, require_known, unknown
from agreid_plugin.types import Record

__all__ = ["DATASETS", "Dataset", "QueryGallery", "Source", "dataset_name", "load", "parse_once"]

FILTER_TAGS = ("time", "scene", "source")
"""The tags that a filter may compare."""


@dataclass(frozen=True)
class Source:
    """Reader of a dataset.

    Attributes:
        parse: reads its folder.
        folders: common names of the folder; case and punctuation do not matter.
        about: one line for lists.
        cite: where it was published.
    """

    parse: Callable[..., list[Record]]
    folders: tuple[str, ...]
    about: str
    cite: str


DATASETS: dict[str, Source] = {
    "CARGO": Source(
        cargo.parse,
        ("CARGO",),
        "synthetic, 5 aerial and 8 ground cameras, day and night",
        "Zhang et al., View-decoupled Transformer for Person Re-identification under Aerial-ground Camera Network, "
        "CVPR 2024",
    ),
    "AG-ReID": Source(
        ag_reid.parse,
        ("AG-ReID", "AG-ReID.v1"),
        "one UAV, one CCTV camera, 15 attributes",
        "Nguyen et al., Aerial-Ground Person Re-ID, ICME 2023",
    ),
    "AG-ReID.v2": Source(
        ag_reid.parse_v2,
        ("AG-ReID.v2",),
        "UAV, CCTV and wearable camera, 15 attributes",
        "Nguyen et al., AG-ReID.v2: Bridging Aerial and Ground Views for Person Re-identification, TIFS 2024",
    ),
    "LAGPeR": Source(
        lagper_g2aps.parse_lagper,
        ("LAGPeR",),
        "7 aerial and 14 ground cameras, 7 scenes",
        "Wang et al., SeCap: Self-Calibrating and Adaptive Prompts for Cross-view Person Re-Identification in "
        "Aerial-Ground Networks, CVPR 2025",
    ),
    "G2APS-ReID": Source(
        lagper_g2aps.parse_g2aps,
        ("G2APS-ReID", "GA-ReID"),
        "one UAV, one ground camera, rebuilt from the person search set G2APS",
        "Zhang et al., Ground-to-Aerial Person Search: Benchmark Dataset and Approach, ACM MM 2023; rebuilt in SeCap",
    ),
    "CP2108": Source(
        cp2108.parse,
        ("CP2108", "CP2000"),
        "22 ground cameras, 17 UAVs, 22 attributes, captions, identities seen at two times",
        "SVPR-ReID, AAAI 2026",
    ),
    "TAG-PEDES": Source(
        text_sets.parse, ("TAG-PEDES", "dataset"), "text to image, aerial and ground", "TAG-CLIP, AAAI 2026"
    ),
    "CUHK-PEDES": Source(
        text_sets.parse,
        ("CUHK-PEDES",),
        "text to image, ground",
        "Li et al., Person Search with Natural Language Description, CVPR 2017",
    ),
    "ICFG-PEDES": Source(
        text_sets.parse,
        ("ICFG-PEDES",),
        "text to image, ground",
        "Ding et al., Semantically Self-Aligned Network for Text-to-Image Part-aware Person Re-identification, 2021",
    ),
    "RSTPReid": Source(
        text_sets.parse,
        ("RSTPReid",),
        "text to image, ground",
        "Zhu et al., DSSL: Deep Surroundings-person Separation Learning for Text-based Person Retrieval, ACM MM 2021",
    ),
    "folder": Source(custom.parse_folder, (), "your own images, labels in file or folder names", "yours"),
    "csv": Source(custom.parse_table, (), "your own images, labels in a CSV table", "yours"),
}


class Kinds:
    """Kinds of images: those of a kind have all labels in common that filters and hiding rules compare, but the person.

    Kinds are few, so that a filter compares one image of each and not all images. Shapes: N images, K kinds.

    Attributes:
        examples: the first image of each kind, K of them.
        kind: (N,) the place of each image's kind in `examples`.
        pid: (N,) identities.
    """

    def __init__(self, records: Sequence[Record]):
        numbers: dict[tuple, int] = {}
        self.kind = np.array([numbers.setdefault(_kind_key(each), len(numbers)) for each in records], dtype=np.int64)
        self.examples = [records[first] for first in np.unique(self.kind, return_index=True)[1].tolist()]
        self.pid = np.array([each.pid for each in records], dtype=np.int64)

    def places(self, kinds: Iterable[int]) -> np.ndarray:
        """Return the places of all images of some kinds, rising."""
        chosen = np.zeros(len(self.examples), dtype=bool)
        chosen[list(kinds)] = True
        return np.flatnonzero(chosen[self.kind])


@dataclass(frozen=True)
class Dataset:
    """A dataset on disk.

    Attributes:
        name: one of `DATASETS`.
        root: the folder the user named.
        records: all images, sorted by path.
        notes: remarks about this copy: layout, missing files.
        skipped: images left out because of their names.
        lists: list file -> the two sides of the protocol it defines.
        groups: attribute -> values in the dataset's order, empty if it does not define one.
        attribute_file: the file with the attributes of identities, empty without one.
        undescribed: identities that this file lacks.
    """

    name: str
    root: str
    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    lists: Mapping[str, QueryGallery] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    attribute_file: str = ""
    undescribed: tuple[int, ...] = ()

    def split(self, *names: str) -> list[Record]:
        """Return the records of these splits, in order."""
        for name in names:
            require_known("split", name, custom.SPLITS)
        return [record for record in self.records if record.split in names]

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have images, train first."""
        present = {record.split for record in self.records}
        return tuple(name for name in custom.SPLITS if name in present)

    @cached_property
    def kinds(self) -> Kinds:
        """The kinds of its images, by which protocols choose their sides."""
        return Kinds(self.records)

    @property
    def schema(self) -> AttributeSchema:
        """The attributes in the dataset's order, or sorted if it has none."""
        return AttributeSchema(self.groups) if self.groups else AttributeSchema.collect(self.records)


def dataset_name(name: str) -> str:
    """Return a dataset's proper name for one in any case and punctuation.

    Example:
        >>> dataset_name("ag_reid_v2")
        'AG-ReID.v2'
        >>> dataset_name("cagro")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        agreid_plugin.errors.InputError: dataset 'cagro' unknown (did you mean CARGO?); known: AG-ReID, AG-ReID.v2, ...
    """
    by_plain = {normalize_name(known): known for known in DATASETS}
    if normalize_name(name) not in by_plain:
        raise unknown("dataset", name, DATASETS)
    return by_plain[normalize_name(name)]


_parsed: ContextVar[dict[str, Dataset] | None] = ContextVar("parsed", default=None)


@contextmanager
def parse_once() -> Iterator[None]:
    """Let `load` read each dataset once within the block, as a run does, whose files do not change."""
    before = _parsed.get()
    token = _parsed.set({} if before is None else before)
    try:
        yield
    finally:
        _parsed.reset(token)


def load(name: str, root: str | Path, *, skip_bad_names: bool = False, **options: Any) -> Dataset:
    """Read a dataset, or within `parse_once` return it as it was read before.

    Args:
        name: one of `DATASETS`, in any case and punctuation.
        root: its folder or the folder containing it.
        skip_bad_names: leave out images whose names are not the dataset's, with a note, instead of refusing.
        options: further arguments of the dataset's parser.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("0001_c1_01.png", "0001_c2_01.png", "0002_c2_01.png"):
        ...         Image.new("RGB", (8, 16)).save(Path(root, name))
        ...     found = load("folder", root, aerial_cameras=[1])
        >>> [(record.pid, record.camera, record.view.name) for record in found.records]
        [(1, 1, 'AERIAL'), (1, 2, 'GROUND'), (2, 2, 'GROUND')]
        >>> found.notes
        ('no folder train, val, query, gallery: all images are of split train',)
    """
    name, parsed = dataset_name(name), _parsed.get()
    if parsed is None:
        return _parse(name, root, skip_bad_names, options)
    key = repr((name, str(root), skip_bad_names, sorted(options.items())))
    if key not in parsed:
        parsed[key] = _parse(name, root, skip_bad_names, options)
    return parsed[key]


def _parse(name: str, root: str | Path, skip_bad_names: bool, options: Mapping[str, Any]) -> Dataset:
    source = DATASETS[name]
    known = list(inspect.signature(source.parse).parameters)[1:]
    for option in options:
        require_known(f"{name}: option", option, known)
    try:
        tree = Tree(name, root, source.folders, skip_bad_names)
        if tree.file and source.parse is not custom.parse_table:
            raise InputError(f"{tree.file} is a file; {name} needs its folder")
        records = sorted(source.parse(tree, **options), key=lambda record: record.path)
    except OSError as error:  # no permission, a disk that fails
        raise InputError(f"{error.filename or root} cannot be read: {error.strerror}") from None
    _check(name, root, records)
    if tree.skipped:
        tree.note(f"{len(tree.skipped)} images left out because of their names, first {tree.skipped[0]}")
    return Dataset(
        name,
        str(root),
        tuple(records),
        tuple(tree.notes),
        tuple(tree.skipped),
        dict(tree.lists),
        dict(tree.groups),
        tree.attribute_file,
        tree.undescribed,
    )


def _check(name: str, root: str | Path, records: list[Record]) -> None:
    if not records:
        raise InputError(f"{name}: no image is left under {root}")
    for record in records:
        for what, number in (("identity", record.pid), ("camera", record.camera)):
            if abs(number) > MAX_LABEL:
                raise InputError(f"{shorten(record.path)}: {what} {number} is no number up to {MAX_LABEL}")


def _kind_key(record: Record) -> tuple:
    tags = [record.tags.get(name) for name in FILTER_TAGS] if record.tags else ()
    return record.split, record.view, record.camera, record.platform, not record.captions, *tags
