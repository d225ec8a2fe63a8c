"""What a run leaves behind beside weights: run_card.json, and results.json with its table in the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmengine.dist import all_gather_object, is_main_process
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner

from agreid_plugin.data.bad_images import tell_bad_images
from agreid_plugin.engine.checkpoints import surviving_the_disk
from agreid_plugin.engine.report import report
from agreid_plugin.engine.run_card import Card
from agreid_plugin.errors import unknown
from agreid_plugin.evaluation.results import FILE_NAME as RESULTS
from agreid_plugin.hosts.mmengine.engine.run_card import batch_of, training_card
from agreid_plugin.hosts.mmengine.engine.runner_utils import loops, method_of, metrics_of
from agreid_plugin.hosts.mmengine.registry import HOOKS


@HOOKS.register_module()
class RunCard(Hook):
    """Writes run_card.json when training starts, and into it what the run costs after each epoch and at its end."""

    def __init__(self) -> None:
        self._card: Card | None = None

    def before_train(self, runner: Runner) -> None:
        """Begin the card."""
        if is_main_process():
            self._batch = batch_of(runner)
            self._card = training_card(runner, self._batch)

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Count a batch."""
        if self._card is not None:
            self._card.images += self._batch["per_process"] * self._batch["processes"]

    def after_train_epoch(self, runner: Runner) -> None:  # noqa: ARG002
        """Keep what the run has cost so far."""
        if self._card is not None:
            self._card.update()

    def after_train(self, runner: Runner) -> None:  # noqa: ARG002
        """End the card."""
        self.end()

    def end(self, error: BaseException | None = None) -> None:
        """End the card, with the kind of error that ended the run, if one did."""
        if self._card is not None:
            self._card.end(error)
        self._card = None


@contextmanager
def ending_cards(runner: Runner) -> Iterator[None]:
    """Let the run card know of an error, which the host tells no hook."""
    try:
        yield
    except BaseException as error:
        for hook in runner.hooks:
            if isinstance(hook, RunCard):
                hook.end(error)
        raise


@HOOKS.register_module()
class Results(Hook):
    """Writes results.json after each validation and test, with a table of the same in the log.

    It also tells the metrics where the model has the views of test images from, and lists images that a dataset with
    `bad_images="skip"` could not read.
    """

    def before_train(self, runner: Runner) -> None:
        """Refuse to select the best model by a number that no validation will give."""
        known = [name for metric in metrics_of(loops(runner).get("val")) for name in metric.names()]
        if not known:
            return
        for hook in runner.hooks:
            wanted = getattr(hook, "save_best", None) if isinstance(hook, CheckpointHook) else None
            for name in [wanted] if isinstance(wanted, str) else wanted or []:
                if name not in ("auto", *known):
                    raise unknown("default_hooks.checkpoint.save_best", name, known)

    def before_val_epoch(self, runner: Runner) -> None:
        """Tell the metrics of the model's view source."""
        self._tell(runner, "val")

    def before_test_epoch(self, runner: Runner) -> None:
        """Tell the metrics of the model's view source."""
        self._tell(runner, "test")

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:  # noqa: ARG002
        """Write what validation gave."""
        self._report(runner, "val")

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:  # noqa: ARG002
        """Write what the test gave."""
        self._report(runner, "test")

    def after_train(self, runner: Runner) -> None:
        """Tell which training images were passed over."""
        bad_images = getattr(runner.train_dataloader.dataset, "bad_images", None)
        parts = all_gather_object(bad_images.paths() if bad_images is not None else [])
        if is_main_process():
            paths = {path for part in parts for path in part}
            tell_bad_images(runner.work_dir, paths, "training", runner.logger)

    @staticmethod
    def _tell(runner: Runner, name: str) -> None:
        for metric in metrics_of(loops(runner).get(name)):
            metric.views = getattr(method_of(runner), "view_source", "")

    @staticmethod
    def _report(runner: Runner, name: str) -> None:
        metrics = metrics_of(loops(runner).get(name))
        for metric in metrics:
            metric.tell_unreadable(runner.work_dir)
        found = [entry for metric in metrics for entry in metric.metrics]
        if found and is_main_process():
            path = Path(runner.work_dir) / RESULTS
            with surviving_the_disk(path):
                report(path, found, logger=runner.logger)
