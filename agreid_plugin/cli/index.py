"""`fastreid index`: build, change and describe gallery indexes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from agreid_plugin.cli import arguments
from agreid_plugin.errors import InputError

if TYPE_CHECKING:
    from agreid_plugin.inference.extraction import Extraction
    from agreid_plugin.retrieval.index import Chunk, Info

EXAMPLES = """examples:
  fastreid index build --index people --images crops.csv --config my.yml --weights best.pth
  fastreid index build --uri people.db --features feats.npz
  fastreid index add --index people --images today
  fastreid index remove --index people --before 2026-01-01 --camera 3
  fastreid index info --index people --check
  fastreid search --index people --image someone.jpg

An index is a folder (faiss, on this machine), gallery.db (Milvus Lite, in this process) or http://host:19530 (a Milvus
server or cluster). The kind is chosen by size: flat, which is exact, up to 100,000 images, then hnsw, ivf and pq.
"""


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command and what it does."""
    parser = subparsers.add_parser(
        "index",
        help="build and change an index to search in",
        description="Keep the features of a gallery that is searched often.",
        epilog=EXAMPLES,
    )
    what = parser.add_subparsers(metavar="WHAT", required=True)
    build = what.add_parser(
        "build",
        help="build an index of images, or of features that are there",
        description="Build an index of images, or of a file of features. Interrupted, the same command goes on. It "
        "ends with what was built: the kind, and for one that is not exact how much of the true ten best it finds.",
        epilog=EXAMPLES,
    )
    _add_source(build)
    build.add_argument("--kind", metavar="K", help="flat, ivf, hnsw or pq (default: by size)")
    build.set_defaults(run=_build)
    add = what.add_parser(
        "add",
        help="add images to an index",
        description="Add images to an index, made by the same model. An image of a known path is replaced.",
        epilog=EXAMPLES,
    )
    _add_source(add)
    add.set_defaults(run=_add)
    remove = what.add_parser(
        "remove",
        help="remove images from an index",
        description="Remove the images that meet all conditions, of which there has to be one.",
        epilog=EXAMPLES,
    )
    arguments.add_index(remove)
    arguments.add_token(remove)
    remove.add_argument(
        "--path", action="append", default=[], metavar="FILE", help="as it is in the index; may be given again"
    )
    arguments.add_filters(remove)
    remove.set_defaults(run=_remove)
    info = what.add_parser(
        "info",
        help="describe an index",
        description="Print the kind of an index, how many images it has, their width, and which model made them.",
        epilog=EXAMPLES,
    )
    arguments.add_index(info)
    arguments.add_token(info)
    info.add_argument("--check", action="store_true", help="read all of it and compare it with its checksums")
    info.set_defaults(run=_info)


def _add_source(parser: argparse.ArgumentParser) -> None:
    arguments.add_index(parser)
    arguments.add_token(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    arguments.add_images(source)
    source.add_argument("--features", metavar="NPZ|PARQUET", help="of 'fastreid extract', or 'eval --save-features'")
    arguments.add_reading(parser)
    arguments.add_model(parser, required=False)


def _build(args: argparse.Namespace) -> None:
    from agreid_plugin.retrieval.index import build_index
    from agreid_plugin.retrieval.index.base import check_kind

    check_kind(args.kind)
    fingerprint, chunks, extraction = _open_source(args)
    info = build_index(args.index, chunks, kind=args.kind, fingerprint=fingerprint, token=arguments.get_token(args))
    if extraction is not None:
        extraction.print_notes(arguments.print_note)
    _print_info(info)


def _add(args: argparse.Namespace) -> None:
    from agreid_plugin.retrieval.index import open_index

    with open_index(args.index, token=arguments.get_token(args)) as index:  # before a model is built for nothing
        if args.images:
            arguments.recall_model(args, index.info().fingerprint)
    fingerprint, chunks, extraction = _open_source(args)
    with open_index(args.index, write=True, fingerprint=fingerprint, token=arguments.get_token(args)) as index:
        added = index.add(chunks)
        if extraction is not None:
            extraction.print_notes(arguments.print_note)
        print(f"{added} images added")
        _print_info(index.info())


def _remove(args: argparse.Namespace) -> None:
    from agreid_plugin.retrieval.index import open_index

    where = arguments.build_filter(args, tuple(args.path))
    with open_index(args.index, write=True, token=arguments.get_token(args)) as index:
        print(f"{index.remove(where)} images removed")
        _print_info(index.info())


def _info(args: argparse.Namespace) -> None:
    from agreid_plugin.retrieval.index import open_index

    with open_index(args.index, token=arguments.get_token(args)) as index:
        if args.check:
            index.check()
        _print_info(index.info())


def _open_source(args: argparse.Namespace) -> tuple[str, Iterable[Chunk], Extraction | None]:
    """Return the model's fingerprint, the images, and the extraction that they come from, if any."""
    if args.features:
        if args.config_file or args.weights:
            raise InputError("--features are there already: leave out --config and --weights")
        from agreid_plugin.retrieval.feature_files import read_features

        return *read_features(args.features), None
    if not args.config_file:
        raise InputError("--images needs --config, and --weights, to make features of them")
    from agreid_plugin.inference.extraction import Extraction

    entries = arguments.list_entries(args)
    extraction = Extraction(arguments.build_extractor(args), entries, args.skip_bad_images)
    return extraction.extractor.fingerprint, extraction.chunks(), extraction


def _print_info(info: Info) -> None:
    from agreid_plugin.retrieval.index.index_types import RECALL_AT

    exact = "exact" if info.kind == "flat" else f"looks at {info.effort} lists or candidates"
    rows = {
        "index": f"{info.uri} ({info.backend})",
        "kind": f"{info.kind}, {exact}",
        f"recall@{RECALL_AT}": "not measured" if info.recall is None else f"{info.recall:.3f} of exact search",
        "images": f"{info.images:,}" + (f", {info.removed:,} removed ones still on the disk" if info.removed else ""),
        "width": str(info.width),
        "size": "the server's" if info.size is None else f"{info.size / 2**20:.1f} MB",
        "made by": info.fingerprint[:12] or "unknown",
    }
    for name, value in rows.items():
        print(f"{name:<10} {value}")
