"""`fastreid visualize`: figures of rankings, features, experts, patches and attention; a page about a run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from agreid_plugin.cli import arguments
from agreid_plugin.cli.arguments import add_trust, check_file, parse_size, require_counts
from agreid_plugin.errors import InputError

if TYPE_CHECKING:
    from agreid_plugin.types import Record
    from agreid_plugin.visualize.figures import Rendering, Subject

RUN = "--config logs/visa-agsynth/config.yaml --weights logs/visa-agsynth/model_final.pth"
EXAMPLES = {
    "ranks": f"""examples:
  fastreid visualize ranks {RUN} --out ranks.png
  fastreid visualize ranks {RUN} --order worst --out worst.png
  fastreid visualize ranks {RUN} \\
    --protocol CARGO/A2G --order best --queries 8 --top 5 --out best.png --json best.json
  fastreid visualize ranks --config my.yml --features feats.npz --seed 1 --out others.png
""",
    "tsne": f"""examples:
  fastreid visualize tsne {RUN} --out tsne.png
  fastreid visualize tsne {RUN} --compare untrained --out before_after.png
  fastreid visualize tsne --config my.yml --weights b.pth --compare a.pth --identities 6 --out a_b.png
""",
    "experts": f"""examples:
  fastreid visualize experts {RUN} --out experts.png
""",
    "graph": f"""examples:
  fastreid visualize graph {RUN} --out graph.png
  fastreid visualize graph {RUN} --images crops --count 4 --queries 4 --out graph.png
""",
    "attention": f"""examples:
  fastreid visualize attention {RUN} --out attention.png
  fastreid visualize attention {RUN} --images someone.jpg --out someone.png
""",
    "plrm": """examples:
  fastreid visualize plrm --images datasets/agsynth-128x64/CARGO/train --size 128x64 --out plrm.png
  fastreid visualize plrm --images crops --count 3 --draws 6 --theta-max 30 --fill self --out plrm.png
""",
    "report": """examples:
  fastreid visualize report logs/visa-agsynth --out visa.html
  fastreid visualize report logs/visa-agsynth --protocol CARGO/A2G --out visa.html --overrides DATASETS.ROOT /data
""",
}
MAX_DRAWN = 400  # images in a picture of rankings; more would not open anywhere
MAX_EXAMPLES = 50  # images that something is drawn over


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the commands."""
    parser = subparsers.add_parser(
        "visualize",
        help="draw rankings, t-SNE, experts, chosen patches, attention, PLRM; or a page about a run",
        description="Pictures as PNG, the same for the same seed. Colors are chosen for the color-blind, too. "
        "A file that exists is never replaced.",
        epilog="'fastreid visualize PICTURE --help' explains a picture, with examples.",
    )
    pictures = parser.add_subparsers(metavar="PICTURE", required=True)
    _add_ranks(pictures)
    _add_tsne(pictures)
    _add_experts(pictures)
    _add_looks(pictures)
    _add_plrm(pictures)
    _add_report(pictures)


def _add(pictures: argparse._SubParsersAction, name: str, about: str, description: str) -> argparse.ArgumentParser:
    parser = pictures.add_parser(name, help=about, description=description, epilog=EXAMPLES[name])
    parser.add_argument("--out", required=True, metavar="HTML" if name == "report" else "PNG", help="the file to write")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn at random (default: 0)")
    if name != "report":
        parser.add_argument("--json", metavar="FILE", help="write the numbers in the picture, too")
    return parser


def _add_ranks(pictures: argparse._SubParsersAction) -> None:
    parser = _add(
        pictures,
        "ranks",
        "queries and what is ranked first, right or wrong",
        "Draw queries with the first images of their rankings: the same person framed in green and ticked, others in "
        "orange and crossed, each with its distance, view and camera. Below a query stands the rank of its first right "
        "image, drawn or not.",
    )
    _add_protocol(parser)
    parser.add_argument(
        "--order",
        choices=("worst", "best", "random", "even"),
        default="random",
        help="which queries: any, those of least or most average precision, or evenly spread ones (default: random)",
    )
    parser.add_argument("--queries", type=int, default=5, metavar="N", help="how many (default: 5)")
    parser.add_argument("--top", type=int, default=10, metavar="K", help="images of each (default: 10)")
    _add_features(parser)
    arguments.add_model(parser)
    parser.set_defaults(run=_ranks)


def _add_tsne(pictures: argparse._SubParsersAction) -> None:
    parser = _add(
        pictures,
        "tsne",
        "test images on a plane, identities by color, views by shape",
        "Lay test images on a plane by t-SNE of their features. Some identities have colors, views have shapes. Below "
        "stands how often the nearest image, among all features, shows the same person.",
    )
    _add_protocol(parser)
    parser.add_argument(
        "--identities", type=int, default=8, metavar="N", help="that have a color, 8 at most (default: 8)"
    )
    parser.add_argument("--most", type=int, default=2000, metavar="N", help="images at most (default: 2000)")
    parser.add_argument(
        "--compare",
        metavar="WHAT",
        help="draw another plane beside it: untrained (the model before training), a checkpoint, or an npz of features",
    )
    _add_features(parser)
    arguments.add_model(parser)
    parser.set_defaults(run=_tsne)


