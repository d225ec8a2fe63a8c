"""`fastreid replay`: a training step whose loss was not finite, taken again to see where that comes from."""

from __future__ import annotations

import argparse
from importlib import import_module

from agreid_plugin.cli import arguments
from agreid_plugin.errors import require_known
from agreid_plugin.host import HOSTS

EXAMPLES = """examples:
  fastreid replay runs/mine/nan_step_1200.pth
  fastreid replay runs/mine/nan_step_1200.pth --config projects/ViSA/cargo.yml
"""


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "replay",
        help="take a training step again whose loss was NaN or infinite",
        description="A run that meets a loss which is NaN or infinite stops and keeps the step: images, labels, "
        "weights, random states, configuration. This takes it again and names the terms that are not finite and the "
        "first module whose output is not.",
        epilog=EXAMPLES,
    )
    parser.add_argument("step", metavar="FILE", help="nan_step_N.pth in the run's folder")
    arguments.add_config(parser, required=False, what="configuration to build the model from (default: the step's)")
    parser.set_defaults(run=_replay)


def _replay(args: argparse.Namespace) -> None:
    from agreid_plugin.engine.steps import read_step

    step = read_step(args.step)
    require_known(f"{args.step}: host", step.host, HOSTS)
    for line in import_module(f"agreid_plugin.hosts.{step.host}.engine.replay").replay(step, args.config_file):
        print(line)
