"""Batches in the host's terms and in ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
"""The host's name for each of our fields. Its own models and evaluators know the first three and the last."""


def to_host(batch: Batch) -> dict[str, Any]:
    """Return the batch as the dictionary that the host's trainer, models and evaluators pass around."""
    present = batch.present()
    return {host: present[ours] for host, ours in HOST_KEYS.items() if ours in present}


def from_host(inputs: dict[str, Any]) -> Batch:
    """Return the host's dictionary as a batch."""
    return Batch(**{ours: inputs[host] for host, ours in HOST_KEYS.items() if host in inputs})


def host_collate(samples: Sequence[Sample]) -> dict[str, Any]:
    """Stack samples for the host's loaders, whose own function returns None for what it does not know."""
    return to_host(collate(samples))
