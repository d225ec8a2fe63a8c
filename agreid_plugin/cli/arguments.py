"""Options that several commands share: configuration, model, images, datasets, indexes and filters."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agreid_plugin.errors import InputError
from agreid_plugin.trust import OPTION

if TYPE_CHECKING:
    from agreid_plugin.inference.extractor import Extractor
    from agreid_plugin.retrieval.index import Entry, Where
    from agreid_plugin.types import View

USER_OPTIONS = {
    **{name: name for name in ("pattern", "identity_folders", "aerial_cameras", "delimiter", "split")},
    "image_folder": "images",
}
"""Option of a command -> that of the reader of the user's images."""
CONFIG = "configuration: .yml of fast-reid, .py of mmengine; a file, or a recipe of this package as ViSA/agsynth.yml"
VIEWS = ("aerial", "ground")
FILTERS = ("view", "camera", "pid", "platform", "after", "before", "where")


def add_config(
    parser: argparse.ArgumentParser,
    required: bool = True,
    what: str = CONFIG,
) -> None:
    """Add the option that names a configuration."""
    parser.add_argument(
        "--config", "--config-file", dest="config_file", type=_find_recipe, required=required, metavar="FILE", help=what
    )


def _find_recipe(name: str) -> str:
    from agreid_plugin.engine.configuration import find_recipe

    return find_recipe(name)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add what changes keys of the configuration."""
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="keys of the configuration to change")


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the option that lets weight files run code."""
    parser.add_argument(
        OPTION,
        action="store_true",
        help="load weight files that hold more than tensors, running the code in them: only of people you trust",
    )


def parse_size(text: str) -> tuple[int, int]:
    """Read HEIGHTxWIDTH."""
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise argparse.ArgumentTypeError(f"{text!r} is not HEIGHTxWIDTH, for example 256x128")
    return int(height), int(width)


def require_counts(args: argparse.Namespace, *names: str) -> None:
    """Refuse options that count something, as far as the command has them and they are given, below 1."""
    for name in names:
        value = getattr(args, name, None)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} is {value}, but must be 1 or more")


def check_file(option: str, path: Path, endings: Sequence[str], may_exist: bool = False) -> None:
    """Refuse a file before anything is computed, if it could not be written then."""
    if path.suffix.lower() not in endings:
        raise InputError(f"{option} {path}: end its name with {endings[0]}")
    if path.exists() and not may_exist:
        raise InputError(f"{option} {path} exists already; choose another name")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{option} {path}: its folder does not exist")
    if not os.access(path.absolute().parent, os.W_OK):
        raise InputError(f"{option} {path}: its folder cannot be written")


