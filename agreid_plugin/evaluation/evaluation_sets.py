"""Evaluation sets: a dataset's test images, each once, and the protocols computed from their features."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from agreid_plugin.data.datasets import DATASETS, Dataset, QueryGallery
from agreid_plugin.data.protocols import Protocol, find_unmatched, protocol, select, usable_protocols
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.features import FeatureSet
from agreid_plugin.evaluation.metrics import Metrics
from agreid_plugin.evaluation.multi_protocol import find_covered, list_records
from agreid_plugin.types import Record

_logger = logging.getLogger(__name__)

MARKET_RULE = ("same_camera_same_id",)
VALIDATION = "T2I-val"
"""The protocol of a text set's validation split, which selects the best model."""


@dataclass(frozen=True)
class EvaluationSet:
    """Images to extract once, and the protocols to compute from them, by name."""

    dataset: Dataset
    protocols: dict[str, Protocol]

    @cached_property
    def records(self) -> list[Record]:
        """Every image that one of the protocols asks for, once."""
        return list_records(self.dataset, self.protocols.values())

    @property
    def has_text(self) -> bool:
        """Whether captions are queries of one of the protocols."""
        return any(each.kind == "text" for each in self.protocols.values())

    @property
    def selection_protocol(self) -> Protocol | None:
        """The protocol that selects the best model: never a text set's test split."""
        first = next(iter(self.protocols.values()))
        return self.protocols.get(VALIDATION, None if first.kind == "text" else first)

    def selection_score(self, metrics: Iterable[Metrics]) -> float | None:
        """Return the mean of mAP and Rank-1 of `selection_protocol`, which selects the best model; None without one."""
        name = str(self.selection_protocol) if self.selection_protocol else None
        chosen = next((entry for entry in metrics if entry.protocol == name), None)
        return None if chosen is None else (chosen["mAP"] + chosen["Rank-1"]) / 2

    def feature_set(
        self, by_key: Mapping[str | int, np.ndarray], views: str = "", unreadable: Collection[str] = ()
    ) -> FeatureSet:
        """Put the features of single images and captions, (D,) each, in the order of the records.

        Args:
            by_key: the features of images by path and, if captions ask, of captions by their number when those of all
                records are put in a row.
            views: where the model has the views of test images from, `given` or `predicted`; empty if it uses none.
            unreadable: images that could not be read. They are neither query nor gallery, and the set says how many
                they are; what `by_key` has of them is not theirs.

        Raises:
            InputError: an image or a caption has no feature.
        """
        records = [record for record in self.records if record.path not in unreadable]
        captions = self._caption_numbers(unreadable) if self.has_text else []
        wanted = [*(record.path for record in records), *captions]
        missing = [key for key in wanted if key not in by_key]
        if missing:
            count = f"{len(missing)} of {len(wanted)}"
            raise InputError(f"{self.dataset.name}: {count} images and captions have no feature, first {missing[0]}")
        if not records:
            raise InputError(f"{self.dataset.name}: none of {len(self.records)} test images can be read")
        images = np.stack([by_key[record.path] for record in records])
        sentences = (np.stack([by_key[number] for number in captions]),) if captions else ()
        dataset = _without(self.dataset, unreadable)
        return FeatureSet(dataset, records, (images,), sentences, views, len(self.records) - len(records))

    def _caption_numbers(self, unreadable: Collection[str]) -> list[int]:
        """Return the numbers of the captions of all images that can be read."""
        paths = [record.path for record in self.records for _ in record.captions]
        return [number for number, path in enumerate(paths) if path not in unreadable]


def _without(dataset: Dataset, unreadable: Collection[str]) -> Dataset:
    """Return a dataset without some images; the dataset itself if there are none."""
    if not unreadable:
        return dataset

    def left(records: Sequence[Record]) -> tuple[Record, ...]:
        return tuple(record for record in records if record.path not in unreadable)

    lists = {name: QueryGallery(left(sides.query), left(sides.gallery)) for name, sides in dataset.lists.items()}
    return replace(dataset, records=left(dataset.records), lists=lists)


def choose_protocols(dataset: Dataset, names: Sequence[str] = ()) -> dict[str, Protocol]:
    """Return the protocols of these names, or all that the dataset allows.

    A host's own dataset has only `ALL`; other names are ignored with a warning.
    """
    if dataset.name not in DATASETS:
        if set(names) - {"ALL"}:
            _logger.warning("%s has only the protocol ALL; asked for: %s", dataset.name, ", ".join(names))
        rule = Protocol(dataset.name, "ALL", hide=MARKET_RULE, source="fast-reid's rule, that of Market-1501")
        return {"ALL": rule}
    if names:
        return {name: protocol(dataset.name, name) for name in names}
    allowed, refused = usable_protocols(dataset)
    for reason in refused.values():
        _logger.info("left out: %s", reason)
    if not allowed:
        raise InputError(f"no protocol of {dataset.name} can be computed: {'; '.join(refused.values())}")
    return allowed


def computable(features: FeatureSet, names: Sequence[str], logger: logging.Logger = _logger) -> list[Protocol]:
    """Return the protocols of these names, or all that the features cover."""
    chosen = choose_protocols(features.dataset, names)
    if names or features.dataset.name not in DATASETS:
        return list(chosen.values())
    found = find_covered(features)
    left_out = set(chosen) - {protocol.name for protocol in found}
    if left_out:
        logger.info("left out, features were not extracted for them: %s", ", ".join(sorted(left_out)))
    if not found:
        raise InputError(f"the features cover no protocol of {features.dataset.name}; extract them again")
    return found


def add_validation(test_set: EvaluationSet) -> EvaluationSet:
    """Add the protocol of a text set's validation split, if it has one, as training needs it."""
    dataset = test_set.dataset
    if not test_set.has_text:
        return test_set
    gallery = tuple(dataset.split("val"))
    query = tuple(record for record in gallery if record.captions)
    if not query:
        _logger.info("%s has no validation split: no best model is chosen, the last epoch counts", dataset.name)
        return test_set
    _logger.info("%s: the best model is chosen by the %d images to validate with", dataset.name, len(gallery))
    validation = Protocol(dataset.name, VALIDATION, list_file=VALIDATION, source="validation split", kind="text")
    dataset = replace(dataset, lists={**dataset.lists, VALIDATION: QueryGallery(query, gallery)})
    return EvaluationSet(dataset, {**test_set.protocols, VALIDATION: validation})


def check_query_gallery(protocol: Protocol, dataset: Dataset) -> None:
    """Log what is odd about a protocol's queries and gallery; refuse it before inference if no query has a match."""
    chosen = select(protocol, dataset)
    for note in chosen.notes:
        _logger.info(note)
    reasons = {reason: len(paths) for reason, paths in find_unmatched(protocol, chosen.query, chosen.gallery).items()}
    if sum(reasons.values()) == len(chosen.query):
        counts = "; ".join(f"{count}: {reason}" for reason, count in reasons.items())
        raise InputError(
            f"{protocol}: none of its {len(chosen.query)} queries has a match among {len(chosen.gallery)} gallery "
            f"images ({counts}); check the split and the camera numbers"
        )
