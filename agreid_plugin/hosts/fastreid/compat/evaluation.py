"""Evaluation: without a compiler or a GPU, and with the right numbers."""

from __future__ import annotations

import importlib
import importlib.util
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import numpy as np
import torch

from agreid_plugin.errors import input_error_like
from agreid_plugin.evaluation.ranking import rank
from agreid_plugin.hosts.fastreid.compat.names import host, replace
from agreid_plugin.hosts.host_fixes import HostFixes

HOST_FIXES = HostFixes()
fix = partial(HOST_FIXES.add, "fastreid")


def _cython_would_be_built() -> bool:
    missing = importlib.util.find_spec("fastreid.evaluation.rank_cylib.rank_cy") is None
    evaluator = host("evaluation.reid_evaluation").ReidEvaluator
    return missing and evaluator._compile_dependencies.__module__.startswith("fastreid.")


@fix("the host builds a Cython module in the first evaluation and exits if it cannot", _cython_would_be_built)
def evaluation_without_compiler() -> None:
    """Build nothing; the ranking below needs no compiler."""

    def compile_nothing(self) -> None:  # noqa: ARG001
        host("utils.comm").synchronize()

    host("evaluation.reid_evaluation").ReidEvaluator._compile_dependencies = compile_nothing


def _short_gallery_fails() -> bool:
    # The first query ranks two images, its match first; the second ranks three, its match last.
    distances = np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    pids, cameras = np.array([0, 0, 1]), np.array([0, 1, 1])
    try:
        cmc = host("evaluation.rank").evaluate_rank(distances, pids[1:], pids, np.zeros(2, int), cameras, max_rank=3)[0]
    except ValueError:
        return True
    return not np.allclose(cmc, [0.5, 0.5, 1.0])


@fix("the host's ranking fails or miscounts on short galleries and is slow", _short_gallery_fails)
def exact_ranking() -> None:
    """Rank with our own code under the host's rule: same identity and same camera is hidden."""
    module = host("evaluation.rank")
    host_rank = module.evaluate_rank

    @wraps(host_rank)
    def evaluate_rank(
        distmat, q_pids, g_pids, q_camids, g_camids, max_rank=50, use_metric_cuhk03=False, use_cython=True
    ):
        if use_metric_cuhk03:
            return host_rank(distmat, q_pids, g_pids, q_camids, g_camids, max_rank, True, use_cython)
        same_person = q_pids[:, None] == g_pids[None]
        ranking = rank(distmat, same_person, same_person & (q_camids[:, None] == g_camids[None]), max_rank)
        if not ranking.valid.any():
            raise input_error_like(
                AssertionError(),
                f"none of the {len(q_pids)} queries has a match in the gallery ({len(g_pids)} images) "
                "under another camera: check the split and the camera numbers",
            )
        return ranking.cmc, list(ranking.precision), list(ranking.inverse_penalty)

    module.evaluate_rank = evaluate_rank


def _positive_pairs_are_negative() -> bool:
    pids, cameras = np.array([0, 1]), np.array([1, 1])
    scores, labels = host("evaluation.roc").evaluate_roc(
        np.array([[0.1, 0.9]]), pids[:1], pids, cameras[:1] - 1, cameras
    )
    return labels[np.argmax(scores)] == 1 and np.max(scores) == 0.9


@fix("the host's ROC counts pairs of different people as positive", _positive_pairs_are_negative)
def roc_of_same_person() -> None:
    """Score by similarity, and call pairs of one person positive."""
    module = host("evaluation.roc")
    host_roc = module.evaluate_roc

    @wraps(host_roc)
    def evaluate_roc(*args: Any, **kwargs: Any):
        distances, strangers = host_roc(*args, **kwargs)
        return -distances, 1 - strangers

    module.evaluate_roc = evaluate_roc


def _faiss_has_no_gpu() -> bool:
    compute = host("utils.compute_dist").compute_jaccard_distance
    gpu = torch.cuda.is_available() and hasattr(importlib.import_module("faiss"), "StandardGpuResources")
    return not gpu and compute.__module__.startswith("fastreid.")


@fix("the host's re-ranking demands faiss on a GPU", _faiss_has_no_gpu)
def reranking_on_cpu() -> None:
    """Search the neighbors on the CPU, and never more of them than there are images."""
    module = host("utils.compute_dist")
    native = module.compute_jaccard_distance

    def compute_jaccard_distance(features, k1=20, k2=6, search_option=0, fp16=False):  # noqa: ARG001
        count = len(features)
        return native(features.float().cpu().contiguous(), min(k1, count), min(k2, count), search_option=3, fp16=fp16)

    module.compute_jaccard_distance = compute_jaccard_distance


def _error_leaves_evaluation_mode() -> bool:
    model = torch.nn.Identity()
    try:
        with host("evaluation.evaluator").inference_context(model):
            raise LookupError
    except LookupError:
        return not model.training


@fix("an error during evaluation leaves the model in evaluation mode", _error_leaves_evaluation_mode)
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

    replace("inference_context", inference_context, "evaluation.evaluator", "evaluation")
