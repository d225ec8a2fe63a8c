"""VDT as a model of the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agreid_plugin.errors import error_context, require_int
from agreid_plugin.hosts.mmengine.config.arguments import checked
from agreid_plugin.hosts.mmengine.models.backbones import core_of
from agreid_plugin.hosts.mmengine.models.base import ReIDModel
from agreid_plugin.hosts.mmengine.models.build import Config, build_objectives, head_maker
from agreid_plugin.hosts.mmengine.registry import MODELS
from agreid_plugin.methods import vdt
from agreid_plugin.nn.view_token_vit import DecoupledEncoder
from agreid_plugin.types import View


@MODELS.register_module()
@checked(vdt.VDT, given=("backbone", "head", "view_head", "objectives"))
class VDT(ReIDModel):
    """VDT.

    Args:
        num_ids: identities in the training set.
        backbone: `VDTBackbone`.
        head: of identities and of views, `BNNeck` without one; width and classes are filled in.
        objectives: name -> loss of the identity head; the method's own without any.
        data_preprocessor: see `ReIDModel`.
        init_cfg: mmengine's initialization.
        options: further arguments of `agreid_plugin.methods.vdt.VDT`, as `view_weight`.
    """

    def __init__(
        self,
        num_ids: int,
        backbone: Config,
        head: Config | None = None,
        objectives: Mapping[str, Config] | None = None,
        data_preprocessor: Config | None = None,
        init_cfg: Config | None = None,
        **options: Any,
    ):
        core = core_of("agreid_plugin.VDT", backbone, DecoupledEncoder, ["agreid_plugin.VDTBackbone"])
        make = head_maker(head)
        with error_context("VDT"):
            heads = make(core.width, require_int("num_ids", num_ids)), make(core.width, len(View))
            method = vdt.VDT(core, *heads, build_objectives(objectives), **options)
        super().__init__(method, data_preprocessor, init_cfg)
