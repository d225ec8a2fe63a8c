"""Catalog of what a configuration of mmengine can name: ours and its own."""

from __future__ import annotations

from mmengine.model import BaseModel
from mmengine.registry import Registry

from agreid_plugin.data.datasets import DATASETS as PARSERS
from agreid_plugin.engine.catalog import Entry, list_entries
from agreid_plugin.hosts.mmengine import registry
from agreid_plugin.hosts.mmengine.models.backbones import HostBackbone
from agreid_plugin.hosts.mmengine.registry import SCOPE

CLASSES = {"architectures": BaseModel, "backbones": HostBackbone}
"""Kinds by a base class, in any module."""
MODULES = {"heads": "heads", "bnneck": "heads", "losses": "losses"}
"""Modules, by a part of their name, that hold one kind of a model's parts."""
OTHER = "parts"


def components() -> dict[str, list[Entry]]:
    """Return kind -> what is registered, ours with the scope that a configuration writes before it."""
    models: dict[str, dict[str, object]] = {kind: {} for kind in (*CLASSES, *MODULES.values(), OTHER)}
    for name, entry in _registered(registry.MODELS).items():
        models[_get_kind(entry)][name] = entry
    found = {
        **models,
        "transforms": _registered(registry.TRANSFORMS),
        "samplers": _registered(registry.DATA_SAMPLERS),
        "datasets": {**_registered(registry.DATASETS), **PARSERS},  # a parser is the `name` of a ReIDDataset
        "metrics": _registered(registry.METRICS),
        "hooks": _registered(registry.HOOKS),
        "schedules": _registered(registry.PARAM_SCHEDULERS),
    }
    return {kind: list_entries(named) for kind, named in found.items()}


def _registered(ours: Registry) -> dict[str, object]:
    ours.import_from_location()
    return {**{f"{SCOPE}.{name}": entry for name, entry in ours.module_dict.items()}, **ours.parent.module_dict}


def _get_kind(entry: object) -> str:
    for kind, base in CLASSES.items():
        if isinstance(entry, type) and issubclass(entry, base):
            return kind
    module = entry.__module__.split(".")
    return next((kind for part, kind in MODULES.items() if part in module), OTHER)
