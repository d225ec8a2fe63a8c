"""What `fastreid visualize` does: checks, one picture or page, and the files it is written to."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from agreid_plugin.cli import gallery
from agreid_plugin.cli.arguments import check_file, require_counts
from agreid_plugin.errors import InputError

if TYPE_CHECKING:
    from agreid_plugin.types import Record
    from agreid_plugin.visualize.figures import Drawn, Subject

MOST_DRAWN = 400  # images in a picture of rankings; more would not open anywhere
MOST_EXAMPLES = 50  # images that something is drawn over


def ranks(args: argparse.Namespace) -> None:
    """Draw rankings."""
    _check(args, "queries", "top")
    if args.queries * args.top > MOST_DRAWN:
        raise InputError(f"a picture has {MOST_DRAWN} images at most, not {args.queries * args.top}: lower --top")
    from agreid_plugin.visualize.figures import draw_ranks

    _write(args, draw_ranks(_subject(args), args.order, args.queries, args.top, args.seed))


def tsne(args: argparse.Namespace) -> None:
    """Draw test images on a plane."""
    _check(args, "identities", "most")
    from agreid_plugin.visualize import figures

    if args.features and args.compare and not args.compare.endswith(".npz"):
        raise InputError(f"--compare {args.compare}: features of a file compare with those of another, an npz")
    subject, others = _subject(args), {}
    if args.compare:
        features = figures.compared_features(subject, args.compare, args.config_file, args.overrides, args.device)
        others[args.compare if args.compare == figures.UNTRAINED else Path(args.compare).stem] = features
    _write(args, figures.draw_tsne(subject, others, args.identities, args.most, args.seed))


def experts(args: argparse.Namespace) -> None:
    """Draw which experts are asked."""
    _check(args)
    from agreid_plugin.visualize.figures import draw_expert_shares

    _write(args, draw_expert_shares(_subject(args), Path(args.config_file).parent))


def graph(args: argparse.Namespace) -> None:
    """Draw chosen patches."""
    _check(args, "queries", "count")
    from agreid_plugin.visualize.figures import draw_graph

    subject = _subject(args)
    _write(args, draw_graph(subject, _records(args, subject), args.queries))


def attention(args: argparse.Namespace) -> None:
    """Draw attention."""
    _check(args, "count")
    from agreid_plugin.visualize.figures import draw_attention

    subject = _subject(args)
    _write(args, draw_attention(subject, _records(args, subject)))


def plrm(args: argparse.Namespace) -> None:
    """Draw what PLRM does."""
    _check(args, "count", "draws")
    from agreid_plugin.visualize.figures import draw_plrm

    options = {name: getattr(args, name) for name in ("n", "p_0", "c_weight", "theta_max", "alpha", "fill")}
    _write(args, draw_plrm(_paths(args), args.size, args.draws, args.seed, options))


def report(args: argparse.Namespace) -> None:
    """Write a page about a run."""
    path = Path(args.out)
    _check_seed(args.seed)
    check_file("--out", path, (".html", ".htm"))
    from agreid_plugin.visualize.run_page import report_page

    content = report_page(args.folder, args.weights, args.protocol, args.overrides, args.device, args.seed, gallery.say)
    gallery.put(path, lambda draft: draft.write_text(content, encoding="utf-8"))
    print(f"written: {path}")


def _check(args: argparse.Namespace, *counts: str) -> None:
    require_counts(args, *counts)
    _check_seed(args.seed)
    if getattr(args, "count", 1) > MOST_EXAMPLES:
        raise InputError(f"--count is {args.count}, but a picture has {MOST_EXAMPLES} images at most")
    check_file("--out", Path(args.out), (".png",))
    if args.json:
        check_file("--json", Path(args.json), (".json",))


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed is {seed}, but must be 0 to {2**32 - 1}")


def _subject(args: argparse.Namespace) -> Subject:
    from agreid_plugin.inference.evaluation_sets import load_tested, of_features
    from agreid_plugin.visualize.figures import Subject

    protocol = getattr(args, "protocol", "")
    if getattr(args, "features", None):
        features, tested = of_features(args.features, args.config_file, args.overrides)
        return Subject(None, tested, protocol, features)
    extractor = gallery.extractor_of(args, normalize=False)
    return Subject(extractor, load_tested(args.config_file, args.overrides), protocol)


def _records(args: argparse.Namespace, subject: Subject) -> list[Record]:
    """Return the images of a command line, or some of the test set."""
    if not args.images:
        return subject.examples(args.count, args.seed)
    from agreid_plugin.types import UNKNOWN, Record

    view = gallery.view_asked(args)
    return [Record(path, UNKNOWN, view=view) for path in _paths(args)]


def _paths(args: argparse.Namespace) -> list[str]:
    from agreid_plugin.data.pictures import pictures

    found = [picture.path for picture in pictures(args.images)]
    step = max(1, len(found) // args.count)  # all along a folder, whose first images show one person
    return found[::step][: args.count] if len(found) > args.count else found


def _write(args: argparse.Namespace, drawn: Drawn) -> None:
    if args.json:
        gallery.put(Path(args.json), lambda draft: draft.write_text(json.dumps(drawn.data, indent=1), encoding="utf-8"))
    gallery.put(Path(args.out), lambda draft: drawn.image.save(draft, "PNG"))
    print(f"written: {', '.join(path for path in (args.json, args.out) if path)}")
