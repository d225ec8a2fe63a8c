"""`fastreid data caption`: caption images by DTG, the caption generator of TAG-CLIP."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agreid_plugin.cli import arguments
from agreid_plugin.errors import InputError, printable, require_within

if TYPE_CHECKING:
    from agreid_plugin.captioning import Subject

DESCRIPTION = """Describe people in images by a multimodal model, or only from their attributes, and write the captions
as TAG-PEDES does: a JSON list of {file_path, id, captions, cam_id}, cam_id 0 aerial and 1 ground. Two captions an image
as in the paper, a report of their quality beside them. A run that was stopped continues with the same command and
asks no question again that was answered."""
EPILOG = """attributes (--attributes FILE), of images or of identities, as known:
  CSV    id,gender,Upper Color          or   path,gender,Upper Color
         7,male,Red                          a/0001.jpg,male,Red
  JSON   {"7": {"gender": "male"}, "a/0001.jpg": {"Upper Color": "Red"}}
  Paths start from the folder of images. Names and values are free; empty ones and 'unknown' are left out.

examples:
  fastreid data caption --images crops --out captions.json --endpoint http://localhost:8000/v1 --model qwen2.5-vl
  fastreid data caption --dataset AG-ReID.v2 --root datasets --splits train --out train_reid.json \\
      --endpoint https://api.example.com/v1 --model NAME --api-key-env MY_KEY --concurrency 8
  fastreid data caption --dataset CP2108 --root datasets --out captions.json --backend attributes    no model
  fastreid data caption --images crops --identity-folders --out captions.json --dry-run --limit 5    only prompts
