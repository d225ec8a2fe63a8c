"""Unread keys: a configuration that records which of its keys are read, and the refusal of those without an effect."""

from __future__ import annotations

import copy
import inspect
import logging
import sys
from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator
from contextlib import suppress
from functools import reduce
from operator import attrgetter
from typing import Any

from fastreid.config import CfgNode, get_cfg

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config.loading import describe_keys
from agreid_plugin.hosts.fastreid.data.transforms import HOST, HOST_SWITCHES, list_names
from agreid_plugin.hosts.fastreid.models.base import HostMethod, get_method_class
from agreid_plugin.hosts.fastreid.models.losses import LOSSES

_logger = logging.getLogger("fastreid.train")

READ_LATER = {
    "CUSTOM_IMPORTS": "imported before anything is built",
    "CUDNN_BENCHMARK": "set where a process starts",
    "DATASETS.AGSYNTH": "made before a process starts",
    "INPUT.SIZE_TEST": "of the first evaluation",
    "MODEL.WEIGHTS": "loaded into the trainer that was built",
    "SOLVER.CHECKPOINT_ITERS": "of the training loop",
    "SOLVER.CLIP_GRADIENTS": "of the optimizer's steps",
    "SOLVER.KEEP_CHECKPOINTS": "of the training loop",
    "SOLVER.LOG_PERIOD": "of the writers, which open with the first step",
    "TEST": "of the first evaluation, and of `fastreid eval`",
}
"""Keys and groups that building a trainer does not read -> what does."""
CHOICES = {
    "MODEL.META_ARCHITECTURE": "",
    "MODEL.BACKBONE.NAME": "MODEL",
    "MODEL.BACKBONE.PRETRAIN": "MODEL.BACKBONE",
    "MODEL.HEADS.NAME": "MODEL.HEADS",
    "MODEL.HEADS.CLS_LAYER": "MODEL.HEADS",
    "MODEL.LOSSES.NAME": "MODEL.LOSSES",
    "INPUT.PIPELINE": "INPUT",
    "DATASETS.NAMES": "DATASETS",
    "DATALOADER.SAMPLER_TRAIN": "DATALOADER",
    "SOLVER.OPT": "SOLVER",
    "SOLVER.SCHED": "SOLVER",
    "SOLVER.WARMUP_ITERS": "SOLVER",
    "SOLVER.WARMUP_EPOCHS": "SOLVER",
}
"""Key that chooses what is built -> group in which that leaves keys behind which a base has set for another choice."""
ALL_IMAGES = ("TrainingSampler", "ImbalancedDatasetSampler")
"""Samplers that do not go by identities."""
USED_WITH: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "MODEL.HEADS.MARGIN": ("MODEL.HEADS.CLS_LAYER", lambda layer: layer != "Linear"),
    "DATALOADER.NUM_INSTANCE": ("DATALOADER.SAMPLER_TRAIN", lambda sampler: sampler not in ALL_IMAGES),
    "SOLVER.FREEZE_ITERS": ("MODEL.FREEZE_LAYERS", bool),
    "SOLVER.STEPS": ("SOLVER.SCHED", lambda schedule: schedule == "MultiStepLR"),
    "SOLVER.GAMMA": ("SOLVER.SCHED", lambda schedule: schedule == "MultiStepLR"),
    "SOLVER.ETA_MIN_LR": ("SOLVER.SCHED", lambda schedule: schedule == "CosineAnnealingLR"),
}
"""Key that is always read -> key on which it depends whether the value is used, and for which of its values it is."""
EVALUATION_OPTION = "TEST.RERANK"
"""Group whose switch may be off: `fastreid eval --rerank` uses it, too."""
UNREAD = "unread"


class Reads(set):
    """Full names of the keys that were read, the same set in all copies of a configuration."""


class RecordingNode(CfgNode):
    """Group of keys that records which of them are read, in its copies too; printing and dumping read none."""

    def __getitem__(self, name: str) -> Any:
        self.reads.add(f"{self.prefix}{name}")
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        self.reads.add(f"{self.prefix}{name}")
        return super().get(name, default)

    def items(self) -> ItemsView[str, Any]:
        """Return all keys with their values."""
        self.reads.update(f"{self.prefix}{name}" for name in self)
        return super().items()

    def __str__(self) -> str:
        before = set(self.reads)
        text = super().__str__()
        self.reads.intersection_update(before)
        return text

    def __deepcopy__(self, memo: dict) -> RecordingNode:
        return _copy(self, self.prefix, self.reads)


def record_reads(cfg: CfgNode) -> CfgNode:
    """Return a copy of a configuration that records what is read of it; one that does is returned as it is."""
    return cfg if isinstance(cfg, RecordingNode) else _copy(cfg, "", Reads())


