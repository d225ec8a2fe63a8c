"""The table of mixes: `tools/run python tools/mixes`."""

from __future__ import annotations

import io
import json
import logging
import math
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import reduce
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from agreid_plugin.cli.main import OneLineParser
from agreid_plugin.cli.main import main as run_command
from agreid_plugin.errors import InputError, first_line

WORKS, REFUSED, BREAKS = "works", "refused", "breaks"
PAGE = "docs/guide/mixes.md"
REFUSAL = "fastreid: error: "
HEAD = """# Mixes

What goes with what. Every row is a configuration that was trained for a few steps on eight people of AG-Synth and
evaluated, all by one command, which wrote this page:

```sh
tools/run python tools/mixes
```

A row *works* if its losses are finite and others than those of the row beside it, which lacks the part, and if
results.json has its protocols. It is *refused* if the command says why in one line. `--only PATTERN` runs some rows,
`--list` shows them."""
SIGNALS = 128
"""A higher exit code is that of a signal."""
SAME = 1e-7
"""Relative difference up to which two losses are the same."""


@dataclass
class Result:
    """What became of a row.

    Attributes:
        state: `works`, `refused` or `breaks`.
        text: the refusal, or what is wrong.
        losses: of every step.
        score: mAP of the first protocol, in percent.
    """

    state: str
    text: str = ""
    losses: list[float] = field(default_factory=list)
    score: float = math.nan


def run_row(row: Any, folder: Path) -> Result:
    """Train and evaluate one row by the `fastreid` command."""
    printed, output = io.StringIO(), folder / "run"
    try:
        with redirect_stdout(printed), redirect_stderr(printed), _own_loggers():
            code = run_command(["train", "--config", *_arguments(row, folder), "--output", str(output)])
        last = printed.getvalue().strip().rpartition("\n")[2]
        if code == 2 and last.startswith(REFUSAL):
            return Result(REFUSED, last.removeprefix(REFUSAL))
        if code > SIGNALS:
            raise KeyboardInterrupt
        if code:
            return Result(BREAKS, f"exit code {code}: {last}")
        losses, score = _read_losses(output), _read_score(output)
    except (Exception, SystemExit) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Result(
            BREAKS, f"{type(error).__name__}: {first_line(error)} ({Path(place.filename).name}:{place.lineno})"
        )
    if not losses or not all(map(math.isfinite, [*losses, score])):
        return Result(BREAKS, f"losses {losses}, mAP {score}", losses, score)
    return Result(WORKS, "", losses, score)


def _arguments(row: Any, folder: Path) -> list[str]:
    from mixes import rows

    data = str(folder.parent / "datasets")
    if row.host == "mmengine":
        path = folder / "mix.py"
        size = rows.AGSYNTH["size"]
        path.write_text(rows.MMENGINE.format(size=size, root=data, agsynth=rows.AGSYNTH) + row.recipe)
        return [str(path)]
    base, path = folder / "base.yml", folder / "mix.yml"  # a choice may leave keys of the files before it behind
    _write(base, rows.ROOT / row.recipe, (*rows.FASTREID, "DATASETS.ROOT", data))
    _write(path, base, row.base)
    return [str(path), *row.settings]


def _write(path: Path, base: Path, settings: Sequence[str]) -> None:
    path.write_text(yaml.safe_dump({"_BASE_": str(base), **_nest(settings)}))


def _nest(settings: Sequence[str]) -> dict[str, Any]:
    """Return keys and values as a configuration file has them."""
    found: dict[str, Any] = {}
    for key, value in zip(settings[::2], settings[1::2], strict=True):
        *groups, last = key.split(".")
        reduce(lambda node, group: node.setdefault(group, {}), groups, found)[last] = yaml.safe_load(value)
    return found


@contextmanager
def _own_loggers() -> Iterator[None]:
    """Let a run open its log anew, and none of the next one's lines be in it."""
    from fastreid.utils.logger import setup_logger
    from mmengine.logging import MessageHub, MMLogger
    from mmengine.registry import DefaultScope
    from mmengine.visualization import Visualizer

    managed = (MMLogger, MessageHub, DefaultScope, Visualizer)
    before = [dict(kind._instance_dict) for kind in managed]
    try:
        yield
    finally:
        for name in ("fastreid", "agreid_plugin", "mmengine"):
            logging.getLogger(name).handlers.clear()
        setup_logger.cache_clear()
        for kind, instances in zip(managed, before, strict=True):
            kind._instance_dict.clear()
            kind._instance_dict.update(instances)


