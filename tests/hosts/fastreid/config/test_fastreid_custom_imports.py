"""`CUSTOM_IMPORTS`: losses of one's own in a file beside the recipe, without options and in every process."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, SMALL_CONFIG, assert_one_line
from small_fastreid import forget_keys

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.models.losses import LOSSES

GUIDE = (ROOT / "docs" / "guide" / "parts.md").read_text(encoding="utf-8")
LOSS = GUIDE.partition("**`my_losses.py`**\n\n```python\n")[2].partition("```")[0]


@pytest.fixture
def recipe(tmp_path, market, monkeypatch) -> Path:
    """A recipe that asks for the guide's loss, whose file lies beside it."""
    forget_keys(monkeypatch)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_losses.py").write_text(LOSS)
    model = {**SMALL_CONFIG["MODEL"], "LOSSES": {"NAME": ["CrossEntropyLoss", "NormLoss"]}}
    content = {**SMALL_CONFIG, "MODEL": model, "DATASETS": {"ROOT": str(market)}, "CUSTOM_IMPORTS": ["my_losses.py"]}
    (tmp_path / "recipe.yml").write_text(yaml.safe_dump(content))
    yield tmp_path / "recipe.yml"
    LOSSES.pop("NormLoss", None)
    for name in ("my_losses", "failing"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_loss_beside_the_recipe_is_trained_with(recipe, fastreid_command, tmp_path, processes):
    run = ["train", "--config", recipe, "--output", tmp_path / "run", "--num-processes", processes]
    outcome = fastreid_command(*run, "SOLVER.MAX_EPOCH", 1)
    assert outcome.code == 0, outcome.err
    first = json.loads((tmp_path / "run" / "metrics.json").read_text().splitlines()[0])
    assert first["loss_norm"] > 0
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert written["CUSTOM_IMPORTS"] == [str(tmp_path / "my_losses.py")], "whole, for evaluations of the run's own file"
    weights = tmp_path / "run" / "model_final.pth"
    outcome = fastreid_command("eval", "--config", tmp_path / "run" / "config.yaml", "--weights", weights)
    assert outcome.code == 0, outcome.err


def test_its_keys_are_known_when_the_recipe_sets_them(recipe, fastreid_command):
    assert load_config(recipe, ["MODEL.LOSSES.NORM.WEIGHT", "2"]).MODEL.LOSSES.NORM.WEIGHT == 2
    outcome = fastreid_command("explain", "--config", recipe)
    assert outcome.code == 0, outcome.err
    assert "NormLoss" in outcome.out


def test_a_command_line_names_files_from_where_it_is(recipe, monkeypatch):
    recipe.write_text("MODEL: {LOSSES: {NAME: [NormLoss]}}")
    monkeypatch.chdir(recipe.parent)
    assert [str(recipe.with_name("my_losses.py"))] == load_config(
        recipe, ["CUSTOM_IMPORTS", "[my_losses.py]"]
    ).CUSTOM_IMPORTS
    assert "NormLoss" in LOSSES


@pytest.mark.parametrize(
    ("imports", "words"),
    [
        (["no_such.py"], ["CUSTOM_IMPORTS", "no_such.py does not exist"]),
        (["no_such_module"], ["CUSTOM_IMPORTS", "no_such_module does not import", "No module named"]),
        (["failing.py"], ["CUSTOM_IMPORTS", "failing.py does not import: ZeroDivisionError"]),
        (["json.py"], ["json.py has the name of another module, json: rename the file"]),
        ("my_losses.py", ["takes a list of modules or .py files", "got 'my_losses.py'"]),
        ([3], ["takes a list of modules or .py files"]),
    ],
)
def test_bad_names_are_one_line(recipe, fastreid_command, imports, words):
    recipe.with_name("failing.py").write_text("1 / 0\n")
    recipe.with_name("json.py").write_text("")
    content = yaml.safe_load(recipe.read_text())
    recipe.write_text(yaml.safe_dump({**content, "CUSTOM_IMPORTS": imports}))
    run = recipe.with_name("run")
    assert_one_line(fastreid_command("train", "--config", recipe, "--output", run), *words)
    assert not run.exists()


def test_a_configuration_of_mmengine_is_told_apart(tmp_path):
    (tmp_path / "a.py").write_text("")
    (tmp_path / "a.yml").write_text("{}")
    with pytest.raises(InputError, match=r"a.py is a configuration of mmengine; name one of fast-reid here, a .yml, "):
        load_config(tmp_path / "a.py")
