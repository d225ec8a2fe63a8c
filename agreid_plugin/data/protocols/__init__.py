"""Evaluation protocols by name, those that a copy of a dataset allows, and their form for camera-only evaluators."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from agreid_plugin.data.datasets import DATASETS, Dataset, Source, dataset_name
from agreid_plugin.data.datasets.tree import normalize_name
from agreid_plugin.data.protocols.hiding_rules import RULES, Meta, hides, mask
from agreid_plugin.data.protocols.parser import Protocol, read_protocols
from agreid_plugin.data.protocols.selection import Selection, find_unmatched, select
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.types import UNKNOWN, Record

__all__ = [
    "RULES",
    "Meta",
    "Protocol",
    "Selection",
    "add_dataset",
    "expressible_by_camera",
    "find_unmatched",
    "hidden_mask",
    "host_camera",
    "is_hidden",
    "protocol",
    "protocols",
    "read_protocols",
    "select",
    "usable_protocols",
]

# Names that papers use for any of three tasks; without punctuation and case.
AMBIGUOUS = frozenset({"ag", "ga", "agag", "aerialground", "agreid", "crossview"})
THREE_TASKS = {
    "A2G": "aerial queries, ground gallery, as SeCap and ViSA",
    "AG-both": "both directions, same-view images of others stay, as VDT",
    "AG-cross": "both directions, the query's view is hidden, as SVPR-ReID",
}
# Camera numbers that no camera has, one a side: in an evaluator that hides same identity and camera they hide nothing.
NO_CAMERA = {"query": -2, "gallery": -3}


def add_dataset(name: str, source: Source, path: str | Path) -> None:
    """Register a custom dataset: its reader and its protocols.

    Args:
        name: its name in protocols and configurations.
        source: its reader.
        path: a file of protocols, which has the dataset and no other.

    Raises:
        InputError: the name is taken, or the file is no such file.
    """
    if name in DATASETS:
        raise InputError(f"dataset {name} is there already ({DATASETS[name].about}): choose another name")
    found = read_protocols(path)
    if set(found) != {name}:
        raise InputError(f"{path}: expected protocols of {name} only, found {', '.join(found) or 'none'}")
    _load_protocols().update(found)
    DATASETS[name] = source


@cache
def _load_protocols() -> dict[str, dict[str, Protocol]]:
    found: dict[str, dict[str, Protocol]] = {}
    for path in sorted(Path(__file__).parent.glob("*.yml")):
        found.update(read_protocols(path))
    return found


def protocols(dataset: str | Dataset) -> dict[str, Protocol]:
    """Return a dataset's protocols by name."""
    name = dataset.name if isinstance(dataset, Dataset) else dataset_name(dataset)
    return dict(_load_protocols()[name])


def protocol(dataset: str, name: str = "") -> Protocol:
    """Return one protocol, as `protocol("CARGO", "A2G")` or by its full name, `protocol("CARGO/A2G")`.

    Example:
        >>> task = protocol("CARGO", "A2G")
        >>> task.query, task.gallery, task.hide
        ({'view': ('aerial',)}, {'view': ('ground',)}, ())
        >>> protocol("CARGO/AG-both").hide
        ('same_view_same_id',)
        >>> protocol("CARGO", "A<->G")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        agreid_plugin.errors.InputError: protocol 'A<->G' names three tasks in the literature; CARGO has A2G (...
    """
    if not name:
        dataset, _, name = dataset.partition("/")
    known = protocols(dataset)
    name = name.removeprefix(f"{dataset_name(dataset)}/")
    if name in known:
        return known[name]
    if normalize_name(name).removeprefix(normalize_name(dataset)) in AMBIGUOUS:
        tasks = [f"{task} ({what})" for task, what in THREE_TASKS.items() if task in known]
        raise InputError(
            f"protocol {name!r} names three tasks in the literature; "
            f"{dataset} has {'; '.join(tasks) or 'none of them, but ' + ', '.join(known)}: choose by name"
        )
    raise unknown(f"{dataset_name(dataset)} protocol", name, known)


def usable_protocols(dataset: Dataset) -> tuple[dict[str, Protocol], dict[str, str]]:
    """Return the protocols that this copy of a dataset allows, and name -> reason for the others."""
    allowed, refused = {}, {}
    for name, candidate in protocols(dataset).items():
        try:
            select(candidate, dataset)
            allowed[name] = candidate
        except InputError as error:
            refused[name] = str(error)
    return allowed, refused


def is_hidden(protocol: Protocol, query: Record, gallery: Record) -> bool:
    """Return whether the protocol hides a gallery image from a query. Unknown camera, view or time never hides.

    Example:
        >>> from agreid_plugin.types import View
        >>> query = Record("1.jpg", pid=7, camera=1, view=View.AERIAL)
        >>> another_drone = Record("2.jpg", pid=7, camera=2, view=View.AERIAL)
        >>> is_hidden(protocol("CARGO/ALL"), query, another_drone)  # hides one camera's images of a person
        False
        >>> is_hidden(protocol("CARGO/AG-both"), query, another_drone)  # hides one view's
        True
    """
    return any(hides(rule, query, gallery) for rule in protocol.hide)


def hidden_mask(protocol: Protocol, query: Meta, gallery: Meta) -> np.ndarray:
    """Return (Q, G), True where the protocol hides the gallery image from the query: `is_hidden` for many at once."""
    return mask(protocol.hide, query, gallery)


def expressible_by_camera(protocol: Protocol) -> bool:
    """Return whether an evaluator that hides only same identity and camera can run the protocol."""
    single = protocol.hide in ((), ("same_camera_same_id",), ("same_view_same_id",))
    return single and protocol.kind == "image"


def host_camera(protocol: Protocol, record: Record) -> int | None:
    """Return the camera number with which such an evaluator hides exactly what the protocol hides.

    None if no camera could: rules that hide other identities too need an evaluator that knows them.
    """
    if not expressible_by_camera(protocol):
        return None
    if protocol.hide == ("same_camera_same_id",) and record.camera != UNKNOWN:
        return record.camera
    if protocol.hide == ("same_view_same_id",) and record.view is not None:
        return int(record.view)
    return NO_CAMERA.get(record.split, record.camera)
