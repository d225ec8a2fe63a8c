"""Observers of training: use of experts and unreadable images, from all processes of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist
from torch import nn

from agreid_plugin.data.bad_images import BadImages, log_bad_images
from agreid_plugin.nn.expert_usage import UsageCounter, find_idle_experts, flatten_shares, format_shares, merge_usage

Value = TypeVar("Value")


def gather_objects(value: Value) -> list[Value]:
    """Return every process's value in all of them, by rank; all have to ask."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [value]
    values = [value] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


class ExpertUsageLog:
    """Logs after each epoch what share of the training images, or tokens, every expert was given, in all processes.

    An expert that nothing was sent to, or a whole group of them, is warned of. See `Usage` for what a share is.

    Args:
        model: the model, taken out of a wrapper for many processes.
        logger: the host's.

    Attributes:
        experts: how many modules of the model have experts.
    """

    def __init__(self, model: nn.Module, logger: logging.Logger):
        self._counter, self._logger = UsageCounter(model), logger
        self.experts = self._counter.start()

    def end_epoch(self, epoch: int) -> dict[str, float]:
        """Log what was counted since the last epoch; return it as `experts/<module>/<view>/<expert>` -> share.

        Args:
            epoch: its number, from 1.
        """
        usage = merge_usage(gather_objects(self._counter.take()))
        self._logger.info("experts of epoch %d, shares in percent:\n%s", epoch, "\n".join(format_shares(usage)))
        for line in find_idle_experts(usage):
            # mmengine's logger shows a warning of the same words, before they are filled in, but once
            self._logger.warning(f"epoch {epoch}: {line}")
        return {f"experts/{name}": share for name, share in flatten_shares(usage).items()}

    def stop(self) -> None:
        """Let go of the model."""
        self._counter.stop()


def list_unreadable(bad_images: BadImages | None, folder: str | Path, logger: logging.Logger) -> None:
    """Log the training images that all processes passed over, and list them in the run's folder.

    Args:
        bad_images: those of this process; None if its dataset keeps none.
        folder: the run's.
        logger: the host's.
    """
    parts: Iterable[list[str]] = gather_objects(bad_images.paths() if bad_images is not None else [])
    if not dist.is_initialized() or dist.get_rank() == 0:
        log_bad_images(folder, {path for part in parts for path in part}, "training", logger)
