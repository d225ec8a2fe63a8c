"""Our datasets and protocols in the host's registry.

`CARGO` is a dataset with its first protocol, `CARGO_A2G` the same images under another: each works wherever the host
takes a dataset's name, and joins others for training.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Sequence
from typing import Any

from fastreid.data.datasets import DATASET_REGISTRY
from fastreid.data.datasets.bases import ImageDataset

from agreid_plugin.data.check import fingerprint
from agreid_plugin.data.datasets import DATASETS, load
from agreid_plugin.data.datasets.locations import default_root
from agreid_plugin.data.protocols import Protocol, expressible_by_camera, host_camera, protocols, select
from agreid_plugin.errors import InputError, first_line, unknown
from agreid_plugin.hosts.fastreid.config.loading import Key, declare
from agreid_plugin.synth import on_demand
from agreid_plugin.types import Record

_logger = logging.getLogger("fastreid.data")


class RecordItem(tuple):
    """The (path, identity, camera) that the host knows, with the whole record behind it.

    A tuple of exactly three, because the host's samplers and its joining of splits unpack three.
    """

    record: Record

    def __new__(cls, path: str, pid: str | int, camera: str | int, record: Record):
        """Make the tuple and keep the record."""
        item = super().__new__(cls, (path, pid, camera))
        item.record = record
        return item

    def __getnewargs__(self):
        return (*self, self.record)


class RecordDataset(ImageDataset):
    """A dataset of ours under one protocol, as the host reads datasets.

    Its query and gallery are for fast-reid's evaluator. A protocol that the evaluator cannot express through
    cameras is refused there, instead of being computed by other rules; our evaluator uses the records.

    Args:
        root: the dataset's folder, or the one that holds it.
        skip_bad_names: leave out images whose names are not the dataset's.
        options: further arguments of the dataset's parser.
        kwargs: the host's custom arguments.
    """

    protocol: Protocol
    has_all_protocols: bool
    """Whether the name stands for the dataset with all its protocols, and not for one protocol."""

    def __init__(
        self,
        root: str = "datasets",
        skip_bad_names: bool = False,
        options: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        self.records = load(self.protocol.dataset, root, skip_bad_names=skip_bad_names, **(options or {}))
        self._selection = None
        super().__init__(
            self._train_items, lambda: self._list_side("query"), lambda: self._list_side("gallery"), **kwargs
        )

    @property
    def fingerprint(self) -> str:
        """Fingerprint of this copy of the dataset."""
        return fingerprint(self.records)

    def _train_items(self) -> list[RecordItem]:
        return self._label_items(self.records.split("train"))

    def _label_items(self, records: Sequence[Record], prefix: str = "") -> list[RecordItem]:
        # The host joins datasets by giving identities and cameras the dataset's name.
        name = f"{self.protocol.dataset}_{prefix}"
        return [RecordItem(r.path, f"{name}{r.pid}", f"{name}{r.camera}", r) for r in records]

    def _list_side(self, side: str) -> list[RecordItem]:
        if not expressible_by_camera(self.protocol):
            raise InputError(
                f"{self.protocol} cannot be computed by fast-reid's own evaluator, which hides nothing but an "
                "identity's images of the same camera; 'fastreid train' and 'fastreid eval' bring one that can"
            )
        if self._selection is None:
            self._selection = select(self.protocol, self.records)
        records = getattr(self._selection, side)
        return [RecordItem(r.path, r.pid, host_camera(self.protocol, r), r) for r in records]

    def combine_all(self) -> None:
        """Add query and gallery to the training images, as the host does, without losing the records."""
        self._train = self.train + self._label_items(self.records.split("query", "gallery", "test"), "test_")


def dataset_root(cfg) -> str:
    """Return the folder that holds the datasets."""
    return cfg.DATASETS.ROOT or default_root()


def read_dataset(cfg, name: str, parts: Sequence[str] = (), **kwargs: Any) -> ImageDataset:
    """Read a registered dataset from the folder and with the options of a configuration, see `load_dataset`."""
    return load_dataset(name, dataset_root(cfg), parts, **get_parser_options(cfg, name), **kwargs)


def load_dataset(name: str, root: str, parts: Sequence[str], **kwargs: Any) -> ImageDataset:
    """Build a registered dataset and read its `parts` (train, query, gallery), each sorted by path."""
    try:
        build = DATASET_REGISTRY.get(name)
    except KeyError:
        raise unknown("dataset", name, DATASET_REGISTRY._obj_map) from None
    try:
        with warnings.catch_warnings(record=True) as remarks:
            dataset = build(root=root, **kwargs)
            for part in parts:
                setattr(dataset, f"_{part}", sorted(getattr(dataset, part), key=lambda item: str(item[0])))
    except InputError:
        raise
    except (AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        # The host's readers fail in these ways on a missing folder or an unexpected file name.
        raise InputError(
            f"dataset {name} cannot be read under {os.path.abspath(root)}: {first_line(error)}; "
            "set DATASETS.ROOT or FASTREID_DATASETS to the folder that holds it"
        ) from error
    for remark in remarks:
        _logger.warning("dataset %s: %s", name, remark.message)
    for part in parts:
        if not getattr(dataset, part):
            raise InputError(f"dataset {name} under {os.path.abspath(root)} has no {part} images")
    return dataset


def get_source(name: str) -> str | None:
    """Return the name of our dataset behind a registered name, None for a dataset of the host."""
    factory = DATASET_REGISTRY._obj_map.get(name)
    return factory.protocol.dataset if isinstance(factory, type) and issubclass(factory, RecordDataset) else None


def get_dataset_name(name: str) -> str:
    """Return the name of the dataset behind a registered name; a dataset of the host has that name."""
    return get_source(name) or name


def get_parser_options(cfg, name: str) -> dict[str, Any]:
    """Return the arguments of our dataset from the configuration besides its root; none for a dataset of the host."""
    source, custom = get_source(name), cfg.DATASETS.OWN
    if source is None:
        return {}
    options: dict[str, Any] = {}
    if source == "CP2108":
        options["attribute_level"] = cfg.DATASETS.ATTRIBUTE_LEVEL
    if source in ("csv", "folder"):
        options["aerial_cameras"] = tuple(custom.AERIAL_CAMERAS)
    if source == "folder":
        options |= {"pattern": custom.PATTERN} if custom.PATTERN else {}
        options["identity_folders"] = custom.IDENTITY_FOLDERS
    return {"skip_bad_names": cfg.DATASETS.SKIP_BAD_NAMES, "options": options}


def host_name(dataset: str, protocol: str = "") -> str:
    """Return the name of a dataset, or of a dataset under a protocol, in the host's registry."""
    return re.sub(r"\W+", "_", f"{dataset}_{protocol}" if protocol else dataset)


