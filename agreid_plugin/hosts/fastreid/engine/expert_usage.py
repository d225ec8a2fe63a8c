"""Which experts of a mixture are used, told after every epoch."""

from __future__ import annotations

import logging

from fastreid.engine import hooks
from fastreid.utils import comm
from fastreid.utils.events import get_event_storage
from torch import nn

from agreid_plugin.hosts.fastreid.engine.distributed import plain
from agreid_plugin.nn.expert_usage import Mixture, UsageCounter, complaints, merged, scalars

_logger = logging.getLogger("fastreid.train")
PREFIX = "experts"


def has_experts(model: nn.Module) -> bool:
    """Tell whether a model sends things to experts."""
    return any(isinstance(module, Mixture) for module in model.modules())


class ExpertUsage(hooks.HookBase):
    """Warns after each epoch of experts, and groups of them, that nothing was sent to in any process.

    Every expert's share is in metrics.json and TensorBoard as `experts/<module>/<view>/<expert>`; see `Usage`.
    """

    def before_train(self) -> None:
        """Begin to count."""
        self._counter = UsageCounter(plain(self.trainer.model))
        self._counter.start()

    def after_epoch(self) -> None:
        """Tell what was counted since the last epoch."""
        usage = merged(comm.all_gather(self._counter.take()))
        for name, share in scalars(usage).items() if comm.is_main_process() else ():
            get_event_storage().put_scalar(f"{PREFIX}/{name}", share, smoothing_hint=False)
        for line in complaints(usage):
            _logger.warning("epoch %d: %s", self.trainer.epoch + 1, line)

    def after_train(self) -> None:
        """Let go of the model."""
        self._counter.stop()
