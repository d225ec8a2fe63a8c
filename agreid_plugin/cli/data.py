"""`fastreid data`: make AG-Synth, check a copy of a dataset, split and describe images, list what can be read."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from agreid_plugin.cli import arguments, caption
from agreid_plugin.errors import InputError, unknown

if TYPE_CHECKING:
    from agreid_plugin.data.datasets import Dataset
    from agreid_plugin.evaluation.view_gap import ViewGapCard

MAKE_EXAMPLES = """examples:
  fastreid data make agsynth --root datasets                       200 people, 12 pictures each, as CARGO
  fastreid data make agsynth --root datasets --layout tag-pedes    with captions
  fastreid data make agsynth --root datasets --world gap           drones high in haze, low cameras, look-alikes
  fastreid data make agsynth --preview sheet.png                   only a contact sheet to look at
"""
CHECK_EXAMPLES = """examples:
  fastreid data check CARGO --root datasets
  fastreid data check CARGO --root datasets --view-gap               how far apart sky and street are
  fastreid data check AG-ReID.v2 --root /data/AG-ReID.v2 --no-images --json
  fastreid data check folder --root my_crops --pattern "(?P<pid>[0-9]+)_(?P<camera>[0-9]+)"
  fastreid data check csv --root my_crops.csv --delimiter ";" --aerial-cameras 1 2
"""
TABLE_EXAMPLES = """examples:
  fastreid data make-table folder --root photos --identity-folders --out people.csv
  fastreid data make-table folder --root crops --pattern "(?P<pid>[0-9]+)_c(?P<camera>[0-9]+)" --out crops.csv
  fastreid data make-table folder --root crops --pattern "(?P<pid>[a-z]+)-(?P<number>[0-9]+)" --out crops.csv \\
    --number-cameras 1-40=1 41-90=2 --aerial-cameras 2
