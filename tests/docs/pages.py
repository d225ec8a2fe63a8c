"""Pages that tell a reader what to write and to run, taken at their word."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(?:^\*\*`(?P<file>[^`]+)`\*\*[^\n]*\n\n)?^```(?P<kind>[\w{} ]*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)
RUN = """
import json, runpy, sys
import pytest, torch
from agreid_plugin.cli import main

torch.set_num_threads(1)
for line in json.loads(sys.argv[1]):
    print("$", *line, flush=True)
    if line[0] == "python":
        code = runpy.run_path(line[1], run_name="__main__") and 0
    else:
        code = main(line[1:]) if line[0] == "fastreid" else pytest.main(["-q", "-p", "no:cacheprovider", *line[1:]])
    if code:
        sys.exit(code)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block: the file that it is, if a line before it names one, its language and its text."""

    file: str
    kind: str
    text: str

    def commands(self) -> list[list[str]]:
        """The command lines of a block of a shell."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [shlex.split(line, comments=True) for line in lines if line.strip() and not line.startswith("#")]


def blocks(page: str) -> list[Block]:
    """The blocks of a page below docs/."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [Block(found["file"] or "", found["kind"], found["text"]) for found in BLOCK.finditer(text)]


def write_files(found: Iterable[Block], folder: Path) -> Iterator[Path]:
    """Write the files that blocks show; those of kind `diff` change one that is there."""
    for block in found:
        if not block.file:
            continue
        path = folder / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_patched(path.read_text(), block.text) if block.kind == "diff" else block.text)
        yield path


def _patched(text: str, change: str) -> str:
    """Put the lines with a plus behind the line before them, which must be in the text once."""
    lines = [line[1:] for line in change.splitlines() if not line.startswith("+")]
    added = [line[1:] for line in change.splitlines() if line.startswith("+")]
    place = "\n".join(lines) + "\n"
    assert text.count(place) == 1, place
    return text.replace(place, place + "\n".join(added) + "\n")


def run(commands: list[list[str]], folder: Path, *before: Path) -> str:
    """Run commands in `folder`, one after the other in one process, and return what it said.

    What is in the folder, and in those of `before`, goes before all packages.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder, *before))), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN, json.dumps(commands)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-3000:]
    return ended.stdout
