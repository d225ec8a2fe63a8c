"""AG-Synth for recipes that bring their own dataset, made by one process while the others wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mmengine.dist import barrier, is_main_process

from agreid_plugin.hosts.mmengine.config.arguments import require_arguments
from agreid_plugin.synth.on_demand import make_missing

CHOSEN = ("ids", "images_per_id", "size", "seed")
"""What a recipe chooses of AG-Synth."""


def make_once(root: str, names: Iterable[str], agsynth: Mapping[str, Any] | None) -> None:
    """Make AG-Synth where a dataset is missing.

    Args:
        root: folder of the datasets.
        names: the datasets.
        agsynth: `ids`, `images_per_id`, `size` and `seed`; nothing is made without any.
    """
    if not agsynth:
        return
    require_arguments("agsynth", make_missing, agsynth, allowed=CHOSEN)
    try:
        if is_main_process():
            make_missing(root, names, **agsynth, key="agsynth")
    finally:
        barrier()  # also after an error, which the others then find for themselves