"""


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command and its sub-commands."""
    parser = subparsers.add_parser(
        "data",
        help="make, check, caption and list datasets",
        description="Make AG-Synth, check a copy of a dataset, split or describe images, or list what can be read.",
        epilog="'fastreid data ACTION --help' explains an action, with examples.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_make(actions)
    _add_check(actions)
    _add_make_table(actions)
    caption.add_to(actions)
    listing = actions.add_parser(
        "list",
        help="list the datasets that can be read, with their protocols",
        description="List the datasets that can be read, those of plugins among them, with their protocols.",
    )
    listing.set_defaults(run=_list)


def _add_make(actions: argparse._SubParsersAction) -> None:
    make = actions.add_parser(
        "make",
        help="make a synthetic dataset",
        description="Write AG-Synth: people as 3-D bodies seen by drones and from the street, with attributes and "
        "captions, in the layout of a real dataset.",
        epilog=MAKE_EXAMPLES,
    )
    make.add_argument("name", metavar="NAME", help="agsynth")
    make.add_argument("--root", metavar="DIR", help="folder of datasets; the layout's own folder is made in it")
    make.add_argument("--ids", type=int, default=200, metavar="N", help="people (default: 200)")
    make.add_argument("--images-per-id", type=int, default=12, metavar="N", help="pictures of each (default: 12)")
    make.add_argument("--size", type=arguments.parse_size, default=(256, 128), metavar="HxW", help="(default: 256x128)")
    make.add_argument(
        "--layout", default="cargo", help="cargo, ag-reid-v2, cp2108, tag-pedes or csv, a table (default: cargo)"
    )
    make.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, other people (default: 0)")
    make.add_argument(
        "--world",
        default="easy",
        metavar="W",
        help="easy, or gap: sky and street differ, people look alike (default: easy)",
    )
    make.add_argument("--workers", type=int, metavar="N", help="processes (default: one a core)")
    make.add_argument("--overwrite", action="store_true", help="replace a folder that is not empty")
    make.add_argument("--preview", metavar="PNG", help="also draw a contact sheet: rows people, columns cameras")
    make.set_defaults(run=_make)


def _add_check(actions: argparse._SubParsersAction) -> None:
    check = actions.add_parser(
        "check",
        help="check a copy of a dataset",
        description="Count and compare with the published numbers, decode every image, look for identities in train "
        "and test and for queries without a match. Exit code 2 if something is wrong.",
        epilog=CHECK_EXAMPLES,
    )
    check.add_argument("name", metavar="NAME", help="a dataset's name; see 'fastreid data list'")
    check.add_argument("--root", required=True, metavar="DIR", help="the dataset's folder, or the one that holds it")
    check.add_argument("--no-images", action="store_true", help="do not decode the images")
    check.add_argument("--skip-bad-names", action="store_true", help="leave out images whose names do not fit")
    arguments.add_user_dataset(check)
    check.add_argument("--split", metavar="S", help="own folder or table: of images that name none (default: train)")
    check.add_argument(
        "--view-gap",
        action="store_true",
        help="also print the view-gap card: pixels beside those of photographs, and what a small ViT of a fixed "
        "recipe, trained for a minute or two on the training people, confuses within a view and across",
    )
    check.add_argument("--json", action="store_true", help="print the report as JSON")
    check.set_defaults(run=_check)


def _add_make_table(actions: argparse._SubParsersAction) -> None:
    table = actions.add_parser(
        "make-table",
        help="split your own images into train, query and gallery, in a table",
        description="Write a table of your own images, split by people: some to train on; of each of the others one "
        "image a camera is a query, the rest gallery. Splits that folders or a table name do not count. No image is "
        "moved. The dataset csv reads the table.",
        epilog=TABLE_EXAMPLES,
    )
    table.add_argument("name", choices=("folder", "csv"), metavar="NAME", help="folder or csv: how the images are read")
    table.add_argument("--root", required=True, metavar="DIR", help="the folder, or the table")
    table.add_argument("--out", required=True, metavar="CSV", help="the table to write")
    table.add_argument("--test-share", type=float, default=0.5, metavar="P", help="of the people (default: 0.5)")
    table.add_argument("--seed", type=int, default=0, metavar="N", help="which people (default: 0)")
    table.add_argument("--skip-bad-names", action="store_true", help="leave out images whose names do not fit")
    table.add_argument(
        "--number-cameras",
        nargs="+",
        type=_parse_span,
        default=[],
        metavar="A-B=C",
        help="cameras that only a picture's number tells, the group (?P<number>...) of --pattern",
    )
    arguments.add_user_dataset(table)
    table.set_defaults(run=_make_table)


def _parse_span(text: str) -> tuple[range, int]:
    match = re.fullmatch(r"(\d{1,18})-(\d{1,18})=(\d{1,18})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST-LAST=CAMERA, for example 1-40=2")
    first, last, camera = map(int, match.groups())
    return range(first, last + 1), camera


def _make_table(args: argparse.Namespace) -> None:
    from agreid_plugin.data.check import check
    from agreid_plugin.data.datasets import load
    from agreid_plugin.data.people_split import set_cameras, split_people, write_table

    path, options = Path(args.out), arguments.get_user_options(args)
    arguments.check_file("--out", path, (".csv",))
    aerial = options.pop("aerial_cameras", ()) if args.number_cameras else ()  # of cameras that are not known yet
    records = load(args.name, args.root, skip_bad_names=args.skip_bad_names, **options).records
    if args.number_cameras:
        records = set_cameras(records, dict(args.number_cameras), aerial)
    write_table(path, split_people(records, args.test_share, args.seed))
    print("\n".join(check(load("csv", path), images=False, progress=False, published=False).lines()))


def _make(args: argparse.Namespace) -> None:
    from agreid_plugin.synth import contact_sheet, make_agsynth

    if args.name != "agsynth":
        raise unknown("dataset to make", args.name, ["agsynth"])
    if not args.root and not args.preview:
        raise InputError("name a folder with --root, or a picture with --preview")
    if args.root:
        folder = make_agsynth(
            args.root,
            ids=args.ids,
            images_per_id=args.images_per_id,
            size=args.size,
            layout=args.layout,
            seed=args.seed,
            world=args.world,
            workers=args.workers,
            overwrite=args.overwrite,
        )
        print(f"{args.ids * args.images_per_id} images in {folder}")
    if args.preview:
        sheet = contact_sheet(args.preview, size=args.size, seed=args.seed, world=args.world, progress=True)
        print(f"contact sheet in {sheet}")


def _check(args: argparse.Namespace) -> int:
    from agreid_plugin.data.check import check
    from agreid_plugin.data.datasets import load
    from agreid_plugin.data.datasets.locations import is_agsynth

    name, options = arguments.find_dataset(args.name), arguments.get_user_options(args)
    dataset = load(name, args.root, skip_bad_names=args.skip_bad_names, **options)
    synthetic = is_agsynth(Path(dataset.records[0].path))
    report = check(dataset, images=not args.no_images, progress=sys.stderr.isatty(), published=not synthetic)
    if not args.json:
        print("\n".join(report.lines()), flush=True)
    card = _measure_view_gap(dataset) if args.view_gap else None
    if args.json:
        print(json.dumps(report.as_dict() | ({"view_gap": card.as_dict()} if card else {}), indent=2))
    elif card:
        print("\n".join(card.lines()))
    return 0 if report.ok else 2


def _measure_view_gap(dataset: Dataset) -> ViewGapCard:
    from agreid_plugin.evaluation.view_gap import measure_view_gap

    return measure_view_gap(dataset, progress=sys.stderr.isatty())


def _list(args: argparse.Namespace) -> None:  # noqa: ARG001
    from agreid_plugin.data.datasets import DATASETS
    from agreid_plugin.data.protocols import protocols
    from agreid_plugin.host import load_plugins

    load_plugins()
    for name, source in DATASETS.items():
        print(f"{name}: {source.about}\n  {source.cite}")
        for protocol in protocols(name).values():
            print(f"  {protocol!s:<28}  {protocol.source}")
