"""`docs/tutorials/own_dataset.md`, followed to the letter."""

import json
import re
import shutil
from pathlib import Path

import pytest
from pages import ROOT, blocks, run, write_files

BLOCKS = blocks("tutorials/own_dataset.md")
PLUGIN = "own/campus"

pytestmark = [pytest.mark.both_hosts, pytest.mark.slow]


def install(folder: Path) -> None:
    """Leave beside the plugin what pip leaves of it: its name, version and entry points."""
    project = (folder / "pyproject.toml").read_text()
    name, version = (re.search(rf'^{key} = "(.*)"', project, re.MULTILINE)[1] for key in ("name", "version"))
    group, entry, module = re.search(r'entry-points\."(.*)"\]\n(\w+) = "(\w+)"', project).groups()
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry} = {module}\n")


@pytest.fixture(scope="module")
def followed(tmp_path_factory) -> tuple[Path, str]:
    """A folder with every file of the page in which every command was run, and what they said."""
    folder = tmp_path_factory.mktemp("own_dataset")
    for part in ("configs", "projects/SVPR-ReID"):
        shutil.copytree(ROOT / part, folder / part)
    list(write_files(BLOCKS, folder))
    install(folder / PLUGIN)
    commands = [line for block in BLOCKS if block.kind == "sh" for line in block.commands()]
    return folder, run(commands, folder, folder / PLUGIN)


def results(folder: Path, name: str) -> dict:
    return json.loads((folder / "logs" / name / "results.json").read_text())


def test_a_folder_is_checked_trained_and_tested(followed):
    folder, said = followed
    assert "aerial" in said
    assert set(results(folder, "own-folder")["folder"]) == {"ALL", "A2G", "G2A"}
    assert set(results(folder, "own-folder-again")["folder"]) == {"ALL", "A2G"}


def test_both_hosts_give_the_same_results(followed):
    folder, _ = followed
    assert results(folder, "own-folder-mmengine") == results(folder, "own-folder-again")
    assert results(folder, "own-campus-by-mmengine") == results(folder, "own-campus")


def test_protocols_of_ones_own(followed):
    folder, said = followed
    names = {"ALL", "A2G", "AG-cross", "other-time"}
    for name in ("own-campus", "own-campus-mmengine"):
        assert set(results(folder, name)["Campus"]) == names
    assert all(f"Campus/{name}" in said for name in names)


def test_attributes_of_a_table_are_learned(followed):
    _, said = followed
    told = said[said.index("$ fastreid explain") : said.index("$ python own/to_campus.py")]
    assert set(re.findall(r"(\w+) \(\d+ values\)", told)) == {"upper", "lower", "bag"}


def test_every_file_of_the_page_is_written_and_every_command_run(followed):
    folder, said = followed
    assert len([block for block in BLOCKS if block.file]) == 12
    assert all((folder / block.file).is_file() for block in BLOCKS if block.file)
    assert said.count("$ fastreid") + said.count("$ python") == 15
