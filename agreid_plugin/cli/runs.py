"""`fastreid train` and `fastreid eval`."""

from __future__ import annotations

import argparse
from dataclasses import fields

from agreid_plugin.cli import arguments
from agreid_plugin.engine.distributed.environment import LAUNCHERS, LaunchOptions
from agreid_plugin.errors import InputError

TRAIN_EXAMPLES = """examples:
  fastreid train --config projects/ViSA/cargo.yml
  fastreid train --config my.yml --num-gpus 4 --output runs/mine SOLVER.MAX_EPOCH 60
  fastreid train --config my.yml --resume
  fastreid train --config projects/ViSA/cargo.py train_cfg.max_epochs 60 optim_wrapper.optimizer.lr 1e-3
  srun --ntasks-per-node 4 --kill-on-bad-exit fastreid train --config projects/ViSA/cargo.yml
  torchrun --nproc-per-node 4 --max-restarts 3 -m agreid_plugin train --config projects/ViSA/cargo.py

The ending of the configuration picks the host: .yml is fast-reid's, .py mmengine's. A .py file is a program: it runs.
"""
EVAL_EXAMPLES = """examples:
  fastreid eval --config runs/mine/config.yaml --weights runs/mine/model_best.pth
  fastreid eval --config my.yml --weights best.pth --protocols A2G AG-both --bootstrap 1000
  fastreid eval --config my.yml --weights best.pth --save-features feats.npz
  fastreid eval --config my.yml --features feats.npz --rerank
  fastreid eval --config projects/SVPR-ReID/cp2108.yml --weights best.pth --save-attributes seen.csv
  fastreid eval --config my.yml --weights best.pth DATASETS.TESTS "[Market1501]"
  fastreid eval --config projects/ViSA/cargo.py --weights runs/mine/epoch_120.pth

The ending of the configuration picks the host: .yml is fast-reid's, .py mmengine's. Either takes weights of both.
"""


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the two commands."""
    train = subparsers.add_parser(
        "train",
        help="train a model",
        description="Train the model of a configuration, evaluate it as often as it says, and keep checkpoints, "
        "numbers and logs in the output folder.",
        epilog=TRAIN_EXAMPLES,
    )
    _add_common(train)
    train.add_argument("--resume", action="store_true", help="continue the run in the output folder")
    arguments.add_overrides(train)
    train.set_defaults(run=_run, eval_only=False)

    evaluation = subparsers.add_parser(
        "eval",
        help="evaluate a trained model",
        description="Extract the features of every test set once, and print the numbers of all its protocols.",
        epilog=EVAL_EXAMPLES,
    )
    _add_common(evaluation)
    evaluation.add_argument(
        "--weights", metavar="FILE", help="checkpoint of the model, of either host (default: the config's)"
    )
    evaluation.add_argument("--protocols", nargs="+", metavar="P", help="protocols to compute (default: the config's)")
    evaluation.add_argument("--rerank", action="store_true", help="re-rank by shared neighbors")
    evaluation.add_argument(
        "--bootstrap", type=int, metavar="N", help="confidence intervals from N draws of identities"
    )
    evaluation.add_argument(
        "--calibrate", action="store_true", help="save same-person thresholds beside the checkpoint"
    )
    evaluation.add_argument("--save-features", metavar="NPZ", help="keep the extracted features in a file")
    evaluation.add_argument(
        "--save-attributes", metavar="CSV", help="keep what the model takes each test image's attributes for (SVPR)"
    )
    evaluation.add_argument("--features", metavar="NPZ", help="evaluate such a file: no weights, no images needed")
    arguments.add_overrides(evaluation)
    evaluation.set_defaults(run=_run, eval_only=True)


def _add_common(parser: argparse.ArgumentParser) -> None:
    arguments.add_config(parser)
    parser.add_argument("--output", metavar="DIR", help="folder of the run (default: the config's)")
    arguments.add_trust(parser)
    parser.add_argument("--num-gpus", type=int, metavar="N", help="GPUs on this machine, one process each")
    parser.add_argument("--num-processes", type=int, metavar="N", help="processes on this machine without GPUs")
    parser.add_argument("--num-machines", type=int, default=1, metavar="N", help="machines in all (default: 1)")
    parser.add_argument("--machine-rank", type=int, default=0, metavar="R", help="number of this machine (default: 0)")
    parser.add_argument("--dist-url", metavar="URL", help="where the machines meet, for example tcp://10.0.0.1:29500")
    parser.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        metavar="L",
        help=f"what has started the processes: {', '.join(LAUNCHERS)} (default: torchrun and srun are noticed)",
    )
    parser.add_argument(
        "--dist-timeout", type=float, metavar="S", help="seconds that processes wait for each other (default: 1800)"
    )


def _run(args: argparse.Namespace) -> None:
    from agreid_plugin.engine.run import Request, run

    _check(args)
    given = vars(args)
    options = LaunchOptions(**{each.name: given[each.name] for each in fields(LaunchOptions)})
    run(Request(launch=options, **{each.name: given[each.name] for each in fields(Request) if each.name in given}))


def _check(args: argparse.Namespace) -> None:
    arguments.require_counts(args, "num_gpus", "num_processes", "num_machines", "bootstrap")
    if args.num_machines > 1 and not args.dist_url:
        raise InputError("--num-machines needs --dist-url, the same on every machine, for example tcp://10.0.0.1:29500")
    if not 0 <= args.machine_rank < args.num_machines:
        raise InputError(f"--machine-rank is {args.machine_rank}, but must be 0 to {args.num_machines - 1}")
