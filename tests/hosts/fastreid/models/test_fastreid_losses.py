"""Losses by name inside the host: what they are built from, what they are computed on, and what is refused."""

from types import SimpleNamespace

import pytest
import torch
from conftest import assert_one_line
from fastreid.config import get_cfg
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY, Baseline
from torch import nn

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid import components  # noqa: F401 - importing the first registers all
from agreid_plugin.hosts.fastreid.config.loading import describe_keys, key_paths
from agreid_plugin.hosts.fastreid.models import losses as registry
from agreid_plugin.hosts.fastreid.models.losses import HOST_KEYS, LOSSES, LossEntry, build_objectives, check_losses
from agreid_plugin.losses import (
    NITC,
    RITC,
    AttributeLoss,
    IdentityLoss,
    LoadBalanceLoss,
    OrthogonalLoss,
    SupConLoss,
    ViewLoss,
)
from agreid_plugin.types import Batch

PARTS = ("view_features", "view_logits", "routers", "attribute_logits", "text_features")


def configured(architecture: str, *names: str, **values: object):
    """Return a configuration that names an architecture and losses; values are by key below `MODEL.LOSSES`."""
    cfg = get_cfg()
    cfg.MODEL.META_ARCHITECTURE, cfg.MODEL.LOSSES.NAME = architecture, names
    for path, value in values.items():
        node, key = path.split("__")
        cfg.MODEL.LOSSES[node][key] = value
    return cfg


@pytest.fixture
def generous(monkeypatch) -> str:
    """Another package's architecture, which gives its losses all that any of them needs."""
    monkeypatch.setitem(META_ARCH_REGISTRY._obj_map, "Generous", nn.Module)
    monkeypatch.setitem(registry.ARCHITECTURES, "Generous", registry.Architecture(parts=frozenset(PARTS)))
    return "Generous"


@pytest.fixture
def outputs() -> SimpleNamespace:
    """What it gives them: four images of two people."""
    generator = torch.Generator().manual_seed(0)
    return SimpleNamespace(
        features=torch.randn(4, 6, generator=generator),
        view_features=torch.randn(4, 6, generator=generator),
        view_logits=torch.randn(4, 3, generator=generator),
        routers=[(torch.rand(4, 3, generator=generator).softmax(dim=1), None)],
        attribute_logits=[torch.randn(4, values, generator=generator) for values in (2, 4)],
        text_features=torch.randn(4, 6, generator=generator),
    )


BATCH = Batch(
    pids=torch.tensor([0, 0, 1, 1]),
    views=torch.tensor([0, 1, 2, -1]),
    attributes=torch.tensor([[0, 3], [1, 2], [-1, 1], [0, 0]]),
)


def test_losses_are_computed_on_the_parts_that_an_architecture_gives(generous, outputs):
    cfg = configured(
        generous, "OrthogonalLoss", "ViewLoss", "LoadBalanceLoss", "AttributeLoss", "NITC", "RITC", "SupConLoss",
        ORTHOGONAL__WEIGHT=0.5, ORTHOGONAL__KIND="dot", VIEW__CLASSES=3, VIEW__SMOOTHING=0.1, VIEW__SMOOTHED_OVER=20,
        BALANCE__WEIGHT=2.0, ATTRIBUTES__WEIGHT=0.05, NITC__SOFT_LABEL=0.2, NITC__TEMPERATURE=0.1, RITC__SMOOTHING=0.3,
        RITC__TEMPERATURE=0.2, SUPCON__TEMPERATURE=0.5,
    )  # fmt: skip
    given, texts = outputs.features, outputs.text_features
    expected = {
        "orthogonal": OrthogonalLoss(0.5, "dot")(given, outputs.view_features),
        "view": ViewLoss(1.0, 3, 0.1, 20)(outputs.view_logits, BATCH.views),
        "balance": LoadBalanceLoss(2.0)(outputs.routers),
        "attributes": AttributeLoss(0.05)(outputs.attribute_logits, BATCH.attributes),
        "nitc": NITC(1.0, 0.2, 0.1)(given, texts, BATCH.pids),
        "ritc": RITC(1.0, 0.3, 0.2)(given, texts, BATCH.pids),
        "supcon": SupConLoss(1.0, 0.5)(given, texts, BATCH.pids),
    }
    found = {name: objective(outputs, BATCH) for name, objective in build_objectives(cfg).items()}
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("over_all", [True, False])
def test_smoothing_of_the_cross_entropy_is_a_key(over_all):
    cfg = configured("VDT", "CrossEntropyLoss", CE__EPSILON=0.2, CE__OVER_ALL=over_all)
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    expected = IdentityLoss(smoothing=0.2, over_nonzero=True, over_all=over_all)(logits, BATCH.pids)
    assert build_objectives(cfg)["cls"](SimpleNamespace(logits=logits), BATCH) == expected


@pytest.mark.parametrize("name", [name for name, entry in LOSSES.items() if entry.needs])
def test_defaults_of_the_keys_are_those_of_the_class(generous, name):
    built = build_objectives(configured(generous, name))[LOSSES[name].log_name].loss
    assert repr(built) == repr(type(built)())
    assert type(built).__name__ == name