"""


def add_to(actions: argparse._SubParsersAction) -> None:
    """Add the action to `fastreid data`."""
    parser = actions.add_parser(
        "caption", help="describe people in images, for text-to-image sets", description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument("--out", required=True, type=Path, metavar="JSON", help="annotation file; never overwritten")
    _add_images(parser.add_argument_group("images, identities, attributes"))
    _add_captions(parser.add_argument_group("captions"))
    _add_backend(parser.add_argument_group("backend"))
    parser.set_defaults(run=_caption)


def _add_images(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--images", metavar="DIR", help="your own images; paths in the annotations start here")
    group.add_argument("--dataset", metavar="NAME", help="or a dataset that can be read; see 'fastreid data list'")
    group.add_argument("--root", metavar="DIR", help="the dataset's folder, or the one that holds it; paths start here")
    group.add_argument("--splits", nargs="+", default=[], metavar="S", help="only these (default: all there are)")
    arguments.add_user_dataset(group)
    group.add_argument("--attributes", metavar="FILE", help="what is known of people: CSV or JSON, see below")
    group.add_argument("--limit", type=int, metavar="N", help="only N images, spread over all of them")
    group.add_argument(
        "--min-pixels", type=int, default=0, metavar="N", help="leave out those of N or fewer (paper: 1000)"
    )
    group.add_argument("--skip-bad-names", action="store_true", help="leave out images whose names do not fit")
    group.add_argument("--skip-bad-images", action="store_true", help="leave out images that cannot be read")


def _add_captions(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--strategy",
        choices=("paper", "prompt", "template", "attribute"),
        default="paper",
        metavar="S",
        help="prompt, template or attribute: one caption; paper: two, with attributes one by them and one of the "
        "others at random, else one by prompt and one by template (default: paper)",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="another one, other templates (default: 0)")
    group.add_argument("--min-words", type=int, default=6, metavar="N", help="of a caption (default: 6)")
    group.add_argument("--max-words", type=int, default=77, metavar="N", help="of a caption (default: 77)")
    group.add_argument(
        "--strict",
        action="store_true",
        help="keep out captions that mention viewpoint or background, contradict the attributes or are several "
        "sentences; else they are kept and reported",
    )


def _add_backend(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--endpoint", metavar="URL", help="OpenAI-compatible: what stands before /chat/completions")
    group.add_argument("--model", metavar="NAME", help="the model's name there; it has to take images")
    group.add_argument("--api-key-env", metavar="VAR", help="environment variable with the API key")
    group.add_argument("--concurrency", type=int, default=4, metavar="N", help="requests at a time (default: 4)")
    group.add_argument(
        "--timeout", type=float, default=120, metavar="S", help="seconds for a full answer (default: 120)"
    )
    group.add_argument("--retries", type=int, default=5, metavar="N", help="when busy or unreachable (default: 5)")
    group.add_argument("--backoff", type=float, default=1, metavar="S", help="before a retry, doubling (default: 1)")
    group.add_argument("--request", metavar="JSON", help='more fields of a request, null drops one: {"temperature": 0}')
    group.add_argument(
        "--backend",
        choices=("endpoint", "attributes"),
        default="endpoint",
        metavar="B",
        help="attributes: no model, sentences put together from the attributes (default: endpoint)",
    )
    group.add_argument("--dry-run", action="store_true", help="send nothing, write the prompts to OUT.prompts.jsonl")


def _caption(args: argparse.Namespace) -> int:
    from agreid_plugin import captioning

    stop = threading.Event()
    if not args.dry_run:
        captioning.refuse_existing(args.out)
    backend = None if args.dry_run else _build_backend(args, stop)
    subjects, left_out = _list_subjects(args)
    if args.dry_run:
        print(f"prompts in {captioning.write_prompts(subjects, args.out, args.strategy, args.seed)}")
        return 0
    try:
        report = captioning.write_captions(
            subjects,
            backend,
            args.out,
            strategy=args.strategy,
            seed=args.seed,
            rules=captioning.Rules(args.min_words, args.max_words, args.strict),
            concurrency=args.concurrency,
            left_out=left_out,
            stop=stop,
            progress=sys.stderr.isatty(),
        )
    except captioning.Interrupted as interrupted:
        print(f"fastreid: {interrupted}", file=sys.stderr)
        return 130
    print("\n".join(report.lines()))
    print(f"captions in {args.out}, paths start from {args.images or args.root}; report in {args.out}.report.json")
    return 0


def _build_backend(args: argparse.Namespace, stop: threading.Event) -> Any:
    from agreid_plugin.captioning import AttributeBackend, Endpoint, ModelBackend

    if args.backend == "attributes":
        return AttributeBackend(args.seed)
    if not args.endpoint or not args.model:
        raise InputError("name a model with --endpoint URL --model NAME, or use --backend attributes or --dry-run")
    fields = _read_fields(args.request)
    endpoint = Endpoint(
        args.endpoint,
        args.model,
        key=_read_key(args.api_key_env),
        timeout=require_within("--timeout", args.timeout, 0.001, math.inf),
        retries=require_within("--retries", args.retries, 0, math.inf),
        backoff=require_within("--backoff", args.backoff, 0, math.inf),
        fields=fields,
        stop=stop,
    )
    return ModelBackend(endpoint, fields)


def _read_key(variable: str | None) -> str:
    if variable and not os.environ.get(variable):
        raise InputError(f"environment variable {variable} is not set; it should hold the API key")
    return os.environ[variable] if variable else ""


def _read_fields(text: str | None) -> dict[str, Any]:
    try:
        fields = json.loads(text or "{}")
    except ValueError as error:
        raise InputError(f"--request {text!r} is not JSON: {error}") from error
    if not isinstance(fields, dict) or "messages" in fields:
        raise InputError(f'--request {text!r} has to be an object without messages, for example {{"temperature": 0}}')
    return fields


def _list_subjects(args: argparse.Namespace) -> tuple[list[Subject], dict[str, str]]:
    """Return the images to describe, and those left out with the reason."""
    from agreid_plugin.captioning import add_attributes, choose_evenly, drop_small, find_unreadable

    subjects = _load_dataset(args)
    subjects = choose_evenly(subjects, args.limit) if args.limit is not None else subjects
    subjects = add_attributes(subjects, args.attributes) if args.attributes else subjects
    left_out = find_unreadable(subjects, progress=sys.stderr.isatty())
    if left_out and not args.skip_bad_images:
        first, fault = next(iter(left_out.items()))
        raise InputError(
            f"{len(left_out)} of {len(subjects)} images cannot be read, first {printable(first)}: {fault}; replace "
            "them, or leave them out with --skip-bad-images"
        )
    readable = [subject for subject in subjects if subject.file_path not in left_out]
    kept = drop_small(readable, args.min_pixels) if args.min_pixels else readable
    left_out |= dict.fromkeys(_list_paths(readable) - _list_paths(kept), "too small")
    if args.backend == "attributes":
        left_out |= {subject.file_path: "no attributes" for subject in kept if not subject.attributes}
        kept = [subject for subject in kept if subject.attributes]
    if not kept:
        raise InputError(f"none of the {len(subjects)} images is left: {', '.join(sorted(set(left_out.values())))}")
    return kept, left_out


def _list_paths(subjects: Iterable[Subject]) -> set[str]:
    return {subject.file_path for subject in subjects}


def _load_dataset(args: argparse.Namespace) -> list[Subject]:
    from agreid_plugin.captioning import load_subjects

    if bool(args.images) == bool(args.dataset):
        raise InputError("name the images: either --images DIR, or --dataset NAME with --root DIR")
    if bool(args.dataset) != bool(args.root):
        raise InputError("--dataset and --root belong together: the dataset's name and its folder")
    dataset, root = (arguments.find_dataset(args.dataset), args.root) if args.dataset else ("folder", args.images)
    return load_subjects(dataset, root, args.splits, args.skip_bad_names, **arguments.get_user_options(args))
