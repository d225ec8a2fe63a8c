"""`fastreid ablate`: a grid of named settings and seeds, trained one after another, and the table of it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from agreid_plugin.cli import arguments
from agreid_plugin.errors import InputError, require_known

EXAMPLES = """examples:
  fastreid ablate projects/ViSA/ablation.yml --dry-run            what would be trained
  fastreid ablate projects/ViSA/ablation.yml                      train what is not done yet, then write the table
  fastreid ablate projects/ViSA/ablation.yml --output runs/visa   the same elsewhere
  fastreid ablate projects/ViSA/ablation.yml --table-only         the table of what is done

the file:
  config: agsynth.yml                        beside this file, of either host; a row may name its own
  seeds: [0, 1, 2]
  protocols: [ALL, A2G]                      columns of the table (default: those of the configurations)
  metrics: [Rank-1, mAP]                     (default)
  rows:                                      the first is what the others are compared with
    VDT: {config: ../VDT/agsynth.yml}
    VAB + DLFM: {MODEL.VISA.ETGM: False}
    ViSA: {}
  output: logs/visa-ablation                 (default: logs/ and the file's name)
"""
KEYS = ("config", "seeds", "protocols", "metrics", "rows", "output")
METRICS = ["Rank-1", "mAP"]


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "ablate",
        help="train a grid of settings and seeds, and make its table",
        description="Train every row of the file with every seed, one after another, each in a folder and a process of "
        "its own; then write ablation.md, ablation.csv and ablation.png: mean and spread over seeds, and what differs "
        "from the first row beyond chance. Started again, it goes on where it was: finished runs are not repeated.",
        epilog=EXAMPLES,
    )
    parser.add_argument("file", metavar="FILE", help="the grid, see below")
    parser.add_argument("--output", metavar="DIR", help="folder of the runs and the table (default: the file's)")
    arguments.add_trust(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="check everything, show the plan and train nothing")
    how.add_argument("--table-only", action="store_true", help="make the table of the runs that are done")
    parser.set_defaults(run=_ablate)


def _ablate(args: argparse.Namespace) -> None:
    path = Path(args.file)
    content = read_grid(path)
    from agreid_plugin.engine import ablation

    grid = ablation.plan(path, content, args.output)
    lines = ablation.table(grid) if args.table_only else ablation.run(grid, dry_run=args.dry_run)
    for line in lines:
        print(line, flush=True)


def read_grid(path: Path) -> dict[str, Any]:
    """Read the file of a grid and check its form; the hosts check what its settings mean.

    Raises:
        InputError: the file is missing or no such mapping, or one of its keys is unknown or of the wrong kind.
    """
    from agreid_plugin.data.files import read_yaml

    content = read_yaml(path)
    _require(isinstance(content, dict), f"{path}: expected the keys {', '.join(KEYS)}")
    for key in content:
        require_known(f"{path}: key", str(key), KEYS)
    _check_seeds(path, content.get("seeds"))
    _check_rows(path, content.get("rows"))
    for key in ("config", "output"):
        _require(isinstance(content.get(key, ""), str), f"{path}: {key} takes one path, got {content.get(key)!r}")
    for key in ("protocols", "metrics"):
        names = content.get(key, [])
        are_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
        _require(are_names and len(set(names)) == len(names), f"{path}: {key} takes a list of names, each once")
    return {"metrics": METRICS, "protocols": [], **content}


def _check_seeds(path: Path, seeds: Any) -> None:
    numbers = isinstance(seeds, list) and seeds and all(type(seed) is int and seed >= 0 for seed in seeds)
    _require(numbers, f"{path}: seeds takes a list of whole numbers from 0, for example [0, 1, 2], got {seeds!r}")
    repeated = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    _require(not repeated, f"{path}: seeds names {', '.join(map(str, repeated))} twice; each seed is one run")


def _check_rows(path: Path, rows: Any) -> None:
    form = "a name and its overrides each, for example 'no ETGM: {MODEL.VISA.ETGM: False}'"
    _require(isinstance(rows, dict) and rows, f"{path}: rows takes {form}, got {rows!r}")
    for name, overrides in rows.items():
        _require(isinstance(overrides, dict | None), f"{path}: row {name!r}: rows takes {form}, got {overrides!r}")
        for key in overrides or {}:
            _require(isinstance(key, str), f"{path}: row {name!r}: {key!r} is no key of a configuration")


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise InputError(message)
