"""Evaluation in the host's hooks: one pass over a test set's images, every protocol from it."""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch.distributed as dist
from fastreid.data.datasets import DATASET_REGISTRY
from fastreid.data.datasets.bases import ImageDataset
from fastreid.evaluation import DatasetEvaluator
from fastreid.utils import comm
from torch import Tensor, nn

from agreid_plugin.data.datasets import DATASETS, Dataset, Sides
from agreid_plugin.data.protocols import Protocol, protocol, select, unmatched, usable
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import (
    Calibration,
    Distances,
    FeatureDistances,
    FeatureSet,
    Metrics,
    calibrate_distances,
    evaluate_all,
    expand,
    records_to_extract,
    rerank,
    sides,
)
from agreid_plugin.hosts.fastreid.data import dataset_root, load_dataset, options_of, source_of
from agreid_plugin.hosts.fastreid.text_data import CAPTION_NUMBERS, reads_captions, tell_long
from agreid_plugin.types import Record

_logger = logging.getLogger("fastreid.evaluation")
MARKET_RULE = ("same_camera_same_id",)
VALIDATION = "T2I-val"
"""The protocol of a text set's validation split, which selects the best model."""


@dataclass(frozen=True)
class TestSet:
    """Images to extract once, and the protocols to compute from them, by name."""

    dataset: Dataset
    protocols: dict[str, Protocol]

    @cached_property
    def records(self) -> list[Record]:
        """Every image that one of the protocols asks for, once."""
        return records_to_extract(self.dataset, self.protocols.values())

    @property
    def has_text(self) -> bool:
        """Whether captions ask, and not images alone."""
        return any(each.kind == "text" for each in self.protocols.values())

    @property
    def selects_by(self) -> Protocol | None:
        """The protocol that selects the best model: never a text set's test split."""
        first = next(iter(self.protocols.values()))
        return self.protocols.get(VALIDATION, None if first.kind == "text" else first)


def test_sets(cfg) -> list[TestSet]:
    """Return what `DATASETS.TESTS` asks for, one entry a dataset however many of its protocols are named."""
    by_dataset: dict[str, list[str]] = {}
    for name in cfg.DATASETS.TESTS:
        by_dataset.setdefault(source_of(name) or name, []).append(name)
    return [_test_set(cfg, names) for names in by_dataset.values()]


def with_validation(test_set: TestSet) -> TestSet:
    """Add the protocol of a text set's validation split, if it has one, as training needs it."""
    dataset = test_set.dataset
    if not test_set.has_text:
        return test_set
    gallery = tuple(dataset.split("val"))
    query = tuple(record for record in gallery if record.captions)
    if not query:
        _logger.info("%s has no validation split: no model_best is chosen, the last epoch counts", dataset.name)
        return test_set
    _logger.info("%s: model_best is chosen by the %d images to validate with", dataset.name, len(gallery))
    protocol = Protocol(dataset.name, VALIDATION, list_file=VALIDATION, source="validation split", kind="text")
    dataset = replace(dataset, lists={**dataset.lists, VALIDATION: Sides(query, gallery)})
    return TestSet(dataset, {**test_set.protocols, VALIDATION: protocol})


def _test_set(cfg, names: Sequence[str]) -> TestSet:
    """Return the test set that some registered names of one dataset ask for together."""
    dataset = _read(cfg, names[0])
    chosen: dict[str, Protocol] = {}
    for name in names:
        chosen.update(choose(dataset, cfg.TEST.PROTOCOLS or _named_protocol(name)))
    for each in chosen.values():
        if each.kind == "text" and not reads_captions(cfg):
            raise InputError(f"{each} asks with sentences, which {cfg.MODEL.META_ARCHITECTURE} does not read")
        _check_comparison(cfg, each)
        _check(each, dataset)
    found = TestSet(dataset, chosen)
    if found.has_text:
        tell_long(cfg, found.records, "test")
    return found


def _read(cfg, name: str) -> Dataset:
    if source_of(name) is None:
        return _records_of(name, load_dataset(name, dataset_root(cfg), ["query", "gallery"]))
    return load_dataset(name, dataset_root(cfg), [], **options_of(cfg, name)).records


def _named_protocol(name: str) -> tuple[str, ...]:
    """Return the protocol that a registered name stands for; nothing if it is the whole dataset's."""
    factory = DATASET_REGISTRY.get(name)
    return () if source_of(name) is None or factory.is_whole else (factory.protocol.name,)


def choose(dataset: Dataset, names: Sequence[str] = ()) -> dict[str, Protocol]:
    """Return the protocols of these names, or all that the dataset allows."""
    if dataset.name not in DATASETS:  # one of the host's own
        rule = Protocol(dataset.name, "ALL", hide=MARKET_RULE, source="fast-reid's rule, that of Market-1501")
        return {"ALL": rule}
    if names:
        return {name: protocol(dataset.name, name) for name in names}
    allowed, refused = usable(dataset)
    for reason in refused.values():
        _logger.info("left out: %s", reason)
    if not allowed:
        raise InputError(f"no protocol of {dataset.name} can be computed: {'; '.join(refused.values())}")
    return allowed


