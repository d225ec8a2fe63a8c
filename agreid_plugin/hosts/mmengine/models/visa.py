"""ViSA as a model of the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agreid_plugin.errors import InputError, error_context, require_int
from agreid_plugin.hosts.mmengine.config.arguments import checked
from agreid_plugin.hosts.mmengine.models.backbones import core_of
from agreid_plugin.hosts.mmengine.models.base import ReIDModel
from agreid_plugin.hosts.mmengine.models.build import Config, build_objectives, head_maker
from agreid_plugin.hosts.mmengine.registry import MODELS
from agreid_plugin.methods import visa

PAPER = "paper"  # the variant of a backbone that names none


@MODELS.register_module()
@checked(visa.ViSA, given=("backbone", "identities", "make_head", "objectives"))
class ViSA(ReIDModel):
    """ViSA.

    Args:
        num_ids: identities in the training set.
        backbone: `ViSABackbone`.
        head: of identities, local features and views, `BNNeck` without one; width and classes are filled in.
        objectives: name -> loss of both identity heads; the method's own without any.
        data_preprocessor: see `ReIDModel`.
        init_cfg: mmengine's initialization.
        options: further arguments of `agreid_plugin.methods.visa.ViSA`: `view`, `view_weight`, `balance_weight`, and
            `variant`, which is the backbone's without any.
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
        core = core_of("agreid_plugin.ViSA", backbone, visa.ViSABackbone, ["agreid_plugin.ViSABackbone"])
        make, own = head_maker(head), backbone.get("variant", PAPER) if isinstance(backbone, Mapping) else None
        if own and options.setdefault("variant", own) != own:
            raise InputError(f"ViSA: variant={options['variant']!r}, but its backbone has {own!r}: give both the same")
        with error_context("ViSA"):
            method = visa.ViSA(
                core,
                require_int("num_ids", num_ids),
                make_head=lambda classes: make(core.width, classes),
                objectives=build_objectives(objectives),
                **options,
            )
        super().__init__(method, data_preprocessor, init_cfg)
