"""`fastreid doctor`: is everything here, and does it train?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from importlib import import_module
from types import ModuleType
from typing import Any

from agreid_plugin.host import HOSTS, INSTALL, installed

EXAMPLES = """examples:
  fastreid doctor
  fastreid doctor --quick --root /data/reid --weights ViT-B-16.pt
  fastreid doctor --json
"""


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="check the installation",
        description="Show versions, devices, the repairs of each host, the datasets and weight files that are there, "
        "and the room on the disk; train a tiny ViSA for some seconds in each host. Exit code 1 if a check fails.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--quick", action="store_true", help="do without the training")
    parser.add_argument("--root", nargs="+", default=[], metavar="DIR", help="folders that hold datasets")
    parser.add_argument("--weights", nargs="+", default=[], metavar="FILE", help="weight files to look at")
    parser.add_argument("--output", default="logs", metavar="DIR", help="where runs will write (default: logs)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    from agreid_plugin.engine import environment_report, run_card, smoke
    from agreid_plugin.inference import weight_files

    here = [host for host in HOSTS if installed(host)]
    checks = [finding for host in here for finding in _part(host, "commands.diagnosis").diagnose()]
    weights = weight_files.examined(args.weights or weight_files.found_files())
    room = environment_report.room(args.output)
    if not args.quick:
        checks += smoke.smoke({HOSTS[host]: _part(host, "commands.smoke").train for host in here})
    report = {
        "versions": run_card.versions(),
        "devices": run_card.devices(),
        "repairs": {HOSTS[host]: _part(host, "compat").applied() for host in here},
        "datasets": environment_report.datasets(args.root),
        "weights": weights,
        "disk": room,
        "checks": checks,
        "missing": [INSTALL[host] for host in HOSTS if host not in here],
    }
    if args.json:
        print(json.dumps(report, default=asdict, indent=2))
    else:
        _print(report)
    return 0 if all(finding.ok for finding in (*checks, *weights, *room)) else 1


def _part(host: str, name: str) -> ModuleType:
    return import_module(f"agreid_plugin.hosts.{host}.{name}")


def _print(report: dict[str, Any]) -> None:
    _section("versions", report["versions"])
    _section("devices", dict(enumerate(report["devices"])))
    for host, repairs in report["repairs"].items():
        _section(f"repairs of {host} in force", repairs or {"none": "the host runs natively"})
    _section("datasets", report["datasets"])
    _findings("weight files", report["weights"], "none; name some with --weights")
    _findings("disk", report["disk"])
    _findings("checks", report["checks"])
    for line in report["missing"]:
        print(f"  --    {line}")


def _section(title: str, rows: dict[Any, Any]) -> None:
    print(f"{title}:")
    width = max(len(str(name)) for name in rows)
    for name, text in rows.items():
        print(f"  {name!s:<{width}}  {text}")


def _findings(title: str, findings: Iterable[Any], none: str = "") -> None:
    print(f"{title}:")
    for finding in findings:
        print(f"  {'FAIL' if not finding.ok else 'warn' if finding.warns else 'ok  '}  {finding.text}")
    if none and not findings:
        print(f"  {none}")
