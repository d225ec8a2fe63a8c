"""`fastreid explain`: what a configuration builds, before it is trained."""

from __future__ import annotations

import argparse

from agreid_plugin.cli import arguments
from agreid_plugin.host import find_host, load_host

EXAMPLES = """examples:
  fastreid explain --config projects/ViSA/agsynth.yml
  fastreid explain --config projects/ViSA/cargo.yml MODEL.BACKBONE.DEPTH small MODEL.BACKBONE.FEAT_DIM 384
  fastreid explain --config projects/ViSA/agsynth.py
  fastreid explain --config runs/mine/config.yaml
"""


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "explain",
        help="tell what a configuration builds, without training it",
        description="Build the model of a configuration on the CPU and describe it: modules, losses and their "
        "weights, transforms, sampler, datasets and protocols with their counts, schedule, parameters and operations. "
        "Datasets and pretrained weights need not be there; nothing is written.",
        epilog=EXAMPLES,
    )
    arguments.add_config(parser)
    arguments.add_overrides(parser)
    parser.set_defaults(run=_explain)


def _explain(args: argparse.Namespace) -> None:
    host = load_host(find_host(args.config_file), "commands.explain")
    for title, rows in host.explain(args.config_file, args.overrides).items():
        print(f"{title}:")
        width = max((len(name) for name, _ in rows), default=0)
        for name, text in rows:
            print(f"  {name:<{width}}  {text}")
