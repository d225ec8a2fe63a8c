"""Feature sets: extracted features with the records of their images, in memory and in one npz file.

The file holds plain arrays and JSON, nothing that runs code when it is read.

Shapes: N images, C captions, D width.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from agreid_plugin.data.atomic_write import atomic_write, write_error_context
from agreid_plugin.data.datasets import Dataset, QueryGallery
from agreid_plugin.data.files import MAX_LABEL, parse_json_bytes, read_arrays, shorten
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.metrics import check_views
from agreid_plugin.evaluation.validation import as_features, check_lengths
from agreid_plugin.types import UNKNOWN, Record, View

T = TypeVar("T")


@dataclass(frozen=True)
class FeatureSet:
    """Features of a dataset's test images.

    Attributes:
        dataset: the dataset, of which protocols choose their queries and gallery.
        records: N images, each path once.
        images: (N, D) arrays, one for each kind of feature: the global one first, local ones behind it.
        captions: (C, D) arrays, one for each kind; one row for each caption of each record, in the records' order.
        views: whether the model was `given` views, `predicted` them or, empty, uses none.
        unreadable: test images that could not be read, and are neither here nor in the dataset.
    """

    dataset: Dataset
    records: Sequence[Record]
    images: tuple[np.ndarray, ...]
    captions: tuple[np.ndarray, ...] = ()
    views: str = ""
    unreadable: int = 0

    def __post_init__(self) -> None:
        paths = [record.path for record in self.records]
        captions = sum(len(record.captions) for record in self.records)
        for array in self.images:
            check_lengths("images", len(paths), features=len(array))
            as_features(array, "image", paths)
        for array in self.captions:
            check_lengths("captions", captions, features=len(array))
            as_features(array, "caption")
        if len(self._places) != len(paths):
            raise InputError(f"{len(paths)} features for {len(self._places)} different images")

    def rows(self, records: Iterable[Record]) -> np.ndarray:
        """Return the rows of some records in `images`."""
        records = list(records)
        rows = np.array([self._places.get(record.path, -1) for record in records], dtype=np.int64)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            first = records[missing[0]].path
            raise InputError(f"{len(missing)} of {len(records)} images have no feature, first {first}")
        return rows

    def caption_rows(self, records: Iterable[Record]) -> np.ndarray:
        """Return the rows in `captions` of all captions of some records, one record after the other."""
        counts = [len(record.captions) for record in self.records]
        ends = np.cumsum(counts)
        rows = [np.arange(ends[place] - counts[place], ends[place]) for place in self.rows(records)]
        return np.concatenate([np.empty(0, dtype=np.int64), *rows])

    @cached_property
    def _places(self) -> dict[str, int]:
        return {record.path: place for place, record in enumerate(self.records)}


def save_features(path: str | Path, features: FeatureSet) -> None:
    """Write features, and the records that protocols choose queries and gallery from."""
    about = {
        "dataset": features.dataset.name,
        "root": features.dataset.root,
        "views": features.views,
        "unreadable": features.unreadable,
        "features": [_record_as_json(record) for record in features.records],
        # All test images, also those without a feature: a protocol that asks for them must be refused, not computed
        # from the others under its name.
        "records": [_record_as_json(record) for record in features.dataset.records if record.split != "train"],
        "lists": {
            name: {side: [_record_as_json(record) for record in getattr(sides, side)] for side in ("query", "gallery")}
            for name, sides in features.dataset.lists.items()
        },
    }
    text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    with write_error_context(path), atomic_write(Path(path)) as draft, draft.open("wb") as file:
        np.savez(
            file, about=text, **_name_arrays("image", features.images), **_name_arrays("caption", features.captions)
        )


def load_features(path: str | Path) -> FeatureSet:
    """Read what `save_features` wrote.

    Example:
        >>> import numpy as np
        >>> from tempfile import TemporaryDirectory
        >>> from agreid_plugin.data.datasets import Dataset
        >>> from agreid_plugin.types import Record
        >>> records = (Record("a.jpg", pid=1, split="query"), Record("b.jpg", pid=1, split="gallery"))
        >>> features = FeatureSet(Dataset("CARGO", "", records), records, (np.eye(2, dtype=np.float32),))
        >>> with TemporaryDirectory() as folder:
        ...     save_features(f"{folder}/features.npz", features)
        ...     again = load_features(f"{folder}/features.npz")
        >>> again.records[1].path, again.images[0][1].tolist()
        ('b.jpg', [0.0, 1.0])
    """
    arrays = read_arrays(path, "features saved by this package")
    try:
        about = parse_json_bytes(arrays.pop("about"), "the records of its images")
        features = FeatureSet(
            _read_dataset(about),
            [_read_record(**entry) for entry in about["features"]],
            images=_collect_arrays("image", arrays),
            captions=_collect_arrays("caption", arrays),
            views=about["views"],
            unreadable=_require_type(int, about.get("unreadable", 0)),  # not in files of earlier versions
        )
        check_views(features.views)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = str(error) if isinstance(error, InputError) else shorten(repr(error))
        raise InputError(f"{path}: not features saved by this package: {reason}") from error
    if not features.images:
        raise InputError(f"{path}: no features of images in it")
    return features


def _read_dataset(about: Mapping[str, Any]) -> Dataset:
    lists = {
        name: QueryGallery(
            **{side: tuple(_read_record(**entry) for entry in entries) for side, entries in sides.items()}
        )
        for name, sides in about["lists"].items()
    }
    records = tuple(_read_record(**entry) for entry in about["records"])
    return Dataset(_require_type(str, about["dataset"]), _require_type(str, about["root"]), records, lists=lists)


def _record_as_json(record: Record) -> dict[str, Any]:
    return {name: value for name, value in asdict(record).items() if value not in (None, "", (), {})}


def _read_record(
    path: str,
    pid: int,
    camera: int = UNKNOWN,
    view: int | None = None,
    captions: Sequence[str] = (),
    attributes: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    **words: str,
) -> Record:
    for number in (pid, camera):
        if abs(_require_type(int, number)) > MAX_LABEL:
            raise ValueError(f"{number} is no label")
    return Record(
        _require_type(str, path),
        pid,
        camera,
        None if view is None else View(view),
        attributes=_read_texts(attributes or {}),
        captions=tuple(_require_type(str, caption) for caption in _require_type(list, captions or [])),
        tags=_read_texts(tags or {}),
        **_read_texts(words),
    )


def _read_texts(values: Mapping[str, str]) -> dict[str, str]:
    return {name: _require_type(str, value) for name, value in _require_type(dict, values).items()}


def _require_type(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise TypeError(f"{shorten(repr(value))} where a {kind.__name__} should be")
    return value


def _name_arrays(kind: str, arrays: Sequence[np.ndarray]) -> dict[str, Any]:
    return {f"{kind}_{number}": np.asarray(array, dtype=np.float32) for number, array in enumerate(arrays)}


def _collect_arrays(kind: str, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    count = sum(name.startswith(f"{kind}_") for name in arrays)
    return tuple(arrays[f"{kind}_{number}"] for number in range(count))
