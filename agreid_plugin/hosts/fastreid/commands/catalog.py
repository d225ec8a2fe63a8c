"""Catalog of what a configuration can name: ours, fast-reid's and parts of other packages."""

from __future__ import annotations

from fastreid.config import get_cfg
from fastreid.data import samplers
from fastreid.data.datasets import DATASET_REGISTRY
from fastreid.modeling.backbones import BACKBONE_REGISTRY
from fastreid.modeling.heads import REID_HEADS_REGISTRY
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from torchvision.transforms import RandomApply

from agreid_plugin.data.samplers import ViewBalancedIdentities
from agreid_plugin.engine.catalog import Entry, first_sentence, get_owner, list_entries
from agreid_plugin.host import HOSTS
from agreid_plugin.hosts.fastreid.config import loading
from agreid_plugin.hosts.fastreid.data import loaders
from agreid_plugin.hosts.fastreid.data.transforms import HOST, HOST_SWITCHES, TRANSFORMS, RegisteredTransform
from agreid_plugin.hosts.fastreid.models.losses import HOST_LOSSES, LOSSES, LossEntry

HOST_OWNER = HOSTS["fastreid"]
HOST_TRANSFORMS = (HOST, "Resize", "ToTensor", *HOST_SWITCHES)
ALL_OF_THE_HOSTS = "What the host's own keys of INPUT switch on, in the host's order."


def components() -> dict[str, list[Entry]]:
    """Return kind -> everything that is registered, by name."""
    found = {
        "architectures": list_entries(META_ARCH_REGISTRY._obj_map),
        "backbones": list_entries(BACKBONE_REGISTRY._obj_map),
        "heads": list_entries(REID_HEADS_REGISTRY._obj_map),
        "losses": [_loss(name, entry) for name, entry in LOSSES.items()],
        "transforms": [_transform(name) for name in TRANSFORMS],
        "samplers": [_sampler(name) for name in loaders.SAMPLERS],
        "datasets": list_entries(DATASET_REGISTRY._obj_map),
    }
    return {kind: sorted(entries, key=lambda entry: entry.name.lower()) for kind, entries in found.items()}


def keys() -> dict[str, str]:
    """Return the path of every configuration key of ours with its sentence."""
    return loading.describe_keys()


def _loss(name: str, entry: LossEntry) -> Entry:
    kind = entry.kind or entry.build
    # We build the host's four as well, but their names are the host's.
    return Entry(name, HOST_OWNER if name in HOST_LOSSES else get_owner(kind), first_sentence(kind))


def _transform(name: str) -> Entry:
    if name == HOST:
        return Entry(name, HOST_OWNER, ALL_OF_THE_HOSTS)
    if name in HOST_TRANSFORMS:
        made = TRANSFORMS[name](get_cfg())
        kinds = [type(each.transforms[0] if isinstance(each, RandomApply) else each) for each in made]
        return Entry(name, HOST_OWNER, " ".join(filter(None, map(first_sentence, kinds))))
    build = TRANSFORMS[name]
    make = build.make if isinstance(build, RegisteredTransform) else build
    return Entry(name, get_owner(make), first_sentence(make))


def _sampler(name: str) -> Entry:
    ours = {"ViewBalancedIdentitySampler": ViewBalancedIdentities, "SetReWeightSampler": loaders.SetReWeightSampler}
    sampler = ours.get(name) or getattr(samplers, name)
    return Entry(name, get_owner(sampler), first_sentence(sampler))
