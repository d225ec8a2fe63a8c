"""The host's own architectures, taught the losses that they do not have written into them."""

from __future__ import annotations

from functools import wraps
from typing import Any

from fastreid.config import CfgNode
from fastreid.modeling.meta_arch import Baseline
from fastreid.modeling.meta_arch.mgn import MGN
from torch import Tensor, nn

from agreid_plugin.hosts.fastreid.models.losses import HOST_LOSSES, build_objectives
from agreid_plugin.types import Batch, HeadOutputs

LEARNERS = (Baseline, MGN)
"""Architectures that `MODEL.LOSSES.NAME` may ask for any loss. MoCo and Distiller are kinds of Baseline."""


def teach(architecture: type[nn.Module]) -> None:
    """Let an architecture of the host compute every registered loss, on the features of its first head.

    Its own four losses stay as it computes them.
    """
    build, compute = architecture.__init__, architecture.losses

    @wraps(build)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        cfg = next((each for each in (*args, *kwargs.values()) if isinstance(each, CfgNode)), None)
        if cfg is None:  # the host's own parts, given ready made
            self.objectives = nn.ModuleDict()
        else:
            others = [name for name in cfg.MODEL.LOSSES.NAME if name not in HOST_LOSSES]
            self.objectives = build_objectives(cfg, others)

    @wraps(compute)
    def losses(self, *args: Any) -> dict[str, Tensor]:
        found = compute(self, *args)
        outputs, pids = args[0], args[-1]
        head = HeadOutputs(outputs["features"], outputs["features"], outputs["cls_outputs"])
        for name, objective in self.objectives.items():
            found[f"loss_{name}"] = objective(head, Batch(pids=pids))
        return found

    architecture.__init__, architecture.losses = __init__, losses


for _architecture in LEARNERS:
    teach(_architecture)
