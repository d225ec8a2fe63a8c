"""What fast-reid 1.4.0 needs to run on today's Python and torch, with or without a GPU.

Each patch names its reason and tests for the fault itself, never for a version: with everything native nothing is
patched, and after a patch its own test finds the fault gone. `fastreid doctor` lists what was applied.
"""

from __future__ import annotations

import collections
import collections.abc
import importlib
import importlib.machinery
import importlib.util
import sys
import warnings
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.ranking import rank
from agreid_plugin.hosts import torchvision_ops
from agreid_plugin.hosts.fastreid import safe_files
from agreid_plugin.hosts.patches import Patches

PATCHES = Patches()
patch = PATCHES.add

NOISE = (
    r"Cython (rank|roc) evaluation",
    r"TypedStorage is deprecated",
    r"`torch\.cuda\.amp\.",
    r"`broadcast_buffers` is deprecated",
)
"""Warnings the host causes that no user can act on: it asks for a build we do without, and uses retired names."""
CALLERS = ("modeling.meta_arch.baseline", "modeling.meta_arch.mgn")
"""Where the host builds backbones."""


def apply(stage: str) -> None:
    """Apply the patches of a stage whose fault is present."""
    for message in NOISE:
        warnings.filterwarnings("ignore", message)
    PATCHES.apply(stage)


def applied() -> dict[str, str]:
    """Return name -> reason of the patches in force in this process."""
    return {**torchvision_ops.applied(), **PATCHES.applied()}


def _host(name: str) -> ModuleType:
    # importlib, because `fastreid.engine.launch` as an attribute is the function of that name.
    return importlib.import_module(f"fastreid.{name}")


def _replace(attribute: str, value: Any, *modules: str) -> None:
    """Set a name in the module that defines it and in those that have imported it."""
    for module in modules:
        setattr(_host(module), attribute, value)


# Names that are gone ---------------------------------------------------------------------------------------------


@patch("before", "collections.Mapping moved to collections.abc", lambda: not hasattr(collections, "Mapping"))
def collections_names() -> None:
    """Restore `collections.Mapping`."""
    collections.Mapping = collections.abc.Mapping


@patch("before", "torch._six was removed in torch 2.0", lambda: importlib.util.find_spec("torch._six") is None)
def torch_six() -> None:
    """Provide `torch._six.string_classes`."""
    module = ModuleType("torch._six")
    module.__spec__ = importlib.machinery.ModuleSpec("torch._six", None)
    module.string_classes = (str, bytes)
    sys.modules["torch._six"] = torch._six = module


@patch("before", "np.bool is missing in numpy 1.24 to 1.26", lambda: not hasattr(np, "bool"))
def numpy_names() -> None:
    """Restore `np.bool`."""
    np.bool = bool


# Training --------------------------------------------------------------------------------------------------------


def _weights_stand_still() -> bool:
    model = torch.nn.PReLU()  # one weight, set without drawing a random number
    optimizer, _ = _host("solver").build_optimizer(_host("config").get_cfg(), model)
    before = model.weight.item()
    optimizer.zero_grad()
    model(-torch.ones(1)).sum().backward()
    optimizer.step()
    return model.weight.item() == before


@patch("after", "zero_grad() of torch >= 2 drops the flat gradient buffer: no weight changes", _weights_stand_still)
def optimizer_without_flat_buffer() -> None:
    """Give the optimizer the parameters themselves, one group for each (lr, weight decay, frozen).

    Faster than the flat buffer (fewer and larger steps), and parameters without a gradient are left alone.
    """
    solver = _host("solver.build")
    host_build, host_params = solver.build_optimizer, solver.get_default_optimizer_params

    def merged_params(*args: Any, **kwargs: Any) -> list[dict]:
        groups: dict[tuple, dict] = {}
        for group in host_params(*args, **kwargs):
            key = tuple(sorted((k, v) for k, v in group.items() if k != "params"))
            groups.setdefault(key, {**group, "params": []})["params"] += group["params"]
        return list(groups.values())

    def build_optimizer(cfg, model, contiguous=True):  # noqa: ARG001
        return host_build(cfg, model, contiguous=False)

    solver.get_default_optimizer_params = merged_params
    _replace("build_optimizer", build_optimizer, "solver.build", "solver", "engine.defaults")


