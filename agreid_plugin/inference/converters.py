"""Converters of released checkpoints by the name of their method."""

from __future__ import annotations

from collections.abc import Callable

from agreid_plugin.methods.svpr.convert import convert_svpr
from agreid_plugin.methods.tag_clip.convert import convert_tag_clip
from agreid_plugin.methods.visa.convert import convert_vdt, convert_visa
from agreid_plugin.nn.key_mapping import Converted, State

CONVERTERS: dict[str, Callable[[State], Converted]] = {
    "vdt": convert_vdt,
    "visa": convert_visa,
    "svpr": convert_svpr,
    "tag-clip": convert_tag_clip,
}
