"""VIF-AGReID, without VIAL the ViT baseline, as a model of the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from agreid_plugin.errors import error_context, require_int
from agreid_plugin.hosts.mmengine.config.arguments import check_arguments
from agreid_plugin.hosts.mmengine.models.backbones import HostBackbone
from agreid_plugin.hosts.mmengine.models.base import ReIDModel
from agreid_plugin.hosts.mmengine.models.build import Config, build, build_objectives, get_head_maker
from agreid_plugin.hosts.mmengine.registry import MODELS
from agreid_plugin.methods import vif


class ForeignBackbone(nn.Module):
    """A backbone of another toolbox, its weights under the names that they have in fast-reid's models."""

    def __init__(self, core: nn.Module):
        super().__init__()
        self.core = core

    def forward(self, images: Tensor) -> Any:
        """Return what the network gives."""
        return self.core(images)


@MODELS.register_module()
@check_arguments(vif.VIF)
class VIF(ReIDModel):
    """VIF-AGReID on any backbone, with `PLRM` among the transforms; with `vial_weight=0` and without PLRM the baseline.

    Args:
        num_ids: identities in the training set.
        backbone: one of ours, or of another toolbox as `dict(type='mmpretrain.ResNet', ...)`.
        width: width of the features of another toolbox's backbone.
        head: `BNNeck` without one; width and classes are filled in.
        objectives: name -> loss of the head; cross-entropy and soft-margin triplets without any.
        data_preprocessor: see `ReIDModel`.
        init_cfg: mmengine's initialization.
        options: further arguments of `agreid_plugin.methods.vif.VIF`, as `vial_weight`.
    """

    def __init__(
        self,
        num_ids: int,
        backbone: Config,
        width: int | None = None,
        head: Config | None = None,
        objectives: Mapping[str, Config] | None = None,
        data_preprocessor: Config | None = None,
        init_cfg: Config | None = None,
        **options: Any,
    ):
        with error_context("VIF"):
            built = build("backbone", backbone)
            core = built.core if isinstance(built, HostBackbone) else ForeignBackbone(built)
            parts = (core, require_int("num_ids", num_ids), get_head_maker(head), build_objectives(objectives), width)
            method = vif.VIF(*parts, **options)
        super().__init__(method, data_preprocessor, init_cfg)
