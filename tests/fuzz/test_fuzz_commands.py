"""Commands on damaged files: they do their work, or end with exit code 2, one line, and nothing written."""

import io
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from data import trees
from fastreid.modeling import build_model
from fuzz_arrays import features_of, results_of
from fuzz_cases import LONGEST, damaged, damaged_json, damaged_yaml, fuzz, within
from fuzz_configs import VDT
from fuzz_weights import damaged_torch, torch_bytes
from hypothesis import given
from hypothesis import strategies as st
from released_format import released_vdt

from agreid_plugin.cli import main
from agreid_plugin.evaluation import save_results
from agreid_plugin.hosts.fastreid.config.loading import load_config

SEEN = (UserWarning, RuntimeWarning, FutureWarning)
"""Warnings that Python prints."""


@dataclass(frozen=True)
class Command:
    """A command that reads a file.

    Attributes:
        name: of the test.
        make: writes a good file, with all that belongs to it, into a folder and returns its path.
        argv: from the file to the command.
        damage: from a good file's content to damaged ones.
        writes: what it writes beside the file if all goes well.
    """

    name: str
    make: Callable[[Path], Path]
    argv: Callable[[Path], list]
    damage: Callable[[bytes], st.SearchStrategy[bytes]]
    writes: tuple[str, ...] = ()


def _results(folder: Path) -> Path:
    results = results_of(features_of(folder / "images"))
    for run in ("a", "b"):
        (folder / run).mkdir()
        save_results(folder / run / "results.json", results)
    return folder / "b" / "results.json"


def _config(folder: Path) -> Path:
    return trees.write_text(folder / "tiny.yml", yaml.safe_dump(VDT))


def _table(folder: Path) -> Path:
    trees.write_images(folder, ["1.jpg", "2.jpg", "3.jpg"])
    rows = ["path,pid,split,view", "1.jpg,1,train,aerial", "2.jpg,2,query,aerial", "3.jpg,2,gallery,ground"]
    return trees.write_text(folder / "table.csv", "\n".join(rows))


def _image(folder: Path) -> Path:
    _table(folder)
    return folder / "2.jpg"


def _released(folder: Path) -> Path:
    cfg = load_config(_config(folder))
    (folder / "released.pth").write_bytes(torch_bytes({"model": released_vdt(build_model(cfg).state_dict())}))
    return folder / "released.pth"


def _convert(file: Path) -> list:
    folder = file.parent
    return ["convert", "vdt", folder / "released.pth", "--config", folder / "tiny.yml", "--out", folder / "out.pth"]


COMMANDS = [
    Command(
        "report", _results, lambda file: ["report", file.parents[1] / "a", file.parent, "--draws", 2], damaged_json
    ),
    Command("explain", _config, lambda file: ["explain", "--config", file], damaged_yaml),
    Command("data check: table", _table, lambda file: ["data", "check", "csv", "--root", file.parent], damaged),
    Command("data check: image", _image, lambda file: ["data", "check", "csv", "--root", file.parent], damaged),
    Command("convert", _released, _convert, damaged_torch(), writes=("out.pth",)),
    Command(
        "convert: configuration",
        lambda folder: _released(folder).with_name("tiny.yml"),
        _convert,
        damaged_yaml,
        ("out.pth",),
    ),
]


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def _run(argv: list) -> tuple[int, str]:
    """Run a command in this process; return its exit code and what it printed as errors, warnings among them."""
    out, err = io.StringIO(), io.StringIO()
    with warnings.catch_warnings(record=True) as caught, redirect_stdout(out), redirect_stderr(err), within(LONGEST):
        warnings.simplefilter("always")
        code = main([str(argument) for argument in argv])
    told = [f"{warning.filename}: {warning.message}" for warning in caught if issubclass(warning.category, SEEN)]
    assert "Traceback" not in out.getvalue() + err.getvalue()
    return code, "\n".join([*err.getvalue().splitlines(), *(told if code else [])])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_damaged_file_is_worked_on_or_refused(command, tmp_path):
    file = command.make(tmp_path)
    original, before = file.read_bytes(), _files(tmp_path)
    assert _run(command.argv(file)) == (0, "")
    written = [file.parent / name for name in command.writes]

    @fuzz(0.2 / len(COMMANDS))
    @given(content=command.damage(original))
    def each(content):
        for path in written:
            path.unlink(missing_ok=True)
        file.write_bytes(content)
        code, told = _run(command.argv(file))
        assert code in (0, 2)
        lines = told.splitlines()
        assert len(lines) <= (1 if code else 0), told
        assert all(line.startswith("fastreid: error: ") for line in lines)
        assert _files(tmp_path) - before == (set(written) if code == 0 else set())

    each()
