"""`fastreid doctor`: checks of the installation, host fixes, a training of seconds."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agreid_plugin.errors import Finding
from agreid_plugin.host import HOSTS, INSTALL, installed, load_host

if TYPE_CHECKING:
    from agreid_plugin.engine.smoke import SmokeResult

MIN_GIGABYTES = {"output": 5.0, "temporary files": 1.0, "shared memory of data workers": 0.5}
"""Free space below which a run may end for want of it."""

EXAMPLES = """examples:
  fastreid doctor
  fastreid doctor --quick --root /data/reid --weights ViT-B-16.pt
  fastreid doctor --quick --verbose
  fastreid doctor --json
"""


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="check the installation",
        description="Show in one line whether all is well, then checks, weight files, disk space, datasets, versions, "
        "devices and host fixes; train a tiny ViSA for some seconds in each host. Exit code 1 if a check fails.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--quick", action="store_true", help="skip the training")
    parser.add_argument("--root", nargs="+", default=[], metavar="DIR", help="folders that hold datasets")
    parser.add_argument("--weights", nargs="+", default=[], metavar="FILE", help="weight files to check")
    parser.add_argument("--output", default="logs", metavar="DIR", help="where runs will write (default: logs)")
    parser.add_argument("--verbose", action="store_true", help="list every host fix with its reason")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    from agreid_plugin.data.datasets.locations import find_datasets
    from agreid_plugin.engine import run_card
    from agreid_plugin.inference.weights import describe_files, find_files

    here = [host for host in HOSTS if installed(host)]
    checks = [finding for host in here for finding in load_host(host, "commands.doctor").diagnose()]
    weights = describe_files(args.weights or find_files())
    disk = disk_space(args.output)
    if not args.quick:
        checks += train_briefly({HOSTS[host]: load_host(host, "commands.doctor").train for host in here})
    report = {
        "versions": run_card.versions(),
        "devices": run_card.devices(),
        "datasets": find_datasets(args.root),
        "weights": weights,
        "disk": disk,
        "checks": checks,
        "missing": [INSTALL[host] for host in HOSTS if host not in here],
        "host_fixes": {HOSTS[host]: _host_fixes(host) for host in here},
    }
    if args.json:
        print(json.dumps(report, default=asdict, indent=2))
    else:
        _print(report, args.verbose)
    return 0 if all(finding.ok for finding in (*checks, *weights, *disk)) else 1


def disk_space(output: str) -> list[Finding]:
    """Return how much space is left where a run writes; too little is a warning."""
    places = {"output": output, "temporary files": tempfile.gettempdir(), "shared memory of data workers": "/dev/shm"}
    return [_space(use, Path(place)) for use, place in places.items() if use == "output" or os.path.isdir(place)]


def _space(use: str, place: Path) -> Finding:
    from agreid_plugin.engine.checkpoints import free_bytes

    free = free_bytes(place) / 1e9
    text = f"{free:.1f} GB free for {use} ({place})"
    if free >= MIN_GIGABYTES[use]:
        return Finding(True, text)
    return Finding(True, f"{text}: less than {MIN_GIGABYTES[use]:g} GB, a run may end for want of space", warns=True)


def train_briefly(trainings: dict[str, Callable[[Path, Path], SmokeResult]]) -> list[Finding]:
    """Train a tiny ViSA on a few pictures of AG-Synth in each host.

    Args:
        trainings: host -> function that trains, given the folder of datasets and that of the run.
    """
    from agreid_plugin.engine.smoke import IDENTITIES, SIZE, judge_training
    from agreid_plugin.synth import make_agsynth

    if not trainings:
        return []
    with tempfile.TemporaryDirectory(prefix="fastreid-doctor-") as folder:
        root = Path(folder)
        make_agsynth(root / "data", ids=2 * IDENTITIES, images_per_id=8, size=SIZE, workers=1, progress=False)
        return [judge_training(host, train, root) for host, train in trainings.items()]


def _host_fixes(host: str) -> dict[str, dict[str, str]]:
    fixes = load_host(host, "compat").HOST_FIXES
    return {"applied": fixes.applied(), "armed": fixes.armed()}


def _print(report: dict[str, Any], verbose: bool) -> None:
    print(verdict([*report["checks"], *report["weights"], *report["disk"]]))
    _findings("checks", report["checks"])
    for line in report["missing"]:
        print(f"  --    {line}")
    _findings("weight files", report["weights"], "none; name some with --weights")
    _findings("disk", report["disk"])
    _section("datasets", report["datasets"])
    _section("versions", report["versions"])
    _section("devices", dict(enumerate(report["devices"])))
    _section("host fixes", {host: _count_fixes(fixes) for host, fixes in report["host_fixes"].items()})
    for host, fixes in report["host_fixes"].items() if verbose else ():
        for state, reasons in fixes.items():
            if reasons:
                _section(f"host fixes of {host}, {state}", reasons)


def verdict(findings: Sequence[Finding]) -> str:
    """Return in one line whether all is well."""
    failed, warnings = sum(not each.ok for each in findings), sum(each.warns for each in findings)
    counts = f"{len(findings)} checks, {failed} failed, {warnings} with a warning"
    return f"{'FAIL' if failed else 'ok'}: {counts}"


def _count_fixes(fixes: dict[str, dict[str, str]]) -> str:
    return f"{len(fixes['applied'])} applied, {len(fixes['armed'])} armed for modules that were not imported"


def _section(title: str, rows: dict[Any, Any]) -> None:
    print(f"{title}:")
    width = max((len(str(name)) for name in rows), default=0)
    for name, text in rows.items():
        print(f"  {name!s:<{width}}  {text}")


def _findings(title: str, findings: Sequence[Finding], none: str = "") -> None:
    print(f"{title}:")
    for finding in findings:
        print(f"  {'FAIL' if not finding.ok else 'warn' if finding.warns else 'ok  '}  {finding.text}")
    if none and not findings:
        print(f"  {none}")