@pytest.mark.parametrize("architecture", ["Baseline", "MGN", "MoCo", "Distiller"])
@pytest.mark.parametrize("name", [name for name, entry in LOSSES.items() if entry.needs])
def test_the_hosts_architectures_refuse_what_they_have_nothing_for(architecture, name):
    part = LOSSES[name].needs.replace("_", " ")
    words = rf"^MODEL.LOSSES.NAME {name} needs {part}, which {architecture} does not make; [^\n]* (do|does)$"
    with pytest.raises(InputError, match=words):
        check_losses(configured(architecture, "CrossEntropyLoss", name))


@pytest.mark.usefixtures("generous")
def test_who_makes_a_part_is_said():
    with pytest.raises(InputError, match=r"; Generous, SVPR, TAGCLIP, VDT, ViSA do$"):
        check_losses(configured("Baseline", "OrthogonalLoss"))
    with pytest.raises(InputError, match=r"needs routers, which VDT does not make; Generous, ViSA do$"):
        check_losses(configured("VDT", "LoadBalanceLoss"))


def test_nobody_who_makes_a_part_is_said_as_well(monkeypatch):
    monkeypatch.setitem(LOSSES, "GaitLoss", LossEntry("gait", "NONE", nn.Identity, "gait_cycles"))
    with pytest.raises(InputError, match="needs gait cycles, which Baseline does not make; no architecture does"):
        check_losses(configured("Baseline", "GaitLoss"))


@pytest.mark.parametrize(
    ("architecture", "name", "key"),
    [
        ("VDT", "OrthogonalLoss", "MODEL.VDT.VIEW_WEIGHT"),
        ("VDT", "ViewLoss", "MODEL.VDT.VIEW_WEIGHT"),
        ("ViSA", "OrthogonalLoss", "MODEL.VISA.VIEW_WEIGHT"),
        ("ViSA", "ViewLoss", "MODEL.VISA.VIEW_WEIGHT"),
        ("ViSA", "LoadBalanceLoss", "MODEL.VISA.BALANCE_WEIGHT"),
    ],
)
def test_a_loss_that_a_method_has_already_is_refused_with_its_key(architecture, name, key):
    words = rf"^MODEL.LOSSES.NAME {name} is built into {architecture} already, weighted by {key}: [^\n]*$"
    with pytest.raises(InputError, match=words):
        build_objectives(configured(architecture, name))


def test_a_part_that_a_method_keeps_to_itself_is_not_promised(monkeypatch):
    monkeypatch.setitem(LOSSES, "TheirLoss", LossEntry("theirs", "NONE", nn.Identity, "view_features"))
    with pytest.raises(InputError, match="TheirLoss needs view features, which VDT keeps for the losses"):
        check_losses(configured("VDT", "TheirLoss"))


def test_names_are_known_and_given_once():
    with pytest.raises(InputError, match=r"'Nitc' unknown \(did you mean NITC\?\)"):
        check_losses(configured("Baseline", "Nitc"))
    with pytest.raises(InputError, match=r"^MODEL.LOSSES.NAME names VIAL twice$"):
        check_losses(configured("Baseline", "VIAL", "VIAL"))


def test_training_does_not_begin(config_file, fastreid_command, tmp_path):
    overrides = ("MODEL.LOSSES.NAME", "('CrossEntropyLoss', 'OrthogonalLoss')")
    outcome = fastreid_command("train", "--config", config_file, "--output", tmp_path / "run", *overrides)
    assert_one_line(outcome, "OrthogonalLoss needs view features, which Baseline does not make; SVPR, TAGCLIP, VDT")
    assert not list((tmp_path / "run").glob("*.pth"))


def test_a_bad_value_is_said_of_its_keys(generous):
    with pytest.raises(InputError, match=r"^MODEL.LOSSES.RITC: smoothing=0.0 [^\n]*$"):
        build_objectives(configured(generous, "RITC", RITC__SMOOTHING=0.0))


def test_weights_of_built_in_losses_are_keys():
    known = set(key_paths(get_cfg()))
    built_in = {name: each for name, each in registry.ARCHITECTURES.items() if name in META_ARCH_REGISTRY._obj_map}
    assert any(facts.own for facts in built_in.values())
    for name, facts in built_in.items():
        assert set(filter(None, facts.own.values())) <= known, name
        assert set(facts.own) <= set(LOSSES), name


def test_every_key_has_a_sentence_and_every_loss_its_keys():
    assert all(describe_keys()[key.path].endswith(".") for key in HOST_KEYS)
    assert all(entry.node in get_cfg().MODEL.LOSSES for entry in LOSSES.values())


def test_an_architecture_given_its_parts_needs_no_configuration():
    model = Baseline(
        backbone=nn.Identity(), heads=nn.Identity(), pixel_mean=[0.0] * 3, pixel_std=[1.0] * 3, loss_kwargs={}
    )
    assert len(model.objectives) == 0


def test_focal_loss_is_the_hosts():
    logits, pids = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 5, 5])
    loss = build_objectives(configured("Baseline", "FocalLoss", FL__ALPHA=0.5, FL__SCALE=2.0))["focal"]
    found = loss(SimpleNamespace(logits=logits), Batch(pids=pids))
    own = torch.stack([row.softmax(0)[pid] for row, pid in zip(logits, pids, strict=True)])
    torch.testing.assert_close(found, -2 * 0.5 * ((1 - own) ** 2 * own.log()).mean())