def _read_losses(output: Path) -> list[float]:
    paths = [output / "metrics.json", *output.glob("*/vis_data/scalars.json")]
    lines = [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()]
    return [line[name] for line in lines for name in ("total_loss", "loss") if line.get(name) is not None]


def _read_score(output: Path) -> float:
    found = json.loads((output / "results.json").read_text())
    protocols = next(iter(found.values()))
    return next(iter(protocols.values()))["mAP"]


def check_part(row: Any, results: dict[str, Result]) -> None:
    """Note of a row that works whether its part was ignored: whether the losses are those of the row without it."""
    result, without = results[row.name], results.get(row.without)
    if result.state != WORKS or without is None or without.state != WORKS:
        return
    pairs = zip(result.losses, without.losses, strict=False)
    if all(math.isclose(ours, theirs, rel_tol=SAME) for ours, theirs in pairs):
        result.state, result.text = BREAKS, f"ignored: every loss is that of {row.without}"


def write_page(path: Path, rows: Sequence[Any], results: dict[str, Result]) -> None:
    """Write the table."""
    counts = {state: sum(results[row.name].state == state for row in rows) for state in (WORKS, REFUSED, BREAKS)}
    found = f"{len(rows)} mixes: {counts[WORKS]} work, {counts[REFUSED]} are refused, {counts[BREAKS]} break."
    lines = [*HEAD.splitlines(), "", found]
    for group, members in groupby(rows, lambda row: row.group):
        lines += ["", f"## {group[0].upper()}{group[1:]}", "", "| mix | host | | losses, first and last | beside |"]
        lines += ["|---|---|---|---|---|"]
        lines += [_format_row(row, results[row.name]) for row in members]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _format_row(row: Any, result: Result) -> str:
    losses = f"{result.losses[0]:.4g}, {result.losses[-1]:.4g}" if result.state == WORKS else ""
    text = result.text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    said = result.state if result.state == WORKS else f"{result.state}: {text}"
    return f"| {row.name} | {row.host} | {said} | {losses} | {row.without} |"


def select_rows(rows: Sequence[Any], pattern: str) -> list[Any]:
    """Return the rows whose name or group has the pattern in it, and those that they are compared with."""
    chosen = {row.name for row in rows if _fits(pattern, row.name) or _fits(pattern, row.group)}
    for row in reversed(rows):  # a row stands behind the one that it is compared with
        if row.name in chosen and row.without:
            chosen.add(row.without)
    return [row for row in rows if row.name in chosen]


def _fits(pattern: str, text: str) -> bool:
    return fnmatchcase(text.lower(), f"*{pattern.lower()}*")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(rows: Sequence[Any], folder: Path) -> dict[str, Result]:
    """Run rows one after the other, with a line for each."""
    results: dict[str, Result] = {}
    for number, row in enumerate(rows, 1):
        start, own = time.process_time(), folder / f"{number}"
        own.mkdir()
        results[row.name] = result = run_row(row, own)
        check_part(row, results)
        seconds = time.process_time() - start
        said = f"{result.state} {result.text}".strip()
        _say(f"[{number}/{len(rows)}] {row.host}: {row.name}: {said} ({seconds:.1f} s)")
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rows and return the exit code: 1 if one breaks."""
    parser = OneLineParser(
        prog="tools/mixes", description="Train and evaluate mixes of parts, and write them as a page."
    )
    parser.add_argument("--only", default="", metavar="PATTERN", help="rows with this in their name or group; no page")
    parser.add_argument("--page", metavar="FILE", help=f"where the table goes (default: {PAGE}, with --only nowhere)")
    parser.add_argument("--list", action="store_true", help="print the rows, and run none")
    args = parser.parse_args(argv)
    try:
        from mixes.rows import ROOT, list_rows

        rows = select_rows(list_rows(), args.only)
        if not rows:
            raise InputError(f"no row has {args.only!r} in its name or group: see --list")
        if args.list:
            _say("\n".join(f"{row.host}: {row.group}: {row.name}" for row in rows))
            return 0
        with TemporaryDirectory() as folder:
            results = run(rows, Path(folder))
        page = args.page or ("" if args.only else str(ROOT / PAGE))
        if page:
            write_page(Path(page), rows, results)
    except KeyboardInterrupt:
        return 130
    except InputError as error:
        sys.stderr.write(f"tools/mixes: error: {error}\n")
        return 2
    states = [result.state for result in results.values()]
    _say(f"{len(states)} mixes: " + ", ".join(f"{states.count(each)} {each}" for each in (WORKS, REFUSED, BREAKS)))
    return 1 if BREAKS in states else 0


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # so that this folder is the package `mixes`
    sys.exit(main())
