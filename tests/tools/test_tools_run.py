"""`tools/run`: one clear line when it cannot make the environment, nothing left behind, no delay when it is there."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def repository(tmp_path) -> Path:
    """A copy of what `tools/run` reads."""
    repository = tmp_path / "repository"
    (repository / "tools").mkdir(parents=True)
    for name in ("tools/run", "tools/pins.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, repository / name)
    return repository


def run(repository: Path, *command: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [repository / "tools" / "run", *command],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        cwd=repository.parent,
        timeout=300,
    )


def fake_environment(repository: Path) -> None:
    """An environment that looks complete: an interpreter and the right stamp."""
    folder = repository / ".venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to("/bin/sh")
    stamp = subprocess.run(
        ["sh", "-c", '{ echo "$0"; cat "$0/pyproject.toml" "$0/tools/pins.txt" "$0/tools/run"; } | cksum', repository],
        capture_output=True,
        text=True,
    ).stdout
    (repository / ".venv" / ".complete").write_text(stamp)


def test_no_python(repository, tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "cat", "cksum", "dirname", "mktemp", "rm", "flock", "echo"):
        if shutil.which(name):
            (tools / name).symlink_to(shutil.which(name))
    result = run(repository, "true", PATH=str(tools), PYTHON="")
    assert result.returncode == 2
    assert result.stderr.strip().startswith("tools/run: no Python 3.10 or newer found")
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (repository / ".venv").exists()


@pytest.mark.slow
def test_no_network(repository):
    unreachable = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_NO_CACHE_DIR": "1",
    }
    result = run(repository, "true", **unreachable)
    assert result.returncode == 2
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("tools/run: installing failed, nothing was kept: the package index cannot be reached")
    assert not (repository / ".venv").exists()


def test_a_complete_environment_is_used_at_once(repository):
    fake_environment(repository)
    result = run(repository, "sh", "-c", "echo $VIRTUAL_ENV; pwd; exit 7")
    assert result.returncode == 7
    assert result.stdout.split() == [str(repository / ".venv"), str(repository.parent)]
    assert result.stderr == ""


def test_a_change_of_the_pins_makes_it_stale(repository, tmp_path):
    fake_environment(repository)
    (repository / "tools" / "pins.txt").write_text("torch==0.0.1\n")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n[ $1 != -m ]\n")  # one that has no venv
    python.chmod(0o755)
    result = run(repository, "true", PYTHON=str(python))
    assert "tools/run: making .venv" in result.stderr
    assert result.stderr.strip().endswith("cannot make a virtual environment; install its venv module")
    assert result.returncode == 2
    assert not (repository / ".venv").exists()


def test_no_command(repository):
    result = run(repository)
    assert (result.returncode, result.stderr.strip()) == (
        2,
        "tools/run: name a command, for example: tools/run fastreid doctor",
    )


def test_unknown_command(repository):
    fake_environment(repository)
    result = run(repository, "no-such-command")
    assert (result.returncode, result.stderr.strip()) == (2, "tools/run: command no-such-command not found")


@pytest.mark.parametrize(
    ("tool", "example"), [("run", "tools/run pytest"), ("without", "fastreid doctor"), ("fuzz", "--seed 7")]
)
def test_tools_say_how_they_are_called(tool, example):
    told = subprocess.run([ROOT / "tools" / tool, "--help"], capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stderr) == (0, "")
    assert example in told.stdout
    assert "#" not in told.stdout