@patch(
    "after",
    "the host's mixed-precision trainer demands CUDA",
    lambda: _host("engine.defaults").AMPTrainer.__module__.startswith("fastreid."),
)
def amp_on_any_device() -> None:
    """Train with autocast where it pays, in full precision on a CPU."""
    from agreid_plugin.hosts.fastreid.amp import AMPTrainer

    _replace("AMPTrainer", AMPTrainer, "engine.defaults", "engine.train_loop")


@patch(
    "after",
    "a loss that is not finite stops the host's main process alone, and the others wait for it for ever",
    lambda: _host("engine.train_loop").SimpleTrainer._write_metrics.__module__.startswith("fastreid."),
)
def stop_together() -> None:
    """Have every process learn all losses, and stop by them."""
    from agreid_plugin.hosts.fastreid.loss_writing import write_metrics

    _host("engine.train_loop").SimpleTrainer._write_metrics = write_metrics


@patch(
    "after",
    "the host's data loader demands CUDA and waits for ever when an image cannot be read",
    lambda: hasattr(_host("data.build").DataLoaderX, "preload"),
)
def loader_on_any_device() -> None:
    """Load batches without CUDA streams of the host's and without its thread."""
    from agreid_plugin.hosts.fastreid.loader import DeviceLoader

    _replace("DataLoaderX", DeviceLoader, "data.data_utils", "data.build")


@patch(
    "after",
    "the host's launcher and its DistributedDataParallel demand CUDA",
    lambda: _host("engine.launch")._distributed_worker.__module__.startswith("fastreid."),
)
def processes_on_any_device() -> None:
    """Launch gloo processes where there is no GPU."""
    from agreid_plugin.hosts.fastreid.distributed import AnyDeviceDataParallel, distributed_worker

    _replace("_distributed_worker", distributed_worker, "engine.launch")
    _replace("DistributedDataParallel", AnyDeviceDataParallel, "engine.defaults")


# Images ----------------------------------------------------------------------------------------------------------


def _normalizes_in_place() -> bool:
    images = torch.ones(1, 3, 1, 1)
    model = SimpleNamespace(pixel_mean=torch.ones(1, 3, 1, 1), pixel_std=torch.ones(1, 3, 1, 1), device="cpu")
    _host("modeling.meta_arch").Baseline.preprocess_image(model, images)
    return bool((images == 0).all())


@patch(
    "after",
    "images are normalized in place: flip testing and a second prediction see them normalized twice",
    _normalizes_in_place,
)
def normalize_out_of_place() -> None:
    """Normalize a copy, on the model's device."""

    def preprocess_image(self, batched_inputs):
        images = batched_inputs["images"] if isinstance(batched_inputs, dict) else batched_inputs
        return (images.to(self.device) - self.pixel_mean) / self.pixel_std

    architectures = _host("modeling.meta_arch")
    for name in ("Baseline", "MGN"):
        getattr(architectures, name).preprocess_image = preprocess_image


def _affine_is_outdated() -> bool:
    try:
        _host("data.transforms.build").T.RandomAffine(10, resample=False, fillcolor=0)
    except TypeError:
        return True
    return False


@patch("after", "torchvision's RandomAffine lost `resample` and `fillcolor`", _affine_is_outdated)
def random_affine_arguments() -> None:
    """Translate the two old arguments; only the host sees the translation."""
    transforms = _host("data.transforms.build")
    native = transforms.T

    def random_affine(*args: Any, resample: Any = None, fillcolor: Any = 0, **kwargs: Any):  # noqa: ARG001
        return native.RandomAffine(*args, fill=fillcolor, **kwargs)

    transforms.T = SimpleNamespace(**{**vars(native), "RandomAffine": random_affine})


