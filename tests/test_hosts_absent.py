"""`tools/without`, and what is left of the package without a host: everything that needs none, and one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FASTREID = "fast-reid is not installed: pip install --no-deps fastreid==1.4.0 (README, 'Your own environment')"
MMENGINE = "mmengine is not installed: pip install 'mmengine>=0.10.6' (README, 'Your own environment')"

IMPORTS = """
import agreid_plugin
try:
    import agreid_plugin.hosts.{name}
except ImportError as error:
    print(type(error).__name__, error.name, error)
"""
COMMANDS = """
import sys
from agreid_plugin.cli import main
for argv in ({commands}):
    print("$", *argv, flush=True)
    try:
        print("=", main(argv), flush=True)
    except SystemExit as end:
        print("=", end.code, flush=True)
print([name for name in ("fastreid", "mmengine", "mmpretrain", "mmcv") if name in sys.modules])
"""


def without(hosts: str, *command: str) -> subprocess.CompletedProcess:
    """Run a command in the environment of these tests less some hosts."""
    return subprocess.run(
        [ROOT / "tools" / "without", hosts, *command],
        capture_output=True,
        text=True,
        env={**os.environ, "VIRTUAL_ENV": sys.prefix},
        timeout=300,
    )


def python(hosts: str, code: str) -> subprocess.CompletedProcess:
    return without(hosts, "python", "-c", code)


def codes(outcome: subprocess.CompletedProcess) -> list[str]:
    return [line.removeprefix("= ") for line in outcome.stdout.splitlines() if line.startswith("= ")]


def test_hosts_are_really_gone():
    code = (
        "import importlib.util as u, importlib.metadata as m\n"
        "names = ('fastreid', 'mmengine', 'mmcv', 'mmpretrain')\n"
        "print([name for name in names if u.find_spec(name)])\n"
        "print([d.name for d in m.distributions() if d.name.split('-')[0] in names], bool(u.find_spec('torch')))"
    )
    assert python("fastreid,mmengine", code).stdout.splitlines() == ["[]", "[] True"]
    # what the others do not need stays
    assert python("mmpretrain", code).stdout.splitlines()[0] == "['fastreid', 'mmengine']"


def test_nothing_is_left_behind(tmp_path):
    env = {**os.environ, "VIRTUAL_ENV": sys.prefix, "TMPDIR": str(tmp_path)}
    command = [ROOT / "tools" / "without", "fastreid", "sh", "-c", 'ls "$TMPDIR"; fastreid --version; exit 7']
    result = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert result.returncode == 7
    assert len(result.stdout.splitlines()) == 2  # the environment while it lasted, and the version
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "name hosts and a command"),
        (["fastreid"], "name hosts and a command"),
        (["fastried", "true"], "host fastried unknown; known: fastreid, mmengine, mmpretrain"),
        (["fastreid", "no-such-command"], "command no-such-command not found"),
    ],
)
def test_what_tools_without_cannot_do(arguments, line):
    result = without(*arguments) if arguments else without("")
    assert result.returncode == 2
    assert result.stderr.startswith(f"tools/without: {line}")
    assert len(result.stderr.strip().splitlines()) == 1


def test_without_any_host():
    """Commands that need none work; the others say in one line what to install."""
    commands = (
        "['--help'], ['list'], ['doctor'], ['data', 'list'], ['report', '--help'], ['train', '--config', 'a.yml'], "
        "['eval', '--config', 'a.py'], ['list', '--host', 'mmengine']"
    )
    result = python("fastreid,mmengine", COMMANDS.format(commands=commands))
    assert codes(result) == ["0", "0", "0", "0", "0", "2", "2", "2"], result.stderr
    assert [line.removeprefix("fastreid: error: ") for line in result.stderr.splitlines()[-3:]] == [
        FASTREID,
        MMENGINE,
        MMENGINE,
    ]
    assert "VIAL" in result.stdout
    assert "CARGO" in result.stdout
    assert f"--    {FASTREID}" in result.stdout
    assert result.stdout.splitlines()[-1] == "[]"
    for name, line in (("fastreid", FASTREID), ("mmengine", MMENGINE)):
        told = python("fastreid,mmengine", IMPORTS.format(name=name)).stdout
        assert told.strip() == f"MissingHostError {name} {line}"


@pytest.mark.slow
def test_with_mmengine_alone():
    commands = "['list', 'hooks'], ['doctor'], ['train', '--config', 'a.yml'], ['train', '--config', 'a.py']"
    build = "from mmengine.registry import MODELS; MODELS.build(dict(type='agreid_plugin.VIAL')); print('built')"
    result = python("fastreid,mmpretrain", COMMANDS.format(commands=commands) + build)
    assert codes(result) == ["0", "0", "2", "2"], result.stderr
    assert "agreid_plugin.LearningGuard" in result.stdout
    assert "one step of mmengine on" in result.stdout
    assert FASTREID in result.stderr
    assert "config file a.py does not exist" in result.stderr
    assert result.stdout.splitlines()[-2:] == ["['mmengine']", "built"]


@pytest.mark.slow
def test_with_fastreid_alone():
    commands = "['list', 'losses'], ['doctor'], ['train', '--config', 'a.py']"
    result = python("mmengine", COMMANDS.format(commands=commands))
    assert codes(result) == ["0", "0", "2"], result.stderr
    assert "changes the weights" in result.stdout
    assert "mmengine" not in result.stdout.split("host fixes:")[1].partition("$")[0]
    assert MMENGINE in result.stderr
    assert result.stdout.splitlines()[-1] == "['fastreid']"
