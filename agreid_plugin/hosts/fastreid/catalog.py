"""What stands in the host's registries, ours and its own, for people to look up."""

from __future__ import annotations

import inspect

from fastreid.data.datasets import DATASET_REGISTRY
from fastreid.modeling.backbones import BACKBONE_REGISTRY
from fastreid.modeling.heads import REID_HEADS_REGISTRY
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY

from agreid_plugin.hosts.fastreid import config, data
from agreid_plugin.hosts.fastreid.losses import LOSSES
from agreid_plugin.hosts.fastreid.transforms import TRANSFORMS


def catalog() -> dict[str, dict[str, str]]:
    """Return kind -> {name: first sentence of what it is}."""
    registries = {
        "architectures": META_ARCH_REGISTRY,
        "backbones": BACKBONE_REGISTRY,
        "heads": REID_HEADS_REGISTRY,
        "datasets": DATASET_REGISTRY,
    }
    found = {kind: _described(registry._obj_map) for kind, registry in registries.items()}
    found["losses"] = dict.fromkeys(LOSSES, "")
    found["transforms"] = dict.fromkeys(sorted(TRANSFORMS), "")
    found["samplers"] = dict.fromkeys(data.SAMPLERS, "")
    found["keys"] = config.declared()
    return found


def _described(entries: dict[str, object]) -> dict[str, str]:
    return {name: _first_line(entries[name]) for name in sorted(entries)}


def _first_line(entry: object) -> str:
    doc = (inspect.getdoc(entry) or "").strip()
    return doc.splitlines()[0] if doc and entry.__doc__ else ""