def add_user_dataset(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options of the user's images, a folder or a table of them."""
    parser.add_argument(
        "--pattern", metavar="REGEX", help="own folder: of a file's name, with (?P<pid>...) (default: Market-1501's)"
    )
    parser.add_argument("--identity-folders", action="store_true", help="own folder: it has a folder an identity")
    parser.add_argument("--aerial-cameras", nargs="+", metavar="C", help="own folder or table: the cameras in the air")
    parser.add_argument(
        "--delimiter", type=_delimiter, metavar="C", help=r"own table: what separates columns, \t a tab (default: ,)"
    )
    parser.add_argument(
        "--image-folder", metavar="DIR", help="own table: where relative paths start (default: the table's folder)"
    )


def get_user_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the user's images, for their reader."""
    given = {option: getattr(args, name, None) for name, option in USER_OPTIONS.items()}
    return {option: value for option, value in given.items() if value is not None and value is not False}


def find_dataset(name: str) -> str:
    """Return a dataset's proper name; one that this package does not have is searched among those of plugins.

    Raises:
        InputError: there is none by that name.
    """
    from agreid_plugin.data.datasets import dataset_name
    from agreid_plugin.host import load_plugins

    try:
        return dataset_name(name)
    except InputError:
        load_plugins()
        return dataset_name(name)


def _delimiter(text: str) -> str:
    return "\t" if text == r"\t" else text


def add_model(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add the options that name a model."""
    add_config(parser, required, CONFIG if required else f"{CONFIG} (default: that of the index, if it was made here)")
    parser.add_argument("--weights", metavar="FILE", help="checkpoint of the model (default: the config's)")
    add_trust(parser)
    parser.add_argument("--device", metavar="D", help="cpu, cuda or cuda:1 (default: the config's)")
    parser.add_argument("--batch-size", type=int, metavar="N", help="images at a time (default: the config's)")
    add_overrides(parser)


def add_images(parser: argparse.ArgumentParser | argparse._MutuallyExclusiveGroup, required: bool = False) -> None:
    """Add the option that names images."""
    parser.add_argument(
        "--images",
        required=required,
        metavar="DIR|CSV",
        help="folder of images, at any depth; or a table with the column path and, as known, view, camera, pid, "
        "platform, time; other columns become tags",
    )


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add the options of reading images."""
    parser.add_argument(
        "--dataset", default="", metavar="NAME", help="read the folder as this dataset (CARGO), whose names have labels"
    )
    parser.add_argument(
        "--splits",
        nargs="+",
        default=[],
        metavar="S",
        help="of the dataset: train, val, query, gallery, test (default: those that its tests search in, gallery or "
        "test)",
    )
    parser.add_argument(
        "--skip-bad-images",
        action="store_true",
        help="leave out images that cannot be read, or whose names are not one line of UTF-8",
    )


def add_index(parser: argparse.ArgumentParser | argparse._MutuallyExclusiveGroup, required: bool = True) -> None:
    """Add the option that names an index."""
    parser.add_argument(
        *("--index", "--uri"),
        dest="index",
        required=required,
        metavar="WHERE",
        help="folder (faiss), gallery.db (Milvus Lite) or http://host:19530 (Milvus); #name behind the last two "
        "chooses a collection",
    )


def add_token(parser: argparse.ArgumentParser) -> None:
    """Add the option of a server's password."""
    parser.add_argument(
        "--token", metavar="USER:PASSWORD", help="of a Milvus server that asks for it (default: $MILVUS_TOKEN)"
    )


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add the conditions that images have to meet."""
    group = parser.add_argument_group("conditions, which all have to hold; an unknown label meets none")
    group.add_argument("--view", choices=VIEWS, help="of the images: given, or predicted by the model")
    group.add_argument("--camera", type=int, action="append", metavar="N", help="may be given again")
    group.add_argument("--pid", type=int, action="append", metavar="N", help="identity; may be given again")
    group.add_argument("--platform", default="", metavar="P", help="what carries the camera: uav, cctv, wearable, ...")
    group.add_argument("--after", metavar="TIME", help="2026-05-31 or 2026-05-31T14:30 (UTC), or later")
    group.add_argument("--before", metavar="TIME", help="earlier than this")
    group.add_argument("--where", action="append", default=[], metavar="TAG=VALUE", help="may be given again")


def build_filter(args: argparse.Namespace, paths: tuple[str, ...] = ()) -> Where:
    """Return the conditions of a command line."""
    from agreid_plugin.retrieval.index import Where, parse_time

    for text in args.where:
        if "=" not in text:
            raise InputError(f"--where {text!r} should be TAG=VALUE, for example weather=rain")
    return Where(
        view=parse_view(args),
        cameras=tuple(args.camera or ()),
        pids=tuple(args.pid or ()),
        platform=args.platform,
        after=parse_time(args.after) if args.after else None,
        before=parse_time(args.before) if args.before else None,
        tags=dict(text.split("=", 1) for text in args.where),
        paths=paths,
    )


def parse_view(args: argparse.Namespace) -> View | None:
    """Return the view of a command line, None if it names none."""
    from agreid_plugin.types import View

    return View[args.view.upper()] if args.view else None


def build_extractor(args: argparse.Namespace, normalize: bool = True) -> Extractor:
    """Build the model of a command line; see `recall_model`, too."""
    from agreid_plugin.inference import used_models
    from agreid_plugin.inference.extractor import Extractor

    require_counts(args, "batch_size")
    extractor = Extractor.from_config(
        args.config_file,
        args.weights,
        device=args.device,
        batch_size=args.batch_size,
        normalize=normalize,
        overrides=args.overrides,
    )
    used_models.remember(extractor.fingerprint, args.config_file, args.weights, args.overrides)
    return extractor


def recall_model(args: argparse.Namespace, fingerprint: str) -> None:
    """Fill in the model of a command line that names none but an index, by the fingerprint that the index has.

    Raises:
        InputError: this user has made no features with it.
    """
    from agreid_plugin.inference import used_models

    if args.config_file:
        return
    known = used_models.recall(fingerprint) if fingerprint else None
    if known is None:
        raise InputError(f"the model of index {args.index} is not known here: name it with --config and --weights")
    args.config_file, args.weights = known.config, args.weights or known.weights
    args.overrides = [*known.overrides, *args.overrides]


def list_entries(args: argparse.Namespace) -> list[Entry]:
    """Return the images of a command line; say of which splits of a dataset, and which are left out for their names."""
    from agreid_plugin.data.bad_images import describe_images
    from agreid_plugin.retrieval.listing import BAD_NAMES, list_gallery

    if args.splits and not args.dataset:
        raise InputError("--splits are of a dataset: name it with --dataset")
    dataset = find_dataset(args.dataset) if args.dataset else ""
    entries, bad = list_gallery(Path(args.images), dataset, args.splits, args.skip_bad_images)
    if bad:
        print_note(f"left out: {describe_images(bad, BAD_NAMES)}")
    if dataset:
        splits = ", ".join(sorted({entry.tags["split"] for entry in entries}))
        print_note(f"{dataset}: {len(entries):,} images of split {splits} (--splits chooses)")
    return entries


def get_token(args: argparse.Namespace) -> str:
    """Return the password of a server."""
    return args.token or os.environ.get("MILVUS_TOKEN", "")


def print_note(line: str) -> None:
    """Print a line that a user should read, beside the results and above a progress bar."""
    from tqdm import tqdm

    tqdm.write(f"fastreid: {line}", file=sys.stderr)


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file in full or not at all; `write` is given the name of its draft."""
    from agreid_plugin.data.atomic_write import atomic_write, write_error_context

    with write_error_context(path), atomic_write(path) as draft:
        write(draft)
