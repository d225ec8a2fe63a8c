"""Speed and memory, measured side by side in one run: `python tools/bench WHAT`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from agreid_plugin.cli import arguments
from agreid_plugin.cli.main import OneLineParser
from agreid_plugin.errors import InputError

EXAMPLES = """examples:
  tools/run python tools/bench agsynth                                 images a second
  tools/run python tools/bench evaluation                              ours against fast-reid's, 3,000 x 50,000 x 768
  tools/run python tools/bench evaluation --queries 500 --gallery 5000
  tools/run python tools/bench visa --model small --batch 8            ours against the equations as printed
  tools/run python tools/bench svpr --batch 16                         text cached against computed for every image
  tools/run python tools/bench hrmoe --batch 16 --top-k 2              experts of a view against all on all tokens
  tools/run python tools/bench index --vectors 1000000 --milvus flat   kinds of indexes against exact search
  tools/run python tools/bench plrm --images 64 --size 256x128         ours against a loop over patches
"""


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all benchmarks."""
    parser = OneLineParser(
        prog="tools/bench",
        description="Measure speed and memory on this machine, ours beside what it is compared with.",
        epilog=EXAMPLES,
    )
    what = parser.add_subparsers(metavar="WHAT", required=True)
    for add in (_add_agsynth, _add_evaluation, _add_visa, _add_svpr, _add_hrmoe, _add_index, _add_plrm):
        add(what)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark and return the exit code."""
    try:
        args = build_parser().parse_args(argv)
        args.run(args)
    except InputError as error:
        print(f"tools/bench: error: {error}", file=sys.stderr)
        return 2
    return 0


def _add_agsynth(what: argparse._SubParsersAction) -> None:
    parser = what.add_parser(
        "agsynth",
        help="images a second that AG-Synth makes",
        description="Make pictures of AG-Synth and count them.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--images", type=int, default=240, metavar="N", help="pictures to make (default: 240)")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one a core)")
    parser.set_defaults(run=_agsynth)


def _add_evaluation(what: argparse._SubParsersAction) -> None:
    parser = what.add_parser(
        "evaluation",
        help="our evaluator against fast-reid's",
        description="Rank the same random features with our evaluator and with fast-reid's, Cython where it builds and "
        "Python (on few queries, as it is slow), each in a process of its own.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--queries", type=int, default=3000, metavar="N", help="(default: 3,000)")
    parser.add_argument("--gallery", type=int, default=50_000, metavar="N", help="images (default: 50,000)")
    parser.add_argument("--width", type=int, default=768, metavar="D", help="of features (default: 768)")
    parser.add_argument(
        "--python-queries", type=int, default=20, metavar="N", help="queries for the Python loop (default: 20)"
    )
    parser.set_defaults(run=_evaluation)


def _add_visa(what: argparse._SubParsersAction) -> None:
    parser = what.add_parser(
        "visa",
        help="our ViSA against its equations as printed",
        description="Run ViSA as we do and as its equations are printed, with the same weights, each in a process of "
        "its own: time, peak memory, largest difference; then parameters and operations by module.",
        epilog=EXAMPLES,
    )
    _add_model(parser)
    _add_variant(parser)
    parser.set_defaults(run=_visa)


def _add_svpr(what: argparse._SubParsersAction) -> None:
    parser = what.add_parser(
        "svpr",
        help="SVPR-ReID's text cached against computed for every image",
        description="Run SVPR-ReID on test images with its sentences computed for every image as in the released code, "
        "once for each distinct sentence of a batch, and once for all batches: time, operations, largest difference.",
        epilog=EXAMPLES,
    )
    _add_model(parser)
    _add_variant(parser)
    parser.set_defaults(run=_svpr)


def _add_hrmoe(what: argparse._SubParsersAction) -> None:
    parser = what.add_parser(
        "hrmoe",
        help="TAG-CLIP's experts by view against all experts on all tokens",
        description="Run TAG-CLIP with an expert computed for the images of its views alone, or for the tokens that "
        "chose it, and with every expert on every token as in the released code: time, peak memory, operations, "
        "largest difference of experts alone, of the image tower and of a training step.",
        epilog=EXAMPLES,
    )
    _add_model(parser, size=(224, 224))
    parser.add_argument("--top-k", type=int, default=5, metavar="K", help="experts of a token, 5 at most (default: 5)")
    parser.set_defaults(run=_hrmoe)


def _add_index(what: argparse._SubParsersAction) -> None:
    parser = what.add_parser(
        "index",
        help="kinds of indexes against exact search",
        description="Build and search every kind of index with the same clustered vectors, each in processes of its "
        "own: time to build, queries a second, recall@10 against exact search, peak memory, size on the disk.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--vectors", type=int, default=1_000_000, metavar="N", help="(default: 1,000,000)")
    parser.add_argument("--width", type=int, default=256, metavar="D", help="(default: 256)")
    parser.add_argument("--queries", type=int, default=500, metavar="N", help="(default: 500)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="that faiss may use (default: 1)")
    parser.add_argument(
        "--kinds", nargs="*", default=["flat", "ivf", "hnsw", "pq"], metavar="K", help="of faiss (default: all four)"
    )
    parser.add_argument("--milvus", nargs="*", default=[], metavar="K", help="of Milvus Lite: flat, ivf, hnsw")
    parser.add_argument("--folder", metavar="DIR", help="for the files, which are removed (default: the system's)")
    parser.set_defaults(run=_index)


def _add_plrm(what: argparse._SubParsersAction) -> None:
    parser = what.add_parser(
        "plrm",
        help="our PLRM against a loop over patches",
        description="Augment the same batch with PLRM as we do and patch by patch with torchvision's rotation, the "
        "same patches by the same angles: time, images a second, largest difference.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--images", type=int, default=64, metavar="N", help="images in a batch (default: 64)")
    parser.add_argument("--size", type=arguments.size, default=(256, 128), metavar="HxW", help="(default: 256x128)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="runs, the fastest counts (default: 5)")
    parser.set_defaults(run=_plrm)


def _add_model(parser: argparse.ArgumentParser, size: tuple[int, int] = (256, 128)) -> None:
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="images (default: 16)")
    shown = f"(default: {size[0]}x{size[1]})"
    parser.add_argument("--size", type=arguments.size, default=size, metavar="HxW", help=shown)
    parser.add_argument("--model", choices=("tiny", "small", "base"), default="base", help="ViT (default: base)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs, the fastest counts (default: 3)")


def _add_variant(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--variant", choices=("paper", "released"), default="paper", help="(default: paper)")


def _say(lines: Iterable[str]) -> None:
    """Print lines as soon as they are there."""
    for line in lines:
        print(line, flush=True)


def _agsynth(args: argparse.Namespace) -> None:
    from agreid_plugin.data.synth import images_a_second

    arguments.require_counts(args, "images", "workers")
    for size in ((128, 64), (256, 128)):
        rate = images_a_second(args.images, size, args.workers)
        print(f"{size[0]}x{size[1]}: {rate:.0f} images/s", flush=True)


def _evaluation(args: argparse.Namespace) -> None:
    from bench.evaluation import bench_evaluation

    arguments.require_counts(args, "queries", "gallery", "width", "python_queries")
    _say(bench_evaluation(args.queries, args.gallery, args.width, args.python_queries))


def _visa(args: argparse.Namespace) -> None:
    from bench.visa import bench_visa

    _say(bench_visa(args.model, args.variant, args.batch, args.size, args.repeats))


def _svpr(args: argparse.Namespace) -> None:
    from bench.svpr import bench_svpr

    _say(bench_svpr(args.model, args.variant, args.batch, args.size, args.repeats))


def _hrmoe(args: argparse.Namespace) -> None:
    from bench.hrmoe import bench_hrmoe

    _say(bench_hrmoe(args.model, args.top_k, args.batch, args.size, args.repeats))


def _plrm(args: argparse.Namespace) -> None:
    from bench.plrm import bench_plrm

    _say(bench_plrm(args.images, args.size, args.repeats))


def _index(args: argparse.Namespace) -> None:
    from tabulate import tabulate

    from bench.index import Setting, bench, table

    arguments.require_counts(args, "vectors", "width", "queries", "threads")
    setting = Setting(args.vectors, args.width, args.queries, args.threads)
    rows = bench(setting, args.kinds, args.milvus, args.folder, tell=lambda line: print(line, flush=True))
    print(tabulate(table(rows), headers="keys", tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # so that this folder is the package `bench`
    sys.exit(main())