def _add_experts(pictures: argparse._SubParsersAction) -> None:
    parser = _add(
        pictures,
        "experts",
        "which expert is asked for which view and camera",
        "Draw how the test images of each camera are shared out among experts (ViSA, SVPR-ReID, TAG-CLIP) and, if the "
        "folder of the config has the run's history, how the shares changed in training.",
    )
    arguments.add_model(parser)
    parser.set_defaults(run=_experts)


def _add_looks(pictures: argparse._SubParsersAction) -> None:
    graph = _add(
        pictures,
        "graph",
        "the patches that each query token chooses",
        "Draw over images which patches the query tokens choose: ViSA's graphs, branch by branch, or the stages of "
        "SVPR-ReID's refinement.",
    )
    graph.add_argument("--queries", type=int, default=3, metavar="N", help="tokens drawn one by one (default: 3)")
    _add_which(graph, 5)
    arguments.add_model(graph)
    graph.set_defaults(run=_graph)
    attention = _add(
        pictures,
        "attention",
        "where the class token of a ViT or CLIP attends",
        "Draw over images how much the class token attends to each patch in the last block, averaged over heads.",
    )
    _add_which(attention, 8)
    arguments.add_model(attention)
    attention.set_defaults(run=_attention)


def _add_plrm(pictures: argparse._SubParsersAction) -> None:
    parser = _add(
        pictures,
        "plrm",
        "what the augmentation PLRM does to images",
        "Draw images beside several draws of Patch-Level RotateMix, and how likely each patch is selected.",
    )
    parser.add_argument("--images", nargs="+", required=True, metavar="PATH", help="images, or folders of them")
    parser.add_argument("--count", type=int, default=4, metavar="N", help="images of a folder (default: 4)")
    parser.add_argument(
        "--size", type=parse_size, default=(256, 128), metavar="HxW", help="of the images (default: 256x128)"
    )
    parser.add_argument("--draws", type=int, default=4, metavar="N", help="of each image (default: 4)")
    parser.add_argument("--n", type=int, default=16, help="side of a patch in pixels (default: 16)")
    parser.add_argument("--p-0", type=float, default=0.3, metavar="P", help="P_0 of Eq. 3 (default: 0.3)")
    parser.add_argument("--c-weight", type=float, default=0.8, metavar="C", help="C_weight of Eq. 3 (default: 0.8)")
    parser.add_argument("--theta-max", type=float, default=45.0, metavar="D", help="largest angle (default: 45)")
    parser.add_argument("--alpha", type=float, default=0.5, metavar="A", help="share of what is turned (default: 0.5)")
    parser.add_argument("--fill", choices=("zero", "self"), default="zero", help="of corners (default: zero)")
    parser.set_defaults(run=_plrm)


def _add_report(pictures: argparse._SubParsersAction) -> None:
    parser = _add(
        pictures,
        "report",
        "a page about a run, with all pictures that apply",
        "Write one HTML page about a run that needs no other file: what it was, its results, its curves, rankings, "
        "t-SNE before and after, experts, patches, attention. What does not apply is left out with a line.",
    )
    _add_protocol(parser)
    parser.add_argument("folder", metavar="RUN", help="the run's folder")
    parser.add_argument("--weights", metavar="FILE", help="checkpoint to look at (default: the run's best or last)")
    add_trust(parser)
    parser.add_argument("--device", metavar="D", help="cpu, cuda or cuda:1 (default: the config's)")
    parser.add_argument(
        "--overrides", nargs="+", default=[], metavar="KEY VALUE", help="keys of the run's configuration to change"
    )
    parser.set_defaults(run=_report)


