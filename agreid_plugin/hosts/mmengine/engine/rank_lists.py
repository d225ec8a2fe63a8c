"""Pictures of what a model ranks first, for some queries of each protocol."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from agreid_plugin.errors import InputError, unknown
from agreid_plugin.evaluation.rank_lists import CHOICES, build_rank_lists, choose_queries
from agreid_plugin.hosts.mmengine.config.arguments import checked
from agreid_plugin.hosts.mmengine.engine.metrics import MultiProtocolMetric
from agreid_plugin.hosts.mmengine.engine.runner_utils import epoch_of, loops, metrics_of
from agreid_plugin.hosts.mmengine.registry import HOOKS
from agreid_plugin.visualize.ranks import draw_rank_sheet

FOLDER = "rank_lists"


@HOOKS.register_module()
@checked()
class RankLists(Hook):
    """Draws some queries with the first images of their rankings, right and wrong ones told apart, view and camera.

    Pictures go through the runner's visualizer and, as PNG, into `rank_lists` in its folder, which holds the last ones.

    Args:
        queries: of each protocol.
        top: images of each query.
        choice: `even`, some all along the set; `worst` or `best`, those of least or most average precision; `random`.
        protocols: names, as `A2G`; all without any.
        interval: epochs of training between pictures; 0 for those of the last epoch, and of tests, alone.
    """

    def __init__(
        self, queries: int = 8, top: int = 10, choice: str = "even", protocols: Sequence[str] = (), interval: int = 0
    ):
        for name, value, least in (("queries", queries, 1), ("top", top, 1), ("interval", interval, 0)):
            if value < least:
                raise InputError(f"RankLists: {name}={value} should be {least} or more")
        if choice not in CHOICES:
            raise unknown("RankLists: choice", choice, CHOICES)
        self.queries, self.top, self.choice, self.interval = queries, top, choice, interval
        self.protocols = tuple(protocols)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:  # noqa: ARG002
        """Draw if it is time."""
        train, done = loops(runner).get("train"), epoch_of(runner)
        is_last = train is None or done == train.max_epochs
        if is_last or (self.interval and done % self.interval == 0):
            self._draw(runner, "val", done)

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:  # noqa: ARG002
        """Draw."""
        self._draw(runner, "test", epoch_of(runner))

    def _draw(self, runner: Runner, loop: str, step: int) -> None:
        if not is_main_process():
            return
        for metric in metrics_of(loops(runner).get(loop)):
            for name in self._names(metric):
                self._draw_protocol(runner, metric, name, step)

    def _names(self, metric: MultiProtocolMetric) -> list[str]:
        known = metric.test_set.protocols
        for name in self.protocols:
            if name not in known:
                raise unknown("RankLists: protocol", name, known)
        return list(self.protocols or known)

    def _draw_protocol(self, runner: Runner, metric: MultiProtocolMetric, name: str, step: int) -> None:
        protocol = metric.test_set.protocols[name]
        found = next(entry for entry in metric.metrics if entry.protocol == str(protocol))
        rows = choose_queries(found.per_query, self.queries, self.choice)
        label = str(protocol).replace("/", "_")  # a backend that keeps files would lose names with a folder in them
        folder = Path(runner.work_dir) / FOLDER / label
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("query_*.png"):  # of an earlier epoch, which chose other queries
            old.unlink()
        for ranking in build_rank_lists(metric.features, protocol, metric.comparison, rows, self.top):
            picture = draw_rank_sheet([ranking], f"{protocol}, query {ranking.row}")
            picture.save(folder / f"query_{ranking.row:05d}.png")
            runner.visualizer.add_image(f"{FOLDER}_{label}_{ranking.row}", np.asarray(picture), step)
