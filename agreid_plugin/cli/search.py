"""`fastreid search`: rank the images of a gallery by similarity to an image or a sentence."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from agreid_plugin.cli import arguments
from agreid_plugin.cli.arguments import check_file, require_counts
from agreid_plugin.errors import InputError, printable

if TYPE_CHECKING:
    from agreid_plugin.inference.extractor import Extractor
    from agreid_plugin.retrieval.index import GalleryIndex, SearchResult

EXAMPLES = """examples:
  fastreid search --index people --image someone.jpg
  fastreid search --config my.yml --weights best.pth --uri people.db --image someone.jpg --query-view aerial \\
    --view ground --camera 3 --after 2026-05-31T10:00 --top 20 --html found.html
  fastreid search --config runs/tag/config.yaml --weights runs/tag/model_best.pth --gallery crops \\
    --text "a woman in a red coat carrying a backpack"
  fastreid search --config my.yml --weights best.pth --gallery crops --cache crops.npz --texts wanted.txt
  fastreid search --config my.yml --weights best.pth --gallery crops --text "a child" --view aerial --picture found.png
"""
ENDINGS = {"cache": (".npz",), "html": (".html", ".htm"), "picture": (".png",), "json": (".json",)}
"""Option that names a file -> how its name may end."""
MAX_DRAWN = 1000  # a picture of more would not open anywhere


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "search",
        help="find the images of a gallery that look like an image, or that a sentence describes",
        description="Rank the images of an index, or of a folder, by how much they look like an image; or, with a "
        "model that reads both (TAG-CLIP, TBPS-CLIP), by how well a sentence describes them. The score is the cosine "
        "of their features, 1 at most; it ranks images, but does not say whether the person is there.",
        epilog=EXAMPLES,
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--gallery", metavar="DIR", help="folder of images, at any depth")
    arguments.add_index(place, required=False)
    query = parser.add_mutually_exclusive_group(required=True)
    query.add_argument("--image", action="append", metavar="FILE", help="what to look for; may be given again")
    query.add_argument("--text", action="append", metavar="SENTENCE", help="what to look for; may be given again")
    query.add_argument("--texts", metavar="FILE", help="sentences, one a line")
    parser.add_argument("--query-view", choices=arguments.VIEWS, help="of --image (default: as the model takes it)")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="images of each query (default: 10)")
    arguments.add_filters(parser)
    parser.add_argument(
        "--cache",
        metavar="NPZ",
        help="of --gallery: keep the images' features here, and read an image again only if it, the weights or the "
        "config changed",
    )
    parser.add_argument(
        "--skip-bad-images",
        action="store_true",
        help="of --gallery: leave out those that cannot be read, or whose names are not one line of UTF-8",
    )
    parser.add_argument("--html", metavar="FILE", help="write a page with small images in it")
    parser.add_argument("--picture", metavar="PNG", help="draw a contact sheet")
    parser.add_argument("--json", metavar="FILE", help="write path, score, rank, view and more for scripts")
    arguments.add_token(parser)
    arguments.add_model(parser, required=False)
    parser.set_defaults(run=_search)


def _search(args: argparse.Namespace) -> None:
    sentences = [] if args.image else _read_sentences(args)
    _check(args, len(args.image or sentences))
    where = arguments.build_filter(args)
    from agreid_plugin.inference import gallery_search

    if args.index and not args.config_file:
        arguments.recall_model(args, gallery_search.read_index_fingerprint(args.index, arguments.get_token(args)))
    extractor = arguments.build_extractor(args)
    if args.gallery and args.view:
        gallery_search.check_view_filter(extractor)
    if args.image:
        queries = gallery_search.image_queries(extractor, args.image, args.query_view)
    else:
        queries = gallery_search.text_queries(extractor, sentences)
    with _open_gallery(args, extractor) as index:
        results = gallery_search.search(index, queries, args.top, where)
    _print(results, "no image of the gallery meets the conditions" if where else "the gallery has no images left")
    _write(args, results)


def _open_gallery(args: argparse.Namespace, extractor: Extractor) -> AbstractContextManager[GalleryIndex]:
    from agreid_plugin.inference import gallery_search

    if args.index:
        return gallery_search.open_checked(args.index, extractor, arguments.get_token(args), arguments.print_note)
    return gallery_search.index_folder(extractor, args.gallery, args.cache, args.skip_bad_images, arguments.print_note)


def _read_sentences(args: argparse.Namespace) -> list[str]:
    if args.text is not None:
        given = args.text
    else:
        from agreid_plugin.data.files import read_text

        given = [line for line in read_text(Path(args.texts)).splitlines() if line.strip()]
        if not given:
            raise InputError(f"--texts {args.texts} is empty: write a sentence a line")
    if not all(text.strip() for text in given):
        raise InputError("--text is empty: describe a person")
    return [text.strip() for text in given]


def _check(args: argparse.Namespace, queries: int) -> None:
    require_counts(args, "top")
    if args.picture and args.top * queries > MAX_DRAWN:
        raise InputError(
            f"--picture draws {MAX_DRAWN} images at most, not {args.top * queries}: lower --top, or use --html"
        )
    if args.query_view and not args.image:
        raise InputError("--query-view is of --image: a sentence has no view")
    known = [name for name in arguments.FILTERS if name != "view" and getattr(args, name)]
    if args.gallery and not args.config_file:
        raise InputError("--gallery needs --config, and --weights, to make features of its images")
    if args.gallery and known:
        raise InputError(f"--{known[0]}: unknown for the images of a folder; build an index from a table")
    if args.index and args.cache:
        raise InputError("--cache is of --gallery: an index keeps its features itself")
    for option, endings in ENDINGS.items():
        if getattr(args, option) is not None:
            check_file(f"--{option}", Path(getattr(args, option)), endings, may_exist=option == "cache")


def _print(results: Sequence[SearchResult], nothing: str) -> None:
    from agreid_plugin.retrieval.result_page import format_result

    for result in results:
        print(printable(result.query) if result.is_image else f'"{printable(result.query)}"')
        for note in result.notes:
            print(f"note: {note}")
        print(f"{format_result(result) if result.matches else nothing}\n", flush=True)


def _write(args: argparse.Namespace, results: Sequence[SearchResult]) -> None:
    from agreid_plugin.retrieval.result_page import as_json, draw_sheet, make_page

    about = {"gallery": args.gallery or args.index, "config": args.config_file, "weights": args.weights}
    about |= {name: getattr(args, name) for name in arguments.FILTERS if getattr(args, name)}
    if args.json:
        content = json.dumps({**about, "answers": as_json(results)}, indent=1)
        arguments.write_file(Path(args.json), lambda draft: draft.write_text(content, encoding="utf-8"))
    if args.html:
        about |= {
            name: _shorten_path(value) for name, value in about.items() if name in ("gallery", "config", "weights")
        }
        shown = make_page(results, ", ".join(f"{name}: {value}" for name, value in about.items() if value))
        arguments.write_file(Path(args.html), lambda draft: draft.write_text(shown, encoding="utf-8"))
    if args.picture:
        picture = draw_sheet(results)
        arguments.write_file(Path(args.picture), lambda draft: picture.save(draft, "PNG"))
    written = [path for path in (args.json, args.html, args.picture) if path]
    if written:
        print(f"written: {', '.join(written)}")


def _shorten_path(place: str | None) -> str:
    """Return a file or folder by its name and the folder it is in, and a server as it is."""
    return "/".join(Path(place).absolute().parts[-2:]) if place and "://" not in place else place or ""