def _bilevel_image_fails() -> bool:
    from PIL import Image

    try:
        _host("data.transforms.transforms").to_tensor(Image.new("1", (1, 1)))
    except ValueError:
        return True
    return False


@patch("after", "numpy 2 refuses np.array(..., copy=False) for black-and-white images", _bilevel_image_fails)
def bilevel_images() -> None:
    """Read a one-bit image as gray."""
    native = _host("data.transforms.functional").to_tensor

    def to_tensor(picture):
        return native(picture.convert("L") if getattr(picture, "mode", "") == "1" else picture)

    _replace("to_tensor", to_tensor, "data.transforms.functional", "data.transforms.transforms")


# Evaluation ------------------------------------------------------------------------------------------------------


def _cython_would_be_built() -> bool:
    missing = importlib.util.find_spec("fastreid.evaluation.rank_cylib.rank_cy") is None
    evaluator = _host("evaluation.reid_evaluation").ReidEvaluator
    return missing and evaluator._compile_dependencies.__module__.startswith("fastreid.")


@patch(
    "after", "the host builds a Cython module in the first evaluation and exits if it cannot", _cython_would_be_built
)
def evaluation_without_compiler() -> None:
    """Build nothing; the ranking below needs no compiler."""

    def compile_nothing(self) -> None:  # noqa: ARG001
        _host("utils.comm").synchronize()

    _host("evaluation.reid_evaluation").ReidEvaluator._compile_dependencies = compile_nothing


def _short_gallery_fails() -> bool:
    # The first query ranks two images, its match first; the second ranks three, its match last.
    distances = np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    pids, cameras = np.array([0, 0, 1]), np.array([0, 1, 1])
    try:
        cmc = _host("evaluation.rank").evaluate_rank(distances, pids[1:], pids, np.zeros(2, int), cameras, max_rank=3)[
            0
        ]
    except ValueError:
        return True
    return not np.allclose(cmc, [0.5, 0.5, 1.0])


@patch("after", "the host's ranking fails or miscounts on short galleries and is slow", _short_gallery_fails)
def exact_ranking() -> None:
    """Rank with our own code under the host's rule: same identity and same camera is hidden."""
    module = _host("evaluation.rank")
    host_rank = module.evaluate_rank

    def evaluate_rank(distmat, q_pids, g_pids, q_camids, g_camids, max_rank=50, use_metric_cuhk03=False, **kwargs):
        if use_metric_cuhk03:
            return host_rank(distmat, q_pids, g_pids, q_camids, g_camids, max_rank, True, **kwargs)
        same_person = q_pids[:, None] == g_pids[None]
        ranking = rank(distmat, same_person, same_person & (q_camids[:, None] == g_camids[None]), max_rank)
        if not ranking.valid.any():
            raise InputError(
                f"none of the {len(q_pids)} queries has a match in the gallery ({len(g_pids)} images) "
                "under another camera: check the split and the camera numbers"
            )
        return ranking.cmc, list(ranking.precision), list(ranking.inverse_penalty)

    module.evaluate_rank = evaluate_rank


def _positive_pairs_are_negative() -> bool:
    pids, cameras = np.array([0, 1]), np.array([1, 1])
    scores, labels = _host("evaluation.roc").evaluate_roc(
        np.array([[0.1, 0.9]]), pids[:1], pids, cameras[:1] - 1, cameras
    )
    return labels[np.argmax(scores)] == 1 and np.max(scores) == 0.9


@patch("after", "the host's ROC counts pairs of strangers as positive", _positive_pairs_are_negative)
def roc_of_same_person() -> None:
    """Score by similarity, and call pairs of one person positive."""
    module = _host("evaluation.roc")
    host_roc = module.evaluate_roc

    def evaluate_roc(*args: Any, **kwargs: Any):
        distances, strangers = host_roc(*args, **kwargs)
        return -distances, 1 - strangers

    module.evaluate_roc = evaluate_roc


