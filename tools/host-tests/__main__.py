"""Run the tests of mmengine or mmpretrain on the host as it is and on the host with this plugin, and compare.

The hosts' tests are in no package: give the folder of a checkout, best of the version that is installed. Its tests are
copied and run against the installed host; what they need beside it (requirements/tests.txt) you install. A test that
passes only plain or only with us is run again, alone; if it still passes only plain it is printed with its error and
the exit code is 1.
"""

# ruff: noqa: T201 - a command prints

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from agreid_plugin.cli.main import OneLineParser
from agreid_plugin.errors import InputError, did_you_mean

EXAMPLES = """examples:
  git clone https://github.com/open-mmlab/mmengine ../mmengine
  tools/run python tools/host-tests ../mmengine
  tools/run python tools/host-tests ../mmpretrain --only tests/test_models --jobs 4
"""
HOSTS = ("mmengine", "mmpretrain")
PASSED, UNREADABLE = "passed", "unreadable"

Outcomes = dict[str, tuple[str, str]]
"""Test -> its outcome and the last line of its error."""


def build_parser() -> argparse.ArgumentParser:
    """Build the command's parser."""
    parser = OneLineParser(
        prog="tools/host-tests",
        description=__doc__,
        epilog=EXAMPLES,
    )
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT", help=f"folder of a checkout of {' or '.join(HOSTS)}")
    parser.add_argument("--only", nargs="+", default=["tests"], metavar="PATH", help="tests to run (default: all)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default: 2)")
    parser.add_argument("--seconds", type=int, default=120, metavar="N", help="a test's time (default: 120)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write every test's two outcomes to this JSON file")
    return parser


def find_host_name(checkout: Path) -> str:
    """Return which host's checkout a folder is."""
    for host in HOSTS:
        if (checkout / host / "version.py").is_file() and (checkout / "tests").is_dir():
            return host
    raise InputError(f"{checkout}: no checkout of {' or '.join(HOSTS)} (a folder with tests/ beside the package)")


def copy_tests(checkout: Path, host: str, target: Path) -> None:
    """Copy a checkout without its package: its tests shall find the installed one."""
    for entry in checkout.iterdir():
        if entry.name in (host, ".git"):
            continue
        if entry.is_dir():
            shutil.copytree(entry, target / entry.name)
        else:
            shutil.copy(entry, target)


def run_tests(folder: Path, names: list[str], *, ours: bool, jobs: int, seconds: int) -> Outcomes:
    """Run tests in a folder, and return how each went."""
    file = folder.parent / f"outcomes-{'ours' if ours else 'plain'}.jsonl"
    file.unlink(missing_ok=True)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # of a test of this
    environment = {
        **outside,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]),
        "HOST_TESTS_OUTCOMES": str(file),
        "HOST_TESTS_WITH": "mmengine" if ours else "",
        "HOST_TESTS_SECONDS": str(seconds),
    }
    options = ["-p", "host_tests_plugin", "-p", "no:cacheprovider", "-q", "--no-header", "--tb=short", "-W", "ignore"]
    options += ["-n", str(jobs), "--dist", "loadfile", "--continue-on-collection-errors"]
    print(f"{'with us' if ours else 'plain'}:", flush=True)
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--no-summary", *names], cwd=folder, env=environment, check=False
    )
    if not file.is_file():
        raise InputError(f"--only {' '.join(names)}: no test ran; see what pytest says above")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {row["test"]: (row["outcome"], row["reason"]) for row in rows}


def find_broken(plain: Outcomes, ours: Outcomes) -> list[str]:
    """Return the tests that pass on the plain host and not with us."""
    files = {name for name, (outcome, _) in ours.items() if outcome == UNREADABLE}
    passed = [name for name, (outcome, _) in plain.items() if outcome == PASSED]
    return [name for name in passed if name.split("::")[0] in files or ours.get(name, ("missing",))[0] != PASSED]


def format_counts(outcomes: Outcomes) -> str:
    """Return how many tests went how."""
    return ", ".join(
        f"{number} {outcome}" for outcome, number in Counter(o for o, _ in outcomes.values()).most_common()
    )


def main() -> int:
    """Run a host's tests twice and print what differs."""
    arguments = build_parser().parse_args()
    host = find_host_name(arguments.checkout)
    for name in arguments.only:
        if not (arguments.checkout / name.split("::")[0]).exists():
            known = [
                str(path.relative_to(arguments.checkout)) for path in arguments.checkout.glob("tests/**/test_*.py")
            ]
            raise InputError(f"--only {name}: not in {arguments.checkout}{did_you_mean(name, known)}")
    limits = {"jobs": arguments.jobs, "seconds": arguments.seconds}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "checkout"
        folder.mkdir()
        copy_tests(arguments.checkout, host, folder)
        plain = run_tests(folder, arguments.only, ours=False, **limits)
        ours = run_tests(folder, arguments.only, ours=True, **limits)
        suspects = [*find_broken(plain, ours), *find_broken(ours, plain)]
        if suspects:  # again, alone: a test that depends on time or on others' leftovers says nothing of us
            limits["jobs"] = 0
            plain.update(run_tests(folder, suspects, ours=False, **limits))
            ours.update(run_tests(folder, suspects, ours=True, **limits))
    broken = find_broken(plain, ours)
    mended = find_broken(ours, plain)
    unreadable = {name: reason for name, (outcome, reason) in plain.items() if outcome == UNREADABLE}
    if arguments.out:
        names = sorted({*plain, *ours})
        table = {name: [outcomes.get(name, ("missing", ""))[0] for outcomes in (plain, ours)] for name in names}
        arguments.out.write_text(json.dumps(table, indent=1), encoding="utf-8")
    print(f"\n{host}, plain:   {format_counts(plain)}")
    print(f"{host}, with us: {format_counts(ours)}")
    for name, reason in unreadable.items():
        print(f"  not run: {name}: {reason}")
    for name in mended:
        print(f"  mended: {name}: {plain.get(name, ('', 'missing'))[1]}")
    for name in broken:
        print(f"  BROKEN: {name}: {ours.get(name, ('', 'missing'))[1]}")
    print(f"{len(mended)} mended, {len(broken)} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"tools/host-tests: {error}", file=sys.stderr)
        sys.exit(2)
