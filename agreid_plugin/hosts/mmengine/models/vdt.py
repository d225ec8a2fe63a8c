"""VDT as a model of the host."""

from __future__ import annotations

from agreid_plugin.hosts.mmengine.models.base import BackboneModel, register_method
from agreid_plugin.methods import vdt
from agreid_plugin.nn.view_token_vit import DecoupledEncoder


@register_method(vdt.VDT, DecoupledEncoder, "agreid_plugin.VDTBackbone")
class VDT(BackboneModel):
    """VDT on `VDTBackbone`; `BackboneModel` has the arguments."""