def _add_protocol(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--protocol", default="", metavar="NAME", help="as CARGO/A2G (default: the config's first)")


def _add_features(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--features", metavar="NPZ", help="of fastreid eval --save-features, instead of weights")


def _add_which(parser: argparse.ArgumentParser, count: int) -> None:
    parser.add_argument("--images", nargs="+", metavar="PATH", help="images, or folders (default: of the test set)")
    parser.add_argument("--view", choices=arguments.VIEWS, help="of --images (default: as the model takes them)")
    parser.add_argument("--count", type=int, default=count, metavar="N", help=f"how many (default: {count})")


def _ranks(args: argparse.Namespace) -> None:
    """Draw rankings."""
    _check(args, "queries", "top")
    if args.queries * args.top > MAX_DRAWN:
        raise InputError(f"a picture has {MAX_DRAWN} images at most, not {args.queries * args.top}: lower --top")
    from agreid_plugin.visualize.figures import draw_ranks

    _write_picture(args, draw_ranks(_build_subject(args), args.order, args.queries, args.top, args.seed))


def _tsne(args: argparse.Namespace) -> None:
    """Draw test images on a plane."""
    _check(args, "identities", "most")
    from agreid_plugin.visualize import figures

    if args.features and args.compare and not args.compare.endswith(".npz"):
        raise InputError(f"--compare {args.compare}: features of a file compare with those of another, an npz")
    subject, others = _build_subject(args), {}
    if args.compare:
        features = figures.load_other_features(subject, args.compare, args.config_file, args.overrides, args.device)
        others[args.compare if args.compare == figures.UNTRAINED else Path(args.compare).stem] = features
    _write_picture(args, figures.draw_tsne(subject, others, args.identities, args.most, args.seed))


def _experts(args: argparse.Namespace) -> None:
    """Draw which experts are asked."""
    _check(args)
    from agreid_plugin.visualize.figures import draw_expert_shares

    _write_picture(args, draw_expert_shares(_build_subject(args), Path(args.config_file).parent))


def _graph(args: argparse.Namespace) -> None:
    """Draw chosen patches."""
    _check(args, "queries", "count")
    from agreid_plugin.visualize.figures import draw_graph

    subject = _build_subject(args)
    _write_picture(args, draw_graph(subject, _choose_records(args, subject), args.queries))


def _attention(args: argparse.Namespace) -> None:
    """Draw attention."""
    _check(args, "count")
    from agreid_plugin.visualize.figures import draw_attention

    subject = _build_subject(args)
    _write_picture(args, draw_attention(subject, _choose_records(args, subject)))


def _plrm(args: argparse.Namespace) -> None:
    """Draw what PLRM does."""
    _check(args, "count", "draws")
    from agreid_plugin.visualize.figures import draw_plrm

    options = {name: getattr(args, name) for name in ("n", "p_0", "c_weight", "theta_max", "alpha", "fill")}
    _write_picture(args, draw_plrm(_choose_paths(args), args.size, args.draws, args.seed, options))


def _report(args: argparse.Namespace) -> None:
    """Write a page about a run."""
    path = Path(args.out)
    _check_seed(args.seed)
    check_file("--out", path, (".html", ".htm"))
    from agreid_plugin.visualize.run_page import report_page

    content = report_page(
        args.folder, args.weights, args.protocol, args.overrides, args.device, args.seed, arguments.print_note
    )
    arguments.write_file(path, lambda draft: draft.write_text(content, encoding="utf-8"))
    print(f"written: {path}")


def _check(args: argparse.Namespace, *counts: str) -> None:
    require_counts(args, *counts)
    _check_seed(args.seed)
    if getattr(args, "count", 1) > MAX_EXAMPLES:
        raise InputError(f"--count is {args.count}, but a picture has {MAX_EXAMPLES} images at most")
    check_file("--out", Path(args.out), (".png",))
    if args.json:
        check_file("--json", Path(args.json), (".json",))


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed is {seed}, but must be 0 to {2**32 - 1}")


def _build_subject(args: argparse.Namespace) -> Subject:
    from agreid_plugin.inference.evaluation_sets import load_evaluation_setup, load_kept_features
    from agreid_plugin.visualize.figures import Subject

    protocol = getattr(args, "protocol", "")
    if getattr(args, "features", None):
        features, tested = load_kept_features(args.features, args.config_file, args.overrides)
        return Subject(None, tested, protocol, features)
    extractor = arguments.build_extractor(args, normalize=False)
    return Subject(extractor, load_evaluation_setup(args.config_file, args.overrides), protocol)


def _choose_records(args: argparse.Namespace, subject: Subject) -> list[Record]:
    """Return the images of a command line, or some of the test set."""
    if not args.images:
        return subject.examples(args.count, args.seed)
    from agreid_plugin.types import UNKNOWN, Record

    view = arguments.parse_view(args)
    return [Record(path, UNKNOWN, view=view) for path in _choose_paths(args)]


def _choose_paths(args: argparse.Namespace) -> list[str]:
    from agreid_plugin.data.images import iter_pictures

    found = [picture.path for picture in iter_pictures(args.images)]
    step = max(1, len(found) // args.count)  # all along a folder, whose first images show one person
    return found[::step][: args.count] if len(found) > args.count else found


def _write_picture(args: argparse.Namespace, drawn: Rendering) -> None:
    if args.json:
        arguments.write_file(
            Path(args.json), lambda draft: draft.write_text(json.dumps(drawn.data, indent=1), encoding="utf-8")
        )
    arguments.write_file(Path(args.out), lambda draft: drawn.image.save(draft, "PNG"))
    print(f"written: {', '.join(path for path in (args.json, args.out) if path)}")
