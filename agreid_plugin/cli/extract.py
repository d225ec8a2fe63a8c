"""`fastreid extract`: write the features of a folder's or a table's images to a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from agreid_plugin.cli import arguments

EXAMPLES = """examples:
  fastreid extract --config runs/visa/config.yaml --weights runs/visa/model_best.pth --images crops --out feats.npz
  fastreid extract --config my.yml --weights best.pth --images crops.csv --out feats.parquet --batch-size 128
  fastreid extract --config my.py --weights epoch_24.pth --images datasets/cargo --dataset CARGO --out feats.npz
  fastreid index build --features feats.npz --index gallery

in Python:
  numpy.load("feats.npz")["features"], ["path"], ["view"], ["camera"], ["pid"], ["time"]
  pandas.read_parquet("feats.parquet")
"""


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "extract",
        help="write the features of images to a file",
        description="Write the features of images, of length 1, with what is known of each, to an npz or parquet file. "
        "Memory does not grow with their number. What is done lies in OUT.parts until all is: interrupted, the same "
        "command goes on. Unknown views that the model needs are predicted by it.",
        epilog=EXAMPLES,
    )
    arguments.add_model(parser)
    arguments.add_images(parser, required=True)
    arguments.add_reading(parser)
    parser.add_argument("--out", required=True, metavar="NPZ|PARQUET", help="the file; its ending chooses the format")
    parser.add_argument("--raw", action="store_true", help="leave features as the model has them, of any length")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    parser.set_defaults(run=_extract)


def _extract(args: argparse.Namespace) -> None:
    from agreid_plugin.inference.extraction import Extraction, check_output, extract

    path = Path(args.out)
    check_output(path, args.force)
    entries = arguments.list_entries(args)
    extraction = Extraction(arguments.build_extractor(args, normalize=not args.raw), entries, args.skip_bad_images)
    images, width = extract(extraction, path, arguments.print_note)
    print(f"{path}: {images} images, features {width} wide")
