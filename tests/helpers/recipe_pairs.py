"""Recipes that both hosts have, in the form of each, for tests that compare them."""

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT
from mmengine.config import Config
from mmengine.registry import init_default_scope

from agreid_plugin.hosts.fastreid.config.loading import load_config, with_value
from agreid_plugin.hosts.fastreid.data.attributes import with_attributes

PROJECTS = ROOT / "projects"
IDENTITIES = {"CARGO": 2500, "CP2108": 1442, "TAG_PEDES": 4840}  # as published
IDENTITIES_OF_AGSYNTH = 100  # half of the people


def name_of(path: Path) -> str:
    """What a recipe is called: its project and its file."""
    return str(path.relative_to(PROJECTS).with_suffix(""))


# A base of several recipes names no folder for a run.
RECIPES = sorted(name_of(path) for path in PROJECTS.glob("*/*.py") if "work_dir" in path.read_text())


def both_forms(name: str, root: Path) -> SimpleNamespace:
    """Return a recipe as `yml` and `py`; `cfg` and `config` are the same without pretrained weights.

    A recipe that learns attributes finds them in CP2108 below `root`.
    """
    path = PROJECTS / name
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTREID_DATASETS", str(root))
        yml, py = load_config(path.with_suffix(".yml")), Config.fromfile(path.with_suffix(".py"))
    init_default_scope("agreid_plugin")
    return SimpleNamespace(yml=yml, py=py, cfg=prepare(yml, str(root)), config=_without_weights(py))


def prepare(yml, root):
    """Return a configuration of fast-reid's with the number of identities, the attributes, and no weights."""
    cfg = with_value(with_value(yml, "MODEL.BACKBONE.PRETRAIN", False), "MODEL.HEADS.NUM_CLASSES", identities(yml))
    if cfg.MODEL.BACKBONE.PRETRAIN_PATH.endswith(".pt"):  # CLIP's, which would tell the activation
        cfg = with_value(cfg, "MODEL.CLIP.QUICK_GELU", "yes")
    return with_attributes(with_value(cfg, "DATASETS.ROOT", root) if "CP2108" in cfg.DATASETS.NAMES else cfg)


def identities(yml) -> int:
    """How many people a recipe trains on."""
    return IDENTITIES_OF_AGSYNTH if yml.DATASETS.AGSYNTH.IDS else IDENTITIES[yml.DATASETS.NAMES[0]]


def _without_weights(py):
    config = copy.deepcopy(py)
    if vit := config.model.get("backbone", {}).get("vit"):
        vit.pop("pretrained", None)
    elif config.model.clip.pop("pretrained", None):
        config.model.clip.quick_gelu = "yes"
    return config
