"""First stage of CLIP-ReID: learning the prompts of every identity's sentence from features of its images.

Shapes: n training images, E width of features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from agreid_plugin.errors import InputError, require_within
from agreid_plugin.methods.clip_reid.method import CLIPReID


@dataclass(frozen=True)
class PromptSchedule:
    """Schedule of the first stage: Adam, a linear warm-up and a cosine, both by epoch."""

    epochs: int = 120
    rate: float = 3.5e-4
    batch: int = 64
    weight_decay: float = 1e-4
    warmup_epochs: int = 5
    warmup_rate: float = 1e-5
    min_rate: float = 1e-6

    def __post_init__(self) -> None:
        require_within("epochs", self.epochs, 0, math.inf)
        require_within("batch", self.batch, 1, math.inf)
        require_within("warmup_epochs", self.warmup_epochs, 0, math.inf)
        for name in ("rate", "weight_decay", "warmup_rate", "min_rate"):
            require_within(name, getattr(self, name), 0, math.inf)

    def compute_rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 1; the last has the lowest."""
        if epoch < self.warmup_epochs:
            return self.warmup_rate + (self.rate - self.warmup_rate) * epoch / self.warmup_epochs
        return self.min_rate + (self.rate - self.min_rate) * (1 + math.cos(math.pi * epoch / self.epochs)) / 2


def learn_prompts(
    method: CLIPReID,
    image_features: Tensor,
    labels: Tensor,
    schedule: PromptSchedule,
    seed: int = 0,
    report: Callable[[int, float], None] = lambda _epoch, _loss: None,
    half: bool = False,
) -> list[float]:
    """Run the first stage: learn only the prompts, then keep the texts.

    Args:
        method: the method; its present prompts are the start.
        image_features: of all training images, (n, E), from `CLIPReID.image_features`.
        labels: their identities, (n,).
        schedule: learning rates and epochs.
        seed: of the order of images, which is drawn in each epoch.
        report: called after each epoch with its number and its mean loss.
        half: compute in float16 where the device is a GPU.

    Returns:
        The mean loss of each epoch.

    Raises:
        InputError: the loss is no longer a number.
    """
    optimizer = torch.optim.Adam([method.prompts.requires_grad_(True)], weight_decay=schedule.weight_decay)
    scaler = torch.amp.GradScaler(method.prompts.device.type, enabled=half and method.prompts.is_cuda)
    order, losses = torch.Generator().manual_seed(seed), []
    for epoch in range(1, schedule.epochs + 1):
        optimizer.param_groups[0]["lr"] = schedule.compute_rate(epoch)
        batches = torch.randperm(len(labels), generator=order).split(schedule.batch)
        steps = [_take_step(method, image_features[each], labels[each], optimizer, scaler) for each in batches]
        losses.append(sum(loss.item() * len(each) for loss, each in zip(steps, batches, strict=True)) / len(labels))
        if not math.isfinite(losses[-1]):
            raise InputError(f"the prompts' loss is {losses[-1]} in epoch {epoch}: lower the rate of stage 1")
        report(epoch, losses[-1])
    method.prompts.requires_grad_(False)
    method.keep_texts()
    return losses


def _take_step(
    method: CLIPReID, images: Tensor, labels: Tensor, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> Tensor:
    """Take one step and return its loss, which is still on the device."""
    device = method.prompts.device
    with torch.autocast(device.type, enabled=scaler.is_enabled()):
        loss = method.prompt_loss(images.to(device), labels.to(device))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()
