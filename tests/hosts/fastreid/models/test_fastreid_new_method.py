"""A method in a file of its own: its keys, losses, views, hooks and files are known without a change elsewhere."""

import json
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from conftest import assert_one_line
from fastreid.engine.hooks import HookBase
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from small_fastreid import VISA, forget_keys, write_tiny
from torch import nn

from agreid_plugin.hosts.fastreid.commands.catalog import components
from agreid_plugin.hosts.fastreid.commands.explain import explain
from agreid_plugin.hosts.fastreid.config.loading import Key, declare, describe_keys, load_config
from agreid_plugin.hosts.fastreid.models import losses
from agreid_plugin.hosts.fastreid.models.base import HostMethod, register_method
from agreid_plugin.hosts.fastreid.models.losses import build_objectives
from agreid_plugin.nn.bnneck import BNNeck
from agreid_plugin.types import ReIDMethod


class Flatness(nn.Module):
    """Mean squared logit."""

    def __init__(self, weight: float):
        super().__init__()
        self.weight = weight

    def forward(self, logits):
        return self.weight * logits.square().mean()


class MeanColors(ReIDMethod):
    """Compares images by their mean colors.

    Args:
        identities: number of identities.
        objectives: name -> loss.
        flat_weight: weight of its own loss. It keeps logits small.
        palette: a file.
        shades: how many, None for all.
    """

    training_inputs = frozenset({"images", "pids", "views"})

    def __init__(
        self,
        identities: int,
        objectives: nn.ModuleDict,
        *,
        flat_weight: float = 0.5,
        palette: str = "",
        shades: int | None = None,
    ):
        super().__init__()
        self.palette, self.shades = palette, shades
        self.head, self.objectives = BNNeck(3, identities), objectives
        self.flat_loss, self.absent_loss = Flatness(flat_weight), Flatness(1.0)
        self.learned = nn.Linear(3, 3)

    def forward(self, batch):
        return SimpleNamespace(identity=self.head(self.learned(batch.images.mean(dim=(2, 3))), batch.pids))

    def losses(self, outputs, batch):
        terms = {f"loss_{name}": objective(outputs.identity, batch) for name, objective in self.objectives.items()}
        return terms | {"loss_flat": self.flat_loss(outputs.identity.logits)}

    def embed(self, outputs):
        return outputs.identity.embedding


class Counted(HookBase):
    """Counts steps."""

    def __init__(self):
        self.steps = 0

    def after_step(self):
        self.steps += 1
        self.trainer.storage.put_scalar("counted", self.steps, smoothing_hint=False)


class Colors(HostMethod, MeanColors):
    """Colors, built from a configuration."""

    computed_with: ClassVar = {"absent_loss": "nothing"}
    own_losses: ClassVar = {"ViewLoss": "FLAT_WEIGHT"}

    @classmethod
    def build_parts(cls, cfg):
        return cfg.MODEL.HEADS.NUM_CLASSES, build_objectives(cfg)

    @classmethod
    def training_hooks(cls, cfg):
        return [Counted()]

    @classmethod
    def weight_files(cls, cfg):
        return {"palette": cfg.MODEL.COLORS.PALETTE}


@pytest.fixture
def colors(monkeypatch, tmp_path, agsynth) -> tuple[object, ...]:
    """What importing a method's file does; returns the options of a run of it."""
    monkeypatch.setattr(META_ARCH_REGISTRY, "_obj_map", dict(META_ARCH_REGISTRY._obj_map))
    monkeypatch.setattr(losses, "ARCHITECTURES", dict(losses.ARCHITECTURES))
    forget_keys(monkeypatch)
    declare([Key("MODEL.COLORS.NAMES", [], "Colors: names.", entry="red")])
    register_method("MODEL.COLORS")(Colors)
    return ("--config", write_tiny(tmp_path, VISA, agsynth), "MODEL.META_ARCHITECTURE", "Colors")


def test_it_trains_with_its_losses_hooks_and_files(colors, tmp_path, fastreid_command):
    palette = tmp_path / "palette.pth"
    torch.save({"model": {}}, palette)
    outcome = fastreid_command("train", *colors, "MODEL.COLORS.PALETTE", palette)
    assert outcome.code == 0, outcome.err
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.json").read_text().splitlines()]
    steps = [line for line in lines if "total_loss" in line]
    assert [line["counted"] for line in steps] == [line["iteration"] + 1 for line in steps]
    assert steps[0]["loss_flat"] > 0
    card = json.loads((tmp_path / "run" / "run_card.json").read_text())
    assert card["weights"]["palette"]["sha256"]


def test_options_of_its_constructor_are_keys(colors):
    found = {path: sentence for path, sentence in describe_keys().items() if path.startswith("MODEL.COLORS.")}
    assert found == {
        "MODEL.COLORS.NAMES": "Colors: names.",
        "MODEL.COLORS.FLAT_WEIGHT": "Colors: weight of its own loss.",
        "MODEL.COLORS.PALETTE": "Colors: a file.",
        "MODEL.COLORS.SHADES": "Colors: how many, None for all.",
    }
    _, path, *overrides = colors
    for given, shades in (("None", None), ("3", 3)):
        cfg = load_config(path, [*overrides, "MODEL.HEADS.NUM_CLASSES", "5", "MODEL.COLORS.SHADES", given])
        model = Colors(cfg)
        assert (model.shades, model.flat_loss.weight, model.head.classes) == (shades, 0.5, 5)


def test_it_is_explained_and_listed(colors):
    _, path, *overrides = colors
    told = {title: dict(rows) for title, rows in explain(path, overrides).items()}
    assert told["losses"]["flat_loss"] == "weight 0.5, of Colors itself"
    assert "absent_loss" not in told["losses"]
    assert "Colors, built from a configuration." in [entry.doc for entry in components()["architectures"]]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("MODEL.LOSSES.NAME", "('ViewLoss',)"), ("built into Colors already", "MODEL.COLORS.FLAT_WEIGHT")),
        (("MODEL.COLORS.FLAT_WIGHT", 1), ("did you mean MODEL.COLORS.FLAT_WEIGHT?",)),
        (("MODEL.COLORS.NAMES", "[3]"), ("MODEL.COLORS.NAMES takes text",)),
        (("MODEL.COLORS.SHADES", "many"), ("MODEL.COLORS.SHADES takes a whole number",)),
    ],
)
def test_its_mistakes_are_one_line(colors, fastreid_command, overrides, words):
    assert_one_line(fastreid_command("train", *colors, *overrides), *words)


def test_it_learns_from_views_and_so_needs_them(colors, market, fastreid_command):
    known = ("DATASETS.NAMES", "('Market1501',)", "DATASETS.TESTS", "('Market1501',)", "DATASETS.ROOT", market)
    sampled = ("DATALOADER.SAMPLER_TRAIN", "NaiveIdentitySampler", "SOLVER.IMS_PER_BATCH", 8, "TEST.PROTOCOLS", "[]")
    outcome = fastreid_command("train", *colors, *known, *sampled)
    assert_one_line(outcome, "Colors learns from the view of every image")
