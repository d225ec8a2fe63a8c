"""Recipes by name: in a checkout, and in a wheel, which has them inside."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from agreid_plugin.engine.configuration import RECIPES, SHIPPED, find_recipe
from agreid_plugin.hosts.fastreid.config.loading import load_config


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """What a wheel unpacks."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "info").mkdir()
    command = ["setup.py", "-q", "egg_info", "--egg-base", folder / "info", "build_py", "--build-lib", folder]
    done = subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_file_comes_before_a_recipe_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = str(ROOT / "projects" / "ViSA" / "cargo.yml")
    assert ROOT == RECIPES
    assert find_recipe("ViSA/cargo.yml") == find_recipe("projects/ViSA/cargo.yml") == recipe
    assert find_recipe("ViSA/none.yml") == "ViSA/none.yml"
    (tmp_path / "ViSA").mkdir()
    (tmp_path / "ViSA" / "cargo.yml").touch()
    assert find_recipe("ViSA/cargo.yml") == "ViSA/cargo.yml"


def test_a_wheel_has_all_recipes_with_their_bases(built):
    shipped = built / "agreid_plugin" / SHIPPED
    wanted = [path for folder in ("configs", "projects") for path in (ROOT / folder).rglob("*.*")]
    wanted = sorted(path.relative_to(ROOT) for path in wanted if path.suffix in (".yml", ".py"))
    assert len(wanted) > 50
    assert sorted(path.relative_to(shipped) for path in shipped.rglob("*.*")) == wanted
    for name in ("ViSA/cargo.yml", "SVPR-ReID/agsynth.yml"):
        assert load_config(find_recipe(name, shipped)) == load_config(find_recipe(name))


def test_an_installed_command_finds_a_recipe_by_name(built):
    code = "from agreid_plugin.cli.main import build_parser\n"
    code += "print(build_parser().parse_args(['explain', '--config', 'projects/VDT/agsynth.py']).config_file)"
    environment = {**os.environ, "PYTHONPATH": str(built)}
    done = subprocess.run([sys.executable, "-c", code], cwd=built, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == str(built / "agreid_plugin" / SHIPPED / "projects" / "VDT" / "agsynth.py"), (
        done.stderr
    )
