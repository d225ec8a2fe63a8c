"""Checkpoints of the released codes in our names."""

from __future__ import annotations

from collections.abc import Callable

from agreid_plugin.methods.conversion.rules import Converted, State
from agreid_plugin.methods.conversion.svpr import convert_svpr
from agreid_plugin.methods.conversion.tag_clip import convert_tag_clip
from agreid_plugin.methods.conversion.visa import EXPERT_PARTS, convert_vdt, convert_visa

CONVERTERS: dict[str, Callable[[State], Converted]] = {
    "vdt": convert_vdt,
    "visa": convert_visa,
    "svpr": convert_svpr,
    "tag-clip": convert_tag_clip,
}

__all__ = [
    "CONVERTERS",
    "EXPERT_PARTS",
    "Converted",
    "State",
    "convert_svpr",
    "convert_tag_clip",
    "convert_vdt",
    "convert_visa",
]
