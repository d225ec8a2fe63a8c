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

    @staticmethod
    def resolve_options(backbone: Config, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options with the backbone's variant, which another one given would contradict."""
        own = backbone.get("variant", PAPER) if isinstance(backbone, Mapping) else None
        if own and options.setdefault("variant", own) != own:
            raise InputError(f"variant={options['variant']!r}, but its backbone has {own!r}: give both the same")
        return options