def _faiss_has_no_gpu() -> bool:
    compute = _host("utils.compute_dist").compute_jaccard_distance
    gpu = torch.cuda.is_available() and hasattr(importlib.import_module("faiss"), "StandardGpuResources")
    return not gpu and compute.__module__.startswith("fastreid.")


@patch("after", "the host's re-ranking demands faiss on a GPU", _faiss_has_no_gpu)
def reranking_on_cpu() -> None:
    """Search the neighbors on the CPU, and never more of them than there are images."""
    module = _host("utils.compute_dist")
    native = module.compute_jaccard_distance

    def compute_jaccard_distance(features, k1=20, k2=6, search_option=3, fp16=False):  # noqa: ARG001
        count = len(features)
        return native(features.float().cpu().contiguous(), min(k1, count), min(k2, count), search_option=3, fp16=fp16)

    module.compute_jaccard_distance = compute_jaccard_distance


def _error_leaves_evaluation_mode() -> bool:
    model = torch.nn.Identity()
    try:
        with _host("evaluation.evaluator").inference_context(model):
            raise LookupError
    except LookupError:
        return not model.training


@patch("after", "an error during evaluation leaves the model in evaluation mode", _error_leaves_evaluation_mode)
def restore_training_mode() -> None:
    """Give every module back its own mode, so that frozen layers stay frozen too."""

    @contextmanager
    def inference_context(model):
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training

    _replace("inference_context", inference_context, "evaluation.evaluator", "evaluation")


# Files of others -------------------------------------------------------------------------------------------------


@patch(
    "after",
    "the host's checkpoint loader runs pickled code on torch < 2.6, and fails without a reason on a plain state dict",
    lambda: _host("utils.checkpoint").Checkpointer._load_file.__module__.startswith("fastreid."),
)
def safe_checkpoints() -> None:
    """Load tensors and plain values only, from the host's format or a plain state dict."""

    from agreid_plugin.nn.checkpoints import read_checkpoint

    _host("utils.checkpoint").Checkpointer._load_file = lambda self, path: read_checkpoint(path)  # noqa: ARG005


@patch(
    "after",
    "the host's checkpoints and their marker are torn by a crash, and a full disk ends the run",
    lambda: _host("utils.checkpoint").Checkpointer.save.__module__.startswith("fastreid."),
)
def whole_checkpoints() -> None:
    """Write files that are there in full or not at all, and go on where the disk takes none."""
    from agreid_plugin.hosts.fastreid.checkpointing import save

    _host("utils.checkpoint").Checkpointer.save = save


@patch(
    "after",
    "the host's backbones run code in files of pretrained weights on torch < 2.6, and fail without a reason otherwise",
    lambda: any(module.torch is torch for module in safe_files.backbone_modules()),
)
def safe_pretrained_weights() -> None:
    """Load tensors and plain values only, and say which file is for another network."""
    from agreid_plugin.hosts.safe_torch import SafeTorch

    safe = SafeTorch()
    for module in safe_files.backbone_modules():
        module.torch = safe
    _host("modeling.backbones.mobilenetv3").load_state_dict_from_url = safe.hub.load_state_dict_from_url
    build = safe_files.saying_what_misfits(_host("modeling.backbones.build").build_backbone, safe)
    _replace("build_backbone", build, "modeling.backbones.build", "modeling.backbones", "modeling", *CALLERS)


@patch(
    "after",
    "the host's configurations may hold YAML tags that run code",
    lambda: safe_files.reads_objects(_host("config").CfgNode.load_yaml_with_base),
)
def plain_yaml() -> None:
    """Read configurations, those of teachers and bases too, as plain YAML."""
    _host("config").CfgNode.load_yaml_with_base = staticmethod(safe_files.load_yaml_with_base)
