"""Which experts of a model are used, told after every epoch."""

from __future__ import annotations

from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.runner import Runner

from agreid_plugin.hosts.mmengine.engine.runner_utils import method_of
from agreid_plugin.hosts.mmengine.registry import HOOKS
from agreid_plugin.nn.expert_usage import UsageCounter, complaints, merged, scalars, told

PREFIX = "experts"


@HOOKS.register_module()
class ExpertUsage(Hook):
    """Tells after each epoch what share of the training images, or tokens, every expert was given, in all processes.

    The shares are in the log, and as `experts/<module>/<view>/<expert>` in the runner's visualizer. An expert that
    nothing was sent to, or a whole group of them, is warned of. See `Usage` for what a share is.
    """

    def __init__(self) -> None:
        self._counter: UsageCounter | None = None

    def before_train(self, runner: Runner) -> None:
        """Begin to count."""
        self._counter = UsageCounter(method_of(runner))
        if not self._counter.start():
            # an ablation may have left them out of a recipe that has this hook
            runner.logger.warning("ExpertUsage: this %s has no experts to count", type(method_of(runner)).__name__)
            self._counter = None

    def after_train_epoch(self, runner: Runner) -> None:
        """Tell what was counted since the last epoch."""
        if self._counter is None:
            return
        usage = merged(all_gather_object(self._counter.take()))
        numbers = {f"{PREFIX}/{name}": share for name, share in scalars(usage).items()}
        runner.visualizer.add_scalars(numbers, step=runner.epoch + 1)
        runner.logger.info("experts of epoch %d, shares in percent:\n%s", runner.epoch + 1, "\n".join(told(usage)))
        for line in complaints(usage):
            # mmengine's logger shows a warning of the same words, before they are filled in, but once
            runner.logger.warning(f"epoch {runner.epoch + 1}: {line}")

    def after_train(self, runner: Runner) -> None:  # noqa: ARG002
        """Let go of the model."""
        if self._counter is not None:
            self._counter.stop()
