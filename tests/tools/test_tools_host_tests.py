"""`tools/host-tests`: a test that only the plain host passes is found, and named with its error."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "host-tests"
TESTS = {
    "test_each": """
import sys

def test_good():
    import mmengine

def test_bad():
    assert False

def test_mended():
    assert "agreid_plugin.hosts.mmengine.components" in sys.modules, "not with us"

def test_broken():
    assert "agreid_plugin.hosts.mmengine.components" not in sys.modules, "only plain"
""",
    "test_unreadable": "import nothing_of_this_name",
}


def run_tool(*arguments):
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path):
    for name in ("mmengine", "tests"):
        (tmp_path / name).mkdir()
    (tmp_path / "mmengine" / "version.py").touch()
    for name, text in TESTS.items():
        (tmp_path / "tests" / f"{name}.py").write_text(text)
    return tmp_path


@pytest.mark.slow
def test_what_we_break_is_named_and_what_we_mend_too(checkout):
    done = run_tool(checkout, "--jobs", "0", "--out", checkout / "outcomes.json")
    assert done.returncode == 1, done.stdout + done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "mended: tests/test_each.py::test_mended: AssertionError: not with us" in "\n".join(lines)
    assert [line for line in lines if line.startswith("BROKEN")] == [
        "BROKEN: tests/test_each.py::test_broken: AssertionError: only plain"
    ]
    assert "not run: tests/test_unreadable.py: ModuleNotFoundError: No module named 'nothing_of_this_name'" in lines
    assert lines[-1] == "1 mended, 1 broken"
    outcomes = json.loads((checkout / "outcomes.json").read_text())
    assert outcomes["tests/test_each.py::test_good"] == ["passed", "passed"]
    assert outcomes["tests/test_each.py::test_bad"] == ["failed", "failed"]


def test_bad_arguments_are_one_line(checkout, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    for arguments, message in (
        ([empty], f"{empty}: no checkout of mmengine or mmpretrain"),
        ([checkout, "--only", "tests/test_eahc.py"], "(did you mean tests/test_each.py?)"),
    ):
        done = run_tool(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert message in done.stderr
