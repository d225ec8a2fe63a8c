"""`fastreid search`: the images of a folder that a sentence describes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from agreid_plugin.errors import InputError

EXAMPLES = """examples:
  fastreid search --config runs/tag/config.yaml --weights runs/tag/model_best.pth --gallery crops \\
    --text "a woman in a red coat carrying a backpack"
  fastreid search --config my.yml --weights best.pth --gallery crops --cache crops.npz --text "a man with a dog"
  fastreid search --config my.yml --weights best.pth --gallery crops --texts wanted.txt --html found.html --top 30
  fastreid search --config my.yml --weights best.pth --gallery crops --text "a child" --view aerial --picture found.png
"""
ENDINGS = {"cache": (".npz",), "html": (".html", ".htm"), "picture": (".png",), "json": (".json",)}
"""Option that names a file -> how its name may end."""
MOST_DRAWN = 1000  # a picture of more would not open anywhere


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "search",
        help="find the images of a folder that a sentence describes",
        description="Rank the images of a folder by how well a sentence describes them, with a model that reads both: "
        "TAG-CLIP or TBPS-CLIP. The score is the cosine of their features, 1 at most; it tells better from worse, not "
        "whether the person is there. The view, aerial or ground, is what TAG-CLIP's routers take an image for: "
        "nobody has to know it.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--config", "--config-file", dest="config_file", required=True, metavar="FILE")
    parser.add_argument("--weights", metavar="FILE", help="checkpoint of the model (default: MODEL.WEIGHTS)")
    parser.add_argument("--gallery", required=True, metavar="DIR", help="folder of images, at any depth")
    query = parser.add_mutually_exclusive_group(required=True)
    query.add_argument("--text", action="append", metavar="SENTENCE", help="what to look for; may be given again")
    query.add_argument("--texts", metavar="FILE", help="sentences, one a line")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="images of each sentence (default: 10)")
    parser.add_argument(
        "--view", choices=("aerial", "ground"), help="keep the images that the model's routers take for this view"
    )
    parser.add_argument(
        "--cache",
        metavar="NPZ",
        help="keep the images' features here, and read an image again only if it, the weights or the config changed",
    )
    parser.add_argument("--skip-bad-images", action="store_true", help="leave out images that cannot be read")
    parser.add_argument("--html", metavar="FILE", help="write a page with small images in it")
    parser.add_argument("--picture", metavar="PNG", help="draw a contact sheet")
    parser.add_argument("--json", metavar="FILE", help="write path, score, rank and view for scripts")
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="config keys to change")
    parser.set_defaults(run=_search)


def _search(args: argparse.Namespace) -> None:
    sentences = _sentences(args)
    _check(args, len(sentences))
    from agreid_plugin.hosts.fastreid.search import search_text
    from agreid_plugin.types import View

    answers = search_text(
        args.config_file,
        args.weights,
        args.gallery,
        sentences,
        overrides=args.overrides,
        top=args.top,
        view=View[args.view.upper()] if args.view else None,
        cache=args.cache,
        skip_bad_images=args.skip_bad_images,
        tell=lambda line: print(f"fastreid: {line}", file=sys.stderr),
    )
    _print(answers)
    _write(args, answers)


def _sentences(args: argparse.Namespace) -> list[str]:
    if args.text is not None:
        given = args.text
    else:
        from agreid_plugin.data.datasets.files import read_text

        given = [line for line in read_text(Path(args.texts)).splitlines() if line.strip()]
        if not given:
            raise InputError(f"--texts {args.texts} is empty: write a sentence a line")
    if not all(text.strip() for text in given):
        raise InputError("--text is empty: describe a person")
    return [text.strip() for text in given]


def _check(args: argparse.Namespace, sentences: int) -> None:
    if args.top < 1:
        raise InputError(f"--top is {args.top}, but must be 1 or more")
    if args.picture and args.top * sentences > MOST_DRAWN:
        raise InputError(
            f"--picture draws {MOST_DRAWN} images at most, not {args.top * sentences}: lower --top, or use --html"
        )
    for option, endings in ENDINGS.items():
        if getattr(args, option) is not None:
            _check_file(f"--{option}", Path(getattr(args, option)), endings, may_exist=option == "cache")


def _check_file(option: str, path: Path, endings: Sequence[str], may_exist: bool) -> None:
    """Refuse a file before anything is computed, if it could not be written then."""
    if path.suffix.lower() not in endings:
        raise InputError(f"{option} {path}: end its name with {endings[0]}")
    if path.exists() and not may_exist:
        raise InputError(f"{option} {path} exists already; choose another name")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{option} {path}: its folder does not exist")
    if not os.access(path.absolute().parent, os.W_OK):
        raise InputError(f"{option} {path}: its folder cannot be written")


def _print(answers: Sequence) -> None:
    from agreid_plugin.evaluation.showing import printable, table

    for answer in answers:
        print(f'"{printable(answer.query)}"')
        for note in answer.notes:
            print(f"note: {note}")
        print(f"{table(answer)}\n", flush=True)


def _write(args: argparse.Namespace, answers: Sequence) -> None:
    from agreid_plugin.evaluation.showing import page, plain, sheet

    about = {"gallery": args.gallery, "config": args.config_file, "weights": args.weights, "view": args.view}
    if args.json:
        with open(args.json, "x", encoding="utf-8") as file:
            json.dump({**about, "answers": plain(answers)}, file, indent=1)
    if args.html:
        told = ", ".join(f"{name}: {value}" for name, value in about.items() if value)
        content = page(answers, told)
        with open(args.html, "x", encoding="utf-8") as file:
            file.write(content)
    if args.picture:
        picture = sheet(answers)
        with open(args.picture, "xb") as file:
            picture.save(file, "PNG")
    written = [path for path in (args.json, args.html, args.picture) if path]
    if written:
        print(f"written: {', '.join(written)}")
