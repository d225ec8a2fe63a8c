"""Batches of the host: conversion from and to ours, and loading onto a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from agreid_plugin.data.collate import Sample, collate
from agreid_plugin.types import Batch

HOST_KEYS = {
    "images": "images",
    "targets": "pids",
    "camids": "cameras",
    "views": "views",
    "platforms": "platforms",
    "attributes": "attributes",
    "tokens": "tokens",
    "img_paths": "paths",
}
"""The host's name for each of our fields. Its models and evaluators know the first three and the last."""


def to_host(batch: Batch) -> dict[str, Any]:
    """Return the batch as the dictionary that the host's trainer, models and evaluators pass around."""
    present = batch.present()
    return {host: present[ours] for host, ours in HOST_KEYS.items() if ours in present}


def from_host(inputs: dict[str, Any]) -> Batch:
    """Return the host's dictionary as a batch."""
    return Batch(**{ours: inputs[host] for host, ours in HOST_KEYS.items() if host in inputs})


def host_collate(samples: Sequence[Sample]) -> dict[str, Any]:
    """Stack samples for the host's loaders, whose function returns None for types that it does not know."""
    return to_host(collate(samples))


class DeviceLoader(DataLoader):
    """Yields batches on `device`, the next one being copied while the model works on this one.

    With `progress` set to a word, one pass shows a bar of that name.

    Unlike in the host's loader there is no thread between the workers and the trainer, so the trainer raises an
    error of a worker; the host's thread would end without a word, and the trainer wait for ever.
    """

    def __init__(self, local_rank: int, **kwargs: Any):
        kwargs["pin_memory"] = bool(kwargs.get("pin_memory")) and torch.cuda.is_available()
        super().__init__(**kwargs)
        self.device = (
            torch.device("cuda", _device_index(local_rank)) if torch.cuda.is_available() else torch.device("cpu")
        )
        self.progress = ""

    def __iter__(self) -> Iterator[dict]:
        batches = super().__iter__()
        if self.device.type != "cpu":
            batches = _prefetch(batches, self.device)
        if self.progress:  # a bar on terminals only
            batches = iter(tqdm(batches, self.progress, len(self), leave=False, unit="batch", disable=None))
        return batches


def _device_index(local_rank: int) -> int:
    """Return the number of a process's GPU, which may be the only one that it sees."""
    return local_rank % torch.cuda.device_count()


def _prefetch(batches: Iterator[dict], device: torch.device) -> Iterator[dict]:
    stream = torch.cuda.Stream(device)

    def copy_next() -> dict | None:
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(stream):
            return {k: v.to(device, non_blocking=True) if torch.is_tensor(v) else v for k, v in batch.items()}

    ahead = copy_next()
    while ahead is not None:
        torch.cuda.current_stream(device).wait_stream(stream)
        for value in ahead.values():
            if torch.is_tensor(value):
                value.record_stream(torch.cuda.current_stream(device))
        batch, ahead = ahead, copy_next()
        yield batch
