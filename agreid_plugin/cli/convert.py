"""`fastreid convert`: checkpoints of the released codes."""

from __future__ import annotations

import argparse

from agreid_plugin.cli import arguments

EXAMPLES = """examples:
  fastreid convert visa model_best.pth --config projects/ViSA/cargo_released.yml --out visa_cargo.pth
  fastreid convert svpr transformer_best.pth --config projects/SVPR-ReID/ag_reid_v1_released.yml --out svpr_v1.pth
  fastreid convert tag-clip best.pth --config projects/TAG-CLIP/tag_pedes.yml --out tag_clip.pth
  fastreid convert vdt model_final.pth --config projects/VDT/cargo.yml --out vdt_cargo.pth
  fastreid eval --config projects/VDT/cargo.yml --weights vdt_cargo.pth
"""
METHODS = ("vdt", "visa", "svpr", "tag-clip")


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "convert",
        help="convert a checkpoint of the released VDT, ViSA, SVPR-ReID or TAG-CLIP",
        description="Turn a checkpoint that the released code of a method wrote into one of the model that a "
        "configuration describes (for ViSA and SVPR-ReID with VARIANT released), and list what had no place in it.",
        epilog=EXAMPLES,
    )
    parser.add_argument("method", choices=METHODS, metavar="METHOD", help=f"one of {', '.join(METHODS)}")
    parser.add_argument("released", metavar="RELEASED", help="checkpoint of the released code; it is only read")
    arguments.add_config(parser, what="configuration of the same model: .yml")
    parser.add_argument("--out", required=True, metavar="FILE", help="checkpoint to write, which must not exist")
    arguments.add_trust(parser)
    parser.set_defaults(run=_convert)


def _convert(args: argparse.Namespace) -> None:
    from agreid_plugin.hosts.fastreid.commands.convert import convert

    for line in convert(args.method, args.released, args.config_file, args.out):
        print(line)