def _check(protocol: Protocol, dataset: Dataset) -> None:
    """Say what is odd about a protocol's sides, and refuse before inference if no query has a match."""
    chosen = select(protocol, dataset)
    for note in chosen.notes:
        _logger.info(note)
    reasons = {reason: len(paths) for reason, paths in unmatched(protocol, chosen.query, chosen.gallery).items()}
    if sum(reasons.values()) == len(chosen.query):
        told = "; ".join(f"{count}: {reason}" for reason, count in reasons.items())
        raise InputError(
            f"{protocol}: none of its {len(chosen.query)} queries has a match among {len(chosen.gallery)} gallery "
            f"images ({told}); check the split and the camera numbers"
        )


def _check_comparison(cfg, protocol: Protocol) -> None:
    """Refuse comparisons that look for images like the query's for a query that is none."""
    for name in ("RERANK", "AQE") if protocol.kind == "text" else ():
        if cfg.TEST[name].ENABLED:
            raise InputError(f"{protocol} asks with sentences, which TEST.{name} cannot compare: set its ENABLED False")


def _records_of(name: str, dataset: ImageDataset) -> Dataset:
    """Return one of the host's own datasets as records."""
    records = [
        Record(path, int(pid), int(camera), split=split)
        for split in ("query", "gallery")
        for path, pid, camera, *_ in getattr(dataset, split)
    ]
    return Dataset(name, "", tuple(records))


def share_buffers(model: nn.Module) -> None:
    """Give every process the main one's running statistics, which checkpoints keep; the host leaves each its own."""
    if comm.get_world_size() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


class MultiProtocolEvaluator(DatasetEvaluator):
    """Collects features from all processes and computes every protocol of a test set from them.

    Attributes:
        test_set: what is evaluated.
        views: where the model has the views of test images from, `given` or `predicted`; empty if it uses none.
        features: the features of the last pass, on the main process.
        metrics: the numbers of the last pass, on the main process.
        numbers: the same as the host takes them, `A2G/mAP` -> percent.
    """

    def __init__(self, cfg, test_set: TestSet):
        self._cfg, self.test_set = cfg, test_set
        self.views = ""
        self.features: FeatureSet | None = None
        self.metrics: list[Metrics] = []
        self.numbers: OrderedDict[str, float] = OrderedDict()
        self.reset()

    def reset(self) -> None:
        """Forget what was collected."""
        self._collected: dict[str | int, np.ndarray] = {}

    def process(self, inputs: dict[str, Any], outputs: Tensor) -> None:
        """Keep a batch's features by image, or by the number of the caption."""
        features = outputs.detach().float().cpu().numpy()
        keys = inputs[CAPTION_NUMBERS] if CAPTION_NUMBERS in inputs else inputs["img_paths"]
        self._collected.update(zip(keys, features, strict=True))

    def evaluate(self) -> OrderedDict[str, float]:
        """Return the numbers on the main process, as `A2G/mAP`, nothing on the others."""
        gathered = comm.gather(self._collected, dst=0)
        self.reset()
        if not comm.is_main_process():
            return OrderedDict()
        by_key = dict(itertools.chain.from_iterable(part.items() for part in gathered))
        records, protocols = self.test_set.records, self.test_set.protocols.values()
        images = np.stack([by_key.pop(record.path) for record in records])
        captions = (np.stack([by_key[number] for number in range(len(by_key))]),) if self.test_set.has_text else ()
        self.features = FeatureSet(self.test_set.dataset, records, (images,), captions, self.views)
        self.metrics = compute(self._cfg, self.features, protocols)
        numbers = {name: entry.as_dict() for name, entry in zip(self.test_set.protocols, self.metrics, strict=True)}
        if self._cfg.TEST.ROC.ENABLED:
            for name, entry in self.test_set.protocols.items():
                numbers[name].update(self._true_positive_rates(entry))
        flat = ((f"{name}/{key}", value) for name, row in numbers.items() for key, value in row.items())
        self.numbers = OrderedDict(flat)
        return self.numbers

    def _true_positive_rates(self, protocol: Protocol) -> dict[str, float]:
        try:
            found = thresholds(self._cfg, self.features, protocol)
        except InputError as error:  # too few pairs for a rate are no reason to end a training
            _logger.warning("%s", error)
            return {}
        return {
            f"{direction} TPR@FPR={point.fpr:g}": 100 * point.tpr
            for direction, entry in found.directions.items()
            for point in entry.points
        }


def compute(cfg, features: FeatureSet, protocols: Iterable[Protocol]) -> list[Metrics]:
    """Compute protocols from features, with the distances that `TEST` asks for."""
    protocols = list(protocols)
    for each in protocols:
        _check_comparison(cfg, each)
    return list(evaluate_all(features, protocols, distances=partial(_distances, cfg), memory=cfg.TEST.MEMORY).values())


def _distances(cfg, query: np.ndarray, gallery: np.ndarray) -> Distances:
    if cfg.TEST.AQE.ENABLED:
        options = cfg.TEST.AQE
        query, gallery = expand(query, gallery, k=options.QE_K, alpha=options.ALPHA, times=options.QE_TIME)
    if cfg.TEST.RERANK.ENABLED:
        options = cfg.TEST.RERANK
        return rerank(query, gallery, metric=cfg.TEST.METRIC, k1=options.K1, k2=options.K2, weight=options.LAMBDA)
    return FeatureDistances([(query, gallery)], cfg.TEST.METRIC)


def thresholds(cfg, features: FeatureSet, protocol: Protocol) -> Calibration:
    """Choose same-person thresholds under a protocol."""
    query, gallery, *metas = sides(features, protocol)
    return calibrate_distances(_distances(cfg, query, gallery), *metas, protocol, memory=cfg.TEST.MEMORY)
