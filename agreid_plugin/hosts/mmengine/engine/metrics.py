"""Metric of mmengine: one pass over a test set's images, every protocol from it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from mmengine.dist import get_world_size, is_main_process
from mmengine.evaluator import BaseMetric
from mmengine.logging import MMLogger

from agreid_plugin.data.bad_images import log_bad_images
from agreid_plugin.errors import InputError, unknown
from agreid_plugin.evaluation import NUMBERS
from agreid_plugin.evaluation.collector import Evaluation, FeatureCollector, Part, evaluate_parts
from agreid_plugin.evaluation.distances import MEMORY
from agreid_plugin.evaluation.distances import METRICS as DISTANCES
from agreid_plugin.evaluation.evaluation_sets import EvaluationSet
from agreid_plugin.evaluation.ranking_options import Expansion, RankingOptions, Reranking
from agreid_plugin.hosts.mmengine.config.arguments import check_arguments, require_kinds
from agreid_plugin.hosts.mmengine.registry import METRICS

SELECTS = "metric"
"""The number that selects the best model, where one may; see `EvaluationSet.selecting`."""


@METRICS.register_module()
@check_arguments()
class MultiProtocolMetric(BaseMetric):
    """Collects features from all processes and computes every protocol of a test set from them.

    Each image counts once, by its path, with any number of processes and whatever images a sampler repeats. What is
    evaluated is the dataset's `metainfo["test_set"]`; numbers are called `CARGO/A2G/mAP`.

    Attributes:
        views: where the model has the views of test images from, `given` or `predicted`; empty if it uses none.
        evaluation: features and numbers of the last pass, on the main process.

    Args:
        metric: `cosine` or `euclidean`.
        rerank: arguments of `Reranking`, `dict()` for its own; no re-ranking without.
        expansion: arguments of `Expansion`, `dict()` for its own; no query expansion without.
        memory: megabytes to use on top of the features.
        roc: true positive rates at small false positive rates, too.
    """

    def __init__(
        self,
        metric: str = "cosine",
        rerank: Mapping[str, Any] | None = None,
        expansion: Mapping[str, Any] | None = None,
        memory: float = MEMORY,
        roc: bool = False,
    ):
        super().__init__(prefix="unused")  # without any the host warns; names begin with the dataset's here
        self.prefix = None
        if metric not in DISTANCES:
            raise unknown("metric", metric, DISTANCES)
        if not memory > 0:
            raise InputError(f"memory={memory!r} should be megabytes, more than 0")
        self.comparison = RankingOptions(
            metric, _options("rerank", Reranking, rerank), _options("expansion", Expansion, expansion), memory
        )
        self.roc, self.views = roc, ""
        self.evaluation: Evaluation | None = None
        self._collector = FeatureCollector()
        self._group: weakref.ref[dist.ProcessGroup] | None = None

    @property
    def test_set(self) -> EvaluationSet:
        """What is evaluated."""
        return self._dataset_meta["test_set"]

    @property
    def dataset_meta(self) -> Mapping[str, Any] | None:
        """The dataset's metainfo."""
        return self._dataset_meta

    @dataset_meta.setter
    def dataset_meta(self, meta: Mapping[str, Any] | None) -> None:
        """Take a dataset's metainfo, and refuse one that cannot be evaluated before any inference."""
        if not isinstance((meta or {}).get("test_set"), EvaluationSet):
            raise InputError("MultiProtocolMetric: the dataset has no test_set; use agreid_plugin.ReIDDataset to test")
        for protocol in meta["test_set"].protocols.values():
            self.comparison.check(protocol)
        self._dataset_meta = meta

    def names(self) -> list[str]:
        """Return what numbers an evaluation will give, those of `roc` left out."""
        protocols = self.test_set.protocols.values()
        selecting = [SELECTS] if self.test_set.selection_protocol else []
        return [f"{protocol}/{number}" for protocol in protocols for number in NUMBERS] + selecting

    def process(self, data_batch: Any, data_samples: Sequence[Mapping[str, Any]]) -> None:  # noqa: ARG002
        """Keep a batch's features by image, or by the number of the caption."""
        for sample in data_samples:
            if sample.get("feature") is None:
                raise InputError(
                    "MultiProtocolMetric: a data sample has no `feature`: the model has to set it in mode='predict', "
                    "or to have `extract_feat` and the run the hook agreid_plugin.Results"
                )
            number = sample.get("caption_number")
            key = sample["img_path"] if number is None else int(number)
            self._collector.add(key, sample["feature"].detach().float().cpu().numpy())

    def evaluate(self, size: int) -> dict[str, float]:  # noqa: ARG002
        """Return the numbers, the same on every process; `size` is not needed to tell images from repetitions."""
        group = self._cpu_group() if get_world_size() > 1 else None
        bad_images = self._dataset_meta.get("bad_images")
        parts = _gather(self._collector.take(bad_images.paths() if bad_images else []), group)
        outcome = [self._compute_or_describe(parts)] if is_main_process() else [None]
        if group is not None:
            dist.broadcast_object_list(outcome, src=0, group=group)
        (numbers,) = outcome
        if isinstance(numbers, str):  # on every process, or the others would wait for the main one
            raise InputError(numbers)
        return numbers

    def list_unreadable(self, folder: str) -> None:
        """List the images of the last pass that could not be read in a run's folder, if there were any."""
        if self.evaluation is not None:
            test = f"{self.test_set.dataset.name} test"
            log_bad_images(folder, self.evaluation.unreadable, test, MMLogger.get_current_instance())

    def compute_metrics(self, results: Sequence[Part]) -> dict[str, float]:
        """Return the numbers from what the processes have collected; images may come more than once."""
        logger = MMLogger.get_current_instance()
        self.evaluation = found = evaluate_parts(
            results, self.test_set, self.comparison, views=self.views, roc=self.roc, logger=logger
        )
        numbers = {f"{entry.protocol}/{name}": entry[name] for entry in found.metrics for name in NUMBERS}
        for name, rates in found.rates.items():
            numbers |= {f"{self.test_set.protocols[name]}/{key}": rate for key, rate in rates.items()}
        selecting = self.test_set.selection_score(found.metrics)
        if selecting is not None:
            numbers[SELECTS] = selecting
        return numbers

    def _compute_or_describe(self, parts: Sequence[Part]) -> dict[str, float] | str:
        """Return the numbers, or in words what is wrong with the parts."""
        try:
            return self.compute_metrics(parts)
        except InputError as error:
            return str(error)

    def _cpu_group(self) -> dist.ProcessGroup:
        """Return processes to exchange features of any size with, in memory and not through files.

        Only torch may keep them: gloo can abort a process at whose exit a group is still there.
        """
        if dist.get_backend() == "gloo":
            return dist.group.WORLD
        if self._group is None or self._group() is None:
            self._group = weakref.ref(dist.new_group(backend="gloo"))
        return self._group()


def _options(name: str, kind: type, given: Mapping[str, Any] | None) -> Any:
    if given is None:
        return None
    wrong = next((key for key in given if key not in kind.__dataclass_fields__), None)
    if wrong is not None:
        raise unknown(f"MultiProtocolMetric: {name}", wrong, kind.__dataclass_fields__)
    require_kinds(f"MultiProtocolMetric: {name}", kind, given)
    return kind(**given)


def _gather(part: Part, group: dist.ProcessGroup | None) -> list[Part]:
    """Return the parts of all processes on the main one, nothing of use on the others."""
    if group is None:
        return [part]
    parts = [None] * get_world_size() if is_main_process() else None
    dist.gather_object(part, parts, dst=0, group=group)
    return parts or []
