"""What a model's configuration leaves to files, written into it, so that a run can be repeated without them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agreid_plugin.data.learned_attributes import to_rows
from agreid_plugin.hosts.mmengine.models.build import schema_of
from agreid_plugin.hosts.mmengine.models.clip import spelled
from agreid_plugin.nn.clip_weights import needs_quick_gelu

PRETRAINED = "Pretrained"  # mmengine's initialization from a file


def settled(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's configuration with the activation of CLIP's towers and the attributes of its dataset in it.

    A checkpoint tells neither, and where it is evaluated the pretrained weights and the training set may not be there
    to ask.
    """
    known = dict(model)
    if isinstance(known.get("backbone"), dict):
        known["backbone"] = settled(known["backbone"])
    if isinstance(known.get("clip"), dict):
        clip = known["clip"]
        needed = needs_quick_gelu(spelled(clip.get("quick_gelu", "auto")), clip.get("pretrained"))
        known["clip"] = {**clip, "quick_gelu": "yes" if needed else "no"}
    if isinstance(known.get("attributes"), dict):
        known["attributes"] = to_rows(schema_of(known["attributes"]))
    return known


def without_pretrained(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's configuration, settled, that loads no pretrained weights: a checkpoint is to fill it."""
    return drop_pretrained(settled(model))


def drop_pretrained(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's configuration without the files that it starts from."""
    known = {name: drop_pretrained(value) if isinstance(value, dict) else value for name, value in config.items()}
    if "pretrained" in known:
        known["pretrained"] = None
    if isinstance(known.get("init_cfg"), dict) and known["init_cfg"].get("type") == PRETRAINED:
        known["init_cfg"] = None
    return known
