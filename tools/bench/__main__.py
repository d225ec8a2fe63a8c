"""The benchmarks' command: `tools/run python tools/bench NAME`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agreid_plugin.cli import arguments
from agreid_plugin.cli.main import OneLineParser
from agreid_plugin.errors import InputError

if TYPE_CHECKING:
    from bench.rivals import Setting

EXAMPLES = """examples, with one thread, which other programs disturb least:
  OMP_NUM_THREADS=1 tools/run python tools/bench evaluation
  OMP_NUM_THREADS=1 tools/run python tools/bench visa --model small --batch 8
  OMP_NUM_THREADS=1 tools/run python tools/bench index --vectors 1000000 --milvus flat
"""
COUNTS = ("rounds", "queries", "gallery", "width", "vectors", "images", "people")


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all benchmarks."""
    parser = OneLineParser(
        prog="tools/bench",
        description="Measure ours beside its rivals on this machine: in turn within one run, by CPU time.",
        epilog=EXAMPLES,
    )
    names = parser.add_subparsers(metavar="NAME", required=True)

    def add(run: object, name: str, text: str, rounds: int = 5) -> argparse.ArgumentParser:
        added = names.add_parser(name, help=text, description=f"Measure {text}.", epilog=EXAMPLES)
        added.add_argument("--rounds", type=int, default=rounds, metavar="N", help=f"(default: {rounds})")
        added.set_defaults(run=run)
        return added

    _add_sizes(add(_evaluation, "evaluation", "our evaluator against fast-reid's compiled one"), 3000, 50_000, 768)
    what = "all protocols of CARGO against one matrix product"
    _add_sizes(add(_protocols, "protocols", what), 312, 50_712, 1536)
    _add_model(add(_visa, "visa", "ViSA against our plain form of its equations"))
    _add_model(add(_svpr, "svpr", "SVPR-ReID with its text cached against text computed anew"))
    _add_model(add(_hrmoe, "hrmoe", "TAG-CLIP's experts by view against all experts on all tokens"), "224x224")
    compiled = add(_compiled, "compile", "training steps compiled by torch.compile against the same without")
    _add_model(compiled)
    compiled.add_argument("--backend", default="inductor", metavar="NAME", help="of torch.compile (default: inductor)")
    plrm = add(_plrm, "plrm", "PLRM against a loop over patches")
    plrm.add_argument("--images", type=int, default=64, metavar="N", help="in a batch (default: 64)")
    _add_size(plrm)
    index = add(_index, "index", "kinds of indexes against exact search: CPU time, memory, recall@10", rounds=3)
    index.add_argument("--vectors", type=int, default=100_000, metavar="N", help="(default: 100,000)")
    index.add_argument("--width", type=int, default=256, metavar="D", help="(default: 256)")
    index.add_argument("--queries", type=int, default=500, metavar="N", help="(default: 500)")
    index.add_argument("--kinds", nargs="*", default=["ivf", "hnsw", "pq"], help="of faiss (default: ivf hnsw pq)")
    index.add_argument("--milvus", nargs="*", default=[], metavar="KIND", help="of Milvus Lite: flat, ivf, hnsw")
    agsynth = add(_agsynth, "agsynth", "the CPU time of a picture of AG-Synth")
    agsynth.add_argument(
        "--people", type=int, default=10, metavar="N", help="4 or more, 12 pictures each (default: 10)"
    )
    return parser


def _add_sizes(parser: argparse.ArgumentParser, queries: int, gallery: int, width: int) -> None:
    for name, default in (("queries", queries), ("gallery", gallery), ("width", width)):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"(default: {default:,})")


def _add_model(parser: argparse.ArgumentParser, size: str = "256x128") -> None:
    parser.add_argument("--model", choices=("tiny", "small", "base"), default="base", help="ViT (default: base)")
    parser.add_argument("--batch", type=int, default=8, metavar="N", help="images, 2 or more (default: 8)")
    _add_size(parser, size)


def _add_size(parser: argparse.ArgumentParser, size: str = "256x128") -> None:
    parser.add_argument("--size", type=arguments.parse_size, default=size, metavar="HxW", help=f"(default: {size})")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark and return the exit code."""
    try:
        args = build_parser().parse_args(argv)
        arguments.require_counts(args, *COUNTS)
        for line in args.run(args):
            print(line, flush=True)
    except InputError as error:
        print(f"tools/bench: error: {error}", file=sys.stderr)
        return 2
    return 0


def _evaluation(args: argparse.Namespace) -> Iterator[str]:
    from bench.evaluation import Sizes, bench_evaluation

    return bench_evaluation(Sizes(args.queries, args.gallery, args.width), args.rounds)


def _protocols(args: argparse.Namespace) -> Iterator[str]:
    from bench.evaluation import Sizes, bench_protocols

    return bench_protocols(Sizes(args.queries, args.gallery, args.width), args.rounds)


def _visa(args: argparse.Namespace) -> Iterator[str]:
    from bench.visa import bench_visa

    return bench_visa(_setting(args), args.rounds)


def _svpr(args: argparse.Namespace) -> Iterator[str]:
    from bench.svpr import bench_svpr

    return bench_svpr(_setting(args), args.rounds)


def _hrmoe(args: argparse.Namespace) -> Iterator[str]:
    from bench.hrmoe import bench_hrmoe

    return bench_hrmoe(_setting(args), args.rounds)


def _compiled(args: argparse.Namespace) -> Iterator[str]:
    from bench.compiled import bench_compiled

    return bench_compiled(_setting(args), args.rounds, args.backend)


def _plrm(args: argparse.Namespace) -> Iterator[str]:
    from bench.plrm import Images, bench_plrm

    return bench_plrm(Images(args.images, args.size), args.rounds)


def _index(args: argparse.Namespace) -> Iterator[str]:
    from bench.index import Sizes, bench_index

    return bench_index(Sizes(args.vectors, args.width, args.queries), args.kinds, args.milvus, args.rounds)


def _agsynth(args: argparse.Namespace) -> Iterator[str]:
    from bench.agsynth import bench_agsynth

    return bench_agsynth(args.people, args.rounds)


def _setting(args: argparse.Namespace) -> Setting:
    from bench.rivals import Setting

    if args.batch < 2:  # triplets need two images
        raise InputError(f"--batch is {args.batch}, but must be 2 or more")
    return Setting(args.model, args.batch, args.size)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # so that this folder is the package `bench`
    sys.exit(main())
