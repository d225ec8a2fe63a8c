"""Evaluator of fast-reid: one pass over a test set's images, every protocol from it."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from fastreid.data.datasets import DATASET_REGISTRY
from fastreid.data.datasets.bases import ImageDataset
from fastreid.evaluation import DatasetEvaluator
from fastreid.utils import comm
from torch import Tensor, nn

from agreid_plugin.data.bad_images import BadImages, log_bad_images
from agreid_plugin.data.datasets import Dataset
from agreid_plugin.data.protocols import Protocol
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.collector import Evaluation, FeatureCollector, evaluate_parts
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet, check_query_gallery, choose_protocols
from agreid_plugin.evaluation.ranking_options import Expansion, RankingOptions, Reranking
from agreid_plugin.hosts.fastreid.data.datasets import get_dataset_name, get_source, read_dataset
from agreid_plugin.hosts.fastreid.data.text import CAPTION_NUMBERS, log_long_captions, reads_captions
from agreid_plugin.hosts.fastreid.engine.distributed import share
from agreid_plugin.types import Record

_logger = logging.getLogger("fastreid.evaluation")


def test_sets(cfg) -> list[EvaluationSet]:
    """Return what `DATASETS.TESTS` asks for, one entry a dataset however many of its protocols are named."""
    by_dataset: dict[str, list[str]] = {}
    for name in cfg.DATASETS.TESTS:
        by_dataset.setdefault(get_dataset_name(name), []).append(name)
    return [_test_set(cfg, names) for names in by_dataset.values()]


def _test_set(cfg, names: Sequence[str]) -> EvaluationSet:
    """Return the test set that some registered names of one dataset ask for together."""
    dataset = _read(cfg, names[0])
    chosen: dict[str, Protocol] = {}
    for name in names:
        chosen.update(choose_protocols(dataset, cfg.TEST.PROTOCOLS or _named_protocol(name)))
    for each in chosen.values():
        if each.kind == "text" and not reads_captions(cfg):
            raise InputError(f"{each} asks with sentences, which {cfg.MODEL.META_ARCHITECTURE} does not read")
        comparison(cfg).check(each)
        check_query_gallery(each, dataset)
    found = EvaluationSet(dataset, chosen)
    if found.has_text:
        log_long_captions(cfg, found.records, "test")
    return found


def _read(cfg, name: str) -> Dataset:
    if get_source(name) is None:
        return _convert_dataset(name, read_dataset(cfg, name, ["query", "gallery"]))
    return read_dataset(cfg, name).records


def _named_protocol(name: str) -> tuple[str, ...]:
    """Return the protocol that a registered name stands for; nothing if it is the whole dataset's."""
    factory = DATASET_REGISTRY.get(name)
    return () if get_source(name) is None or factory.has_all_protocols else (factory.protocol.name,)


def _convert_dataset(name: str, dataset: ImageDataset) -> Dataset:
    """Return a dataset of the host as records."""
    records = [
        Record(path, int(pid), int(camera), split=split)
        for split in ("query", "gallery")
        for path, pid, camera, *_ in getattr(dataset, split)
    ]
    return Dataset(name, "", tuple(records))


def comparison(cfg) -> RankingOptions:
    """Return how `TEST` wants features compared."""
    again, mean = cfg.TEST.RERANK, cfg.TEST.AQE
    return RankingOptions(
        cfg.TEST.METRIC,
        Reranking(again.K1, again.K2, again.LAMBDA) if again.ENABLED else None,
        Expansion(mean.QE_K, mean.ALPHA, mean.QE_TIME) if mean.ENABLED else None,
        cfg.TEST.MEMORY,
        keys=("TEST.RERANK.ENABLED", "TEST.AQE.ENABLED"),
    )


def share_buffers(model: nn.Module) -> None:
    """Give every process the main one's running statistics, which checkpoints keep; the host leaves each its own."""
    share(model.buffers())


class MultiProtocolEvaluator(DatasetEvaluator):
    """Collects features from all processes and computes every protocol of a test set from them.

    Attributes:
        test_set: what is evaluated.
        views: where the model has the views of test images from, `given` or `predicted`; empty if it uses none.
        bad_images: what the loader's dataset passed over, whose features are dropped.
        evaluation: features and numbers of the last pass, on the main process.
        numbers: the numbers as the host takes them, `A2G/mAP` -> percent.
    """

    def __init__(self, cfg, test_set: EvaluationSet):
        self._cfg, self.test_set = cfg, test_set
        self.views = ""
        self.bad_images: BadImages | None = None
        self.evaluation: Evaluation | None = None
        self.numbers: OrderedDict[str, float] = OrderedDict()
        self._collector = FeatureCollector()

    def reset(self) -> None:
        """Forget what was collected."""
        self._collector.reset()

    def process(self, inputs: dict[str, Any], outputs: Tensor) -> None:
        """Keep a batch's features by image, or by the number of the caption."""
        features = outputs.detach().float().cpu().numpy()
        keys = inputs[CAPTION_NUMBERS] if CAPTION_NUMBERS in inputs else inputs["img_paths"]
        for key, feature in zip(keys, features, strict=True):
            self._collector.add(key, feature)

    def evaluate(self) -> OrderedDict[str, float]:
        """Return the numbers on the main process, as `A2G/mAP`, nothing on the others."""
        parts = comm.gather(self._collector.take(self.bad_images.paths() if self.bad_images else []), dst=0)
        if not comm.is_main_process():
            return OrderedDict()
        unreadable = {path for *_, paths in parts for path in paths}
        log_bad_images(self._cfg.OUTPUT_DIR, unreadable, f"{self.test_set.dataset.name} test", _logger)
        self.evaluation = found = evaluate_parts(
            parts,
            self.test_set,
            comparison(self._cfg),
            views=self.views,
            roc=self._cfg.TEST.ROC.ENABLED,
            logger=_logger,
        )
        rows = zip(self.test_set.protocols, found.metrics, strict=True)
        numbers = {name: {**entry.as_dict(), **found.rates.get(name, {})} for name, entry in rows}
        flat = ((f"{name}/{key}", value) for name, row in numbers.items() for key, value in row.items())
        self.numbers = OrderedDict(flat)
        return self.numbers
