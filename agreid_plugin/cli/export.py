"""`fastreid export`: a trained model as a file for other runtimes."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from agreid_plugin.cli import arguments
from agreid_plugin.errors import InputError

if TYPE_CHECKING:
    from agreid_plugin.evaluation import FeatureSet
    from agreid_plugin.inference.export.exporter import Pictures

EXAMPLES = """examples:
  fastreid export --config logs/visa-agsynth/config.yaml --weights logs/visa-agsynth/model_final.pth --out visa.onnx
  fastreid export --config my.yml --weights best.pth --format openvino --out visa.xml --images crops
  fastreid export --config my.yml --weights best.pth --out visa.onnx --view predicted --int8
  fastreid export --config projects/TAG-CLIP/tag_pedes.yml --weights best.pth --out words.onnx --tower text

what int8 costs:
  fastreid eval --config my.yml --weights best.pth --save-features float32.npz
  fastreid export --config my.yml --weights best.pth --out int8.onnx --int8 --features float32.npz
  fastreid eval --config my.yml --features int8.npz

in Python, without torch:
  from agreid_plugin.deploy import ExportedModel, TrackerReID
  ExportedModel("visa.onnx")(["someone.jpg"], views="aerial")
  TrackerReID("visa.onnx", view="aerial").get_features(boxes, frame)
"""


def add_to(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "export",
        help="write a model for onnxruntime, OpenVINO or TorchScript",
        description="Write a model, its normalization of pixels and a description of its inputs to one file, which "
        "takes any number of images at once, (N, 3, rows, columns) of uint8, red first. The file is run and compared "
        "with the model at once, at batch 1 and 7, and kept only if they agree.",
        epilog=EXAMPLES,
    )
    arguments.add_model(parser)
    parser.add_argument("--out", required=True, metavar="FILE", help="ends with .onnx, .torchscript or .xml (OpenVINO)")
    parser.add_argument("--format", choices=("onnx", "torchscript", "openvino"), default="onnx", help="(default: onnx)")
    parser.add_argument(
        "--tower",
        choices=("image", "text"),
        default="image",
        help="text takes tokens, TAGCLIP only (default: image)",
    )
    parser.add_argument(
        "--view",
        choices=("given", "predicted"),
        default="given",
        help="of a method that needs views: an input of the file, -1 where it should predict (default), or none",
    )
    parser.add_argument("--raw", action="store_true", help="keep features as the model has them, not of length 1")
    parser.add_argument("--int8", action="store_true", help="weights in 8 bits (onnx); reports the difference")
    parser.add_argument("--images", metavar="DIR", help="images to compare on (default: some of AG-Synth's)")
    parser.add_argument("--tolerance", type=float, default=1e-4, metavar="D", help="largest difference (default: 1e-4)")
    parser.add_argument(
        "--features",
        metavar="NPZ",
        help="of fastreid eval --save-features: the file makes features of the same images, OUT with the ending .npz, "
        "which fastreid eval --features evaluates",
    )
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    parser.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> None:
    from agreid_plugin.deploy import ExportedModel
    from agreid_plugin.evaluation import save_features
    from agreid_plugin.inference.export.exporter import ExportTarget, check_target, export, export_files, features_by

    target = ExportTarget(Path(args.out), args.format, args.tower, args.view, args.int8, args.tolerance)
    check_target(target, args.force)
    like = _features(args)
    args.device = args.device or "cpu"  # what runtimes are compared with
    pictures = _pictures(args.images) if args.tower == "image" else None
    about = export(arguments.build_extractor(args, normalize=not args.raw), target, pictures, print)
    size = "x".join(map(str, about.size)) if about.tower == "image" else f"{about.text_length} tokens"
    megabytes = sum(path.stat().st_size for path in export_files(target.path)) / 1e6
    print(f"{args.out}: {about.method}, {size}, features {about.width} wide, {about.precision}, {megabytes:.1f} MB")
    print(f"inputs: {', '.join(about.inputs)}; views: {about.views or 'not needed'}")
    if like is not None:
        save_features(target.path.with_suffix(".npz"), features_by(ExportedModel(target.path), like))
        print(f"{target.path.with_suffix('.npz')}: features of {len(like.records)} images by the file")


def _pictures(folder: str | None) -> Pictures:
    """Read pictures to compare on, from a folder or of an AG-Synth made for it."""
    from agreid_plugin.data.datasets import load
    from agreid_plugin.inference.export.exporter import read_folder, read_records
    from agreid_plugin.synth import make_agsynth

    if folder is not None:
        return read_folder(Path(folder))
    with TemporaryDirectory() as root:
        make_agsynth(root, ids=4, images_per_id=4, size=(128, 64), workers=1, progress=False)
        return read_records(load("CARGO", root).records)


def _features(args: argparse.Namespace) -> FeatureSet | None:
    """Read the features to compute again, before the model is built."""
    from agreid_plugin.evaluation import load_features

    if args.features is None:
        return None
    if args.tower != "image":
        raise InputError("--features is of images: leave --tower text out")
    out = Path(args.out).with_suffix(".npz")
    if out.exists() and not args.force:
        raise InputError(f"{out} exists: choose another --out, or replace it with --force")
    return load_features(args.features)
