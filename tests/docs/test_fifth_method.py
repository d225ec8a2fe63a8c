"""`docs/tutorials/fifth_method.md`, followed to the letter in a copy of the package."""

import difflib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from pages import ROOT, blocks, run, write_files

BLOCKS = blocks("tutorials/fifth_method.md")
LISTS = {f"agreid_plugin/hosts/{host}/components.py" for host in ("fastreid", "mmengine")}


def copied(folder: Path) -> Path:
    """A copy of what the page builds on."""
    for part in ("agreid_plugin", "configs"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "tests/test_layers.py", folder / "tests")
    return folder


@pytest.fixture(scope="module")
def before() -> dict[str, str]:
    """The files that the page names and that are there already."""
    named = {block.file for block in BLOCKS if block.file}
    return {name: (ROOT / name).read_text() for name in named if (ROOT / name).exists()}


@pytest.fixture(scope="module")
def followed(tmp_path_factory, before) -> Path:
    """The copy, with every file of the page written and every command run."""
    folder = copied(tmp_path_factory.mktemp("fifth"))
    list(write_files(BLOCKS, folder))
    commands = [line for block in BLOCKS if block.kind == "sh" for line in block.commands()]
    run([["pytest", "tests/test_layers.py", "-k", "bands or components or every_file or cfg"], *commands], folder)
    return folder


@pytest.mark.slow
def test_two_import_lists_get_one_line_each(followed, before):
    assert set(before) == LISTS
    for name, old in before.items():
        changes = list(difflib.ndiff(old.splitlines(), (followed / name).read_text().splitlines()))
        changed = [line for line in changes if line[0] in "+-"]
        assert changed == ["+     bands,"], name
        above = changes[: changes.index(changed[0])]
        opened = max(place for place, line in enumerate(above) if "import (" in line)
        assert not any(line.strip() == ")" for line in above[opened:]), name


@pytest.mark.slow
@pytest.mark.both_hosts
def test_both_hosts_trained_it(followed):
    lines = [json.loads(line) for line in (followed / "logs/small/metrics.json").read_text().splitlines()]
    assert any("loss_apart" in line for line in lines)
    for run_folder in ("small", "small-mmengine"):
        card = json.loads((followed / "logs" / run_folder / "run_card.json").read_text())
        assert card["setup"]["architecture"] == "Bands"


@pytest.mark.slow
@pytest.mark.both_hosts
def test_both_hosts_evaluate_a_checkpoint_alike(followed):
    results = [json.loads((followed / f"logs/by-{host}/results.json").read_text()) for host in ("fastreid", "mmengine")]
    assert results[0] == results[1]
    assert {"ALL", "A2G", "AG-cross"} <= set(results[0]["CARGO"])
    files = [np.load(followed / f"logs/by-{host}.npz") for host in ("fastreid", "mmengine")]
    assert set(files[0]) == set(files[1])
    for name in files[0]:
        if np.issubdtype(files[0][name].dtype, np.floating):
            np.testing.assert_allclose(files[0][name], files[1][name], atol=1e-5, err_msg=name)


def test_the_page_shows_no_file_that_nobody_runs():
    assert len([block for block in BLOCKS if block.file]) == 10
    assert sum(block.kind == "sh" for block in BLOCKS) == 3