def register_dataset(dataset: str) -> None:
    """Put a dataset into the host's registry: with all its protocols, and under each of them."""
    found = protocols(dataset)
    _register(
        host_name(dataset), next(iter(found.values())), f"{dataset}: {DATASETS[dataset].about}", has_all_protocols=True
    )
    for name, protocol in found.items():
        _register(host_name(dataset, name), protocol, f"{protocol}: {protocol.source}", has_all_protocols=False)


def _register(name: str, protocol: Protocol, doc: str, has_all_protocols: bool) -> None:
    members = {"protocol": protocol, "has_all_protocols": has_all_protocols, "__doc__": doc}
    DATASET_REGISTRY.register(type(name, (RecordDataset,), members))


for _dataset in DATASETS:
    register_dataset(_dataset)


KEYS = (
    Key("DATASETS.AGSYNTH.IDS", 0, "Make AG-Synth with as many people if the dataset is missing; 0: never."),
    Key("DATASETS.AGSYNTH.IMAGES_PER_ID", 12, "AG-Synth: pictures of each person, half of them from the air."),
    Key("DATASETS.AGSYNTH.SIZE", [256, 128], "AG-Synth: height and width of a picture."),
    Key("DATASETS.AGSYNTH.SEED", 0, "AG-Synth: another seed, other people and pictures."),
    Key("DATASETS.AGSYNTH.WORLD", "easy", "AG-Synth: easy, or gap: sky and street differ and people look alike."),
)
declare(KEYS)


def make_missing(cfg) -> None:
    """Make every dataset of the configuration that is missing, if it asks for AG-Synth."""
    wanted = cfg.DATASETS.AGSYNTH
    on_demand.make_missing(
        dataset_root(cfg),
        _sources(cfg),
        ids=wanted.IDS,
        images_per_id=wanted.IMAGES_PER_ID,
        size=wanted.SIZE,
        seed=wanted.SEED,
        world=wanted.WORLD,
    )


def is_made_first(cfg) -> bool:
    """Return whether `make_missing` has something to make."""
    return bool(cfg.DATASETS.AGSYNTH.IDS) and on_demand.is_missing(dataset_root(cfg), _sources(cfg))


def _sources(cfg) -> set[str]:
    return {get_dataset_name(name) for name in (*cfg.DATASETS.NAMES, *cfg.DATASETS.TESTS)}
