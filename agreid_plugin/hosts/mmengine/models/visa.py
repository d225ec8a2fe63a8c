"""ViSA as a model of the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.models.base import BackboneModel, register_method
from agreid_plugin.hosts.mmengine.models.build import Config
from agreid_plugin.methods import visa

PAPER = "paper"  # the variant of a backbone that names none


@register_method(visa.ViSA, visa.ViSABackbone, "agreid_plugin.ViSABackbone")
class ViSA(BackboneModel):
    """ViSA on `ViSABackbone`, whose `variant` it has; `BackboneModel` has the arguments."""

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
        own = backbone.get("variant", PAPER) if isinstance(backbone, Mapping) else None
        if own and options.setdefault("variant", own) != own:
            raise InputError(f"ViSA: variant={options['variant']!r}, but its backbone has {own!r}: give both the same")
        super().__init__(num_ids, backbone, head, objectives, data_preprocessor, init_cfg, **options)
