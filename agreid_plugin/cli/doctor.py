"""`fastreid doctor`: is everything here, and does a step change weights?"""

from __future__ import annotations

import argparse


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="check the installation",
        description="Show versions, devices and the host's repairs, and take one training step to see weights move.",
    )
    parser.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:  # noqa: ARG001
    from agreid_plugin.hosts.fastreid import compat, diagnosis, run_card

    _section("versions", run_card.versions())
    _section("devices", dict(enumerate(run_card.devices())))
    _section("repairs of fast-reid in force", compat.applied() or {"none": "the host runs natively"})
    findings = diagnosis.diagnose()
    print("checks:")
    for finding in findings:
        print(f"  {'ok  ' if finding.ok else 'FAIL'}  {finding.text}")
    return 0 if all(finding.ok for finding in findings) else 1


def _section(title: str, rows: dict) -> None:
    print(f"{title}:")
    width = max(len(str(name)) for name in rows)
    for name, text in rows.items():
        print(f"  {name!s:<{width}}  {text}")