def _copy(node: CfgNode, prefix: str, reads: Reads) -> RecordingNode:
    made = RecordingNode()
    for name, value in dict(node).items():
        is_group = isinstance(value, CfgNode)
        made[name] = _copy(value, f"{prefix}{name}.", reads) if is_group else copy.deepcopy(value)
    made.__dict__.update(node.__dict__, prefix=prefix, reads=reads)
    return made


def peek(cfg: CfgNode, key: str) -> Any:
    """Return the value of a key without recording that it was read."""
    return reduce(dict.__getitem__, key.split("."), cfg)


def refuse_unread(cfg: RecordingNode) -> None:
    """Refuse keys that a configuration sets and no part has read, or that its reader does not use.

    Those of a base that was left for other parts are only logged; so are all of them where it is not known which file
    has set what, as in a script that merges its files by itself.

    Raises:
        InputError: a key has no effect.
    """
    defaults, origins = dict(_flatten(get_cfg())), cfg.__dict__.get("origins", {})
    given = [key for key, value in _flatten(cfg) if value != defaults.get(key) and (key in origins or not origins)]
    reads, reasons = set(cfg.reads), _list_unused(cfg, origins) if origins else {}
    idle = {key: reason for key in given if (reason := _find_reason(key, reads, reasons))}
    refused = [key for key in idle if origins and not _was_left_behind(key, origins)]
    if refused:
        same = [key for key in refused if (origins[key], idle[key]) == (origins[refused[0]], idle[refused[0]])]
        raise InputError(_describe({key: defaults[key] for key in same}, origins[same[0]][1], idle[same[0]]))
    if idle:
        level = logging.INFO if origins else logging.WARNING
        _logger.log(level, "keys without an effect on what this configuration builds: %s", ", ".join(idle))


def _find_reason(key: str, reads: set[str], reasons: dict[str, str]) -> str:
    """Return why a key has no effect; nothing if it has one."""
    if key not in reads and not _find_group(key, READ_LATER):
        return UNREAD
    return reasons.get(_find_group(key, reasons), "")


def _find_group(key: str, groups: Iterable[str]) -> str:
    return next((group for group in groups if key == group or key.startswith(f"{group}.")), "")


def _list_unused(cfg: CfgNode, origins: Collection[str]) -> dict[str, str]:
    """Return the keys and groups that the host reads whether it uses them or not, and does not use -> why."""
    found = {}
    for key, value in _flatten(cfg):
        group, _, name = key.rpartition(".")
        if name == "ENABLED" and not value and key not in origins and group != EVALUATION_OPTION:
            found[group] = f"{key} is False"
    if cfg.INPUT.PIPELINE:
        names = list_names(cfg.INPUT.PIPELINE)
        for transform, group in HOST_SWITCHES.items():
            found.pop(f"INPUT.{group}", None)
            if transform not in names and HOST not in names:
                found[f"INPUT.{group}"] = f"INPUT.PIPELINE has no {transform}"
    if get_method_class(cfg) is HostMethod:  # ours read what they use
        for name in LOSSES.keys() - set(cfg.MODEL.LOSSES.NAME):
            found[f"MODEL.LOSSES.{LOSSES[name].node}"] = f"MODEL.LOSSES.NAME has no {name}"
    for key, (choice, is_used) in USED_WITH.items():
        if not is_used(value := attrgetter(choice)(cfg)):
            found[key] = f"{choice} is {value}"
    return found


def _flatten(node: CfgNode, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in dict(node).items():
        if isinstance(value, CfgNode):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _was_left_behind(key: str, origins: dict[str, tuple[int, str]]) -> bool:
    """Return whether another choice was made behind the place that sets a key."""
    made = [choice for choice in CHOICES if choice in origins and origins[choice] > origins[key]]
    return any(key.startswith(CHOICES[choice]) for choice in made)


def _describe(defaults: dict[str, Any], where: str, reason: str) -> str:
    """Return the message about keys with their defaults that a place sets in vain."""
    key, is_one = next(iter(defaults)), len(defaults) == 1
    if reason == UNREAD:
        readers = [*_find_readers(key), describe_keys().get(key, "").rstrip(".")]
        reason = f"no part that this configuration builds reads {'it' if is_one else 'them'}"
        reason += f" ({readers[0]})" if readers[0] else ""
    verb, them = ("has", "it") if is_one else ("have", "them")
    values = ", ".join(map(repr, defaults.values()))
    return f"{where}: {', '.join(defaults)} {verb} no effect, {reason}: remove {them}, or set {them} to {values}"


def _find_readers(key: str) -> list[str]:
    """Return what in the host would read a key, as its code has it."""
    found = []
    for name, module in sorted(sys.modules.items()):
        with suppress(OSError, TypeError):  # no source
            if name.startswith("fastreid.") and f"cfg.{key}" in inspect.getsource(module):
                found.append(f"{name} would")
    return found
