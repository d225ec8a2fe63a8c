"""`fastreid explain` of mmengine's configurations: what is built, without data, weights or a file written."""

from pathlib import Path

import pytest
from conftest import ROOT, assert_one_line
from mmengine.registry import MODELS
from small_mmengine_config import write_config

from agreid_plugin.data.datasets import load
from agreid_plugin.hosts.mmengine.commands.explain import explain
from agreid_plugin.hosts.mmengine.config.loading import load_config
from agreid_plugin.types import View

RECIPES = sorted((ROOT / "projects").glob("*/agsynth.py")) + sorted((ROOT / "projects").glob("*/cp2108.py"))


def rows(path: Path, *overrides: str) -> dict[str, dict[str, str]]:
    return {title: dict(found) for title, found in explain(path, overrides).items()}


def test_it_names_all_that_is_built(tiny_py, agsynth, fastreid_command, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    found = rows(tiny_py)
    assert found["model"]["architecture"] == "VDT (agreid_plugin)"
    assert found["model"]["num_ids"] == "4 identities"
    assert found["losses"]["cls"].startswith("IdentityLoss(weight=1")
    assert found["losses"]["view_loss"].endswith("of VDT itself")
    assert found["test images"] == {"1": "ReadImage()", "2": "Resize(size=(32, 16))", "3": "Pack()"}
    assert found["training sets"]["CARGO"] == "48 images (24 aerial, 24 ground), 4 identities, 13 cameras"
    query, gallery = (load("CARGO", agsynth).split(side) for side in ("query", "gallery"))
    aerial, ground = (sum(r.view == view for r in side) for view, side in zip(View, (query, gallery), strict=True))
    assert found["test sets"]["CARGO/A2G"] == f"{aerial} queries, {ground} gallery images"
    assert found["optimizer"] == {"epochs": "1", "optimizer": "SGD(lr=0.05)"}
    sizes = {name: text.split() for name, text in list(found.values())[-1].items()}
    model = MODELS.build(load_config(tiny_py).model)
    assert sizes["total"][0] == f"{sum(p.numel() for p in model.parameters()):,}"
    outcome = fastreid_command("explain", "--config", tiny_py)
    assert outcome.code == 0, outcome.err
    assert "VDT (agreid_plugin)" in outcome.out
    assert sorted(tmp_path.rglob("*")) == before


def test_another_count_of_identities_would_be_refused(tiny_py):
    assert "set num_ids=4" in rows(tiny_py, "model.num_ids", "7")["training sets"]["refused"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recipes_without_their_data_and_weights(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = rows(path)
    name, text = next(iter(found["training sets"].items()))
    assert "not there" in text, name
    parameters, operations, _ = found["parameters, and operations for one test image"]["total"].split()
    assert int(parameters.replace(",", "")) > 0
    assert float(operations) > 0
    assert not list(tmp_path.iterdir())


def test_a_model_that_cannot_be_built_is_one_line(tmp_path, agsynth, fastreid_command):
    path = write_config(tmp_path / "tiny.py", agsynth)
    assert_one_line(fastreid_command("explain", "--config", path, "model.type", "agreid_plugin.VDTT"), "VDT")
