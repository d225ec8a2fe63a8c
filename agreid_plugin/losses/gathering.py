"""All-gather of features and labels, so that a loss is that of the whole batch, whatever the world size.

Losses that compare images with one another gather features. Every process then computes the loss of the whole batch
and differentiates it by its own images only. The sum of those gradients over the processes would be right, and
DistributedDataParallel takes their average, hence a process's own features come back with a gradient multiplied by the
number of processes. What is no feature, a learned temperature for example, has the whole gradient on every process, and
the average leaves it.

Losses that are a mean over images need no features of others. Where all images count, the average over processes of
each one's mean is the mean over the batch, as all bring as many. Where only some count, those whose view is known for
example, each process divides by the `average_count`, and the average over processes is right again.

Shapes: B images of one process, N processes.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def gather_features(features: Tensor) -> Tensor:
    """Join the features of all processes in the order of their ranks: (B, D) -> (N B, D).

    Every process must bring as many. Without processes to join, the features are returned as they are.
    """
    if not _is_distributed():
        return features
    fixed = features.detach()
    everyone = _all_gather(fixed)
    everyone[dist.get_rank()] = fixed + dist.get_world_size() * (features - fixed)
    return torch.cat(everyone)


def gather_labels(*labels: Tensor) -> tuple[Tensor, ...]:
    """Join labels of all processes, integers or bools, all of them at once: each (B,) -> each (N B,)."""
    if not _is_distributed():
        return labels
    everyone = torch.cat(_all_gather(torch.stack([given.long() for given in labels])), dim=1)
    return tuple(values.to(given.dtype) for values, given in zip(everyone, labels, strict=True))


def average_count(count: Tensor) -> Tensor:
    """Return the average over processes of how many images count, at least 1 in all: of any shape, int -> float.

    A process that divides its sum by this has its part of a mean over the whole batch; see above.
    """
    if not _is_distributed():
        return count.clamp(min=1)
    total = count.clone()
    dist.all_reduce(total)
    return total.clamp(min=1) / dist.get_world_size()


def count_processes() -> int:
    """Return how many processes share a batch."""
    return dist.get_world_size() if _is_distributed() else 1


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _all_gather(values: Tensor) -> list[Tensor]:
    everyone = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, values.contiguous())
    return everyone
