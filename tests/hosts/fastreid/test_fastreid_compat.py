"""Each fix of the host: the fault is gone, and gone for the reason given."""

import importlib
import pickle

import numpy as np
import pytest
import torch
from conftest import assert_one_line
from fastreid.config import get_cfg
from fastreid.engine import default_setup
from fastreid.modeling.backbones import build_backbone
from fastreid.solver import build_optimizer
from malicious import Writes
from PIL import Image

from agreid_plugin._imports import WATCHED
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid import compat
from agreid_plugin.hosts.fastreid.compat import HOST_FIXES
from agreid_plugin.nn.checkpoints import read_checkpoint


@pytest.fixture
def flat_buffer_optimizer(monkeypatch):
    """The host's own optimizer: as if the fix had been reverted."""
    solver = importlib.import_module("fastreid.solver.build")
    patched = {name: getattr(solver, name) for name in ("build_optimizer", "get_default_optimizer_params")}
    importlib.reload(solver)
    native = solver.build_optimizer
    for module in ("fastreid.solver", "fastreid.engine.defaults"):
        monkeypatch.setattr(importlib.import_module(module), "build_optimizer", native)
    yield native
    for name, function in patched.items():
        setattr(solver, name, function)


@pytest.mark.parametrize("fix", HOST_FIXES.all, ids=lambda fix: fix.name)
def test_fault_is_gone(fix):
    assert not fix.needed()


def test_applying_again_changes_nothing():
    before = (HOST_FIXES.applied(), build_optimizer)
    compat.install()
    HOST_FIXES.run_import("fastreid", lambda: None)
    assert (HOST_FIXES.applied(), importlib.import_module("fastreid.solver").build_optimizer) == before


def test_every_fix_says_why_and_is_watched_for():
    assert len(HOST_FIXES.all) > 20
    for fix in HOST_FIXES.all:
        assert len(fix.reason) > 20
        assert fix.module in WATCHED


def test_nothing_is_left_to_arm_once_the_host_is_here():
    assert not HOST_FIXES.armed()
    assert {"every_registered_loss", "seed_by_configuration", "stop_together"} <= HOST_FIXES.applied().keys()


def test_the_hosts_set_up_seeds_by_the_configuration(tmp_path):
    cfg = get_cfg()
    cfg.OUTPUT_DIR = str(tmp_path)
    drawn = []
    for cfg.SEED in (3, 3, 4):
        default_setup(cfg, None)
        drawn.append(torch.rand(()).item())
    torch.manual_seed(3)
    assert drawn[0] == drawn[1] == torch.rand(()).item() != drawn[2]


def one_step(optimizer, model) -> float:
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    before = model.weight.detach().clone()
    optimizer.step()
    return (model.weight - before).abs().max().item()


def test_the_hosts_own_optimizer_changes_no_weight(flat_buffer_optimizer):
    model = torch.nn.Linear(3, 2)
    optimizer, _ = flat_buffer_optimizer(get_cfg(), model)
    assert one_step(optimizer, model) == 0
    (fix,) = [fix for fix in HOST_FIXES.all if fix.name == "optimizer_without_flat_buffer"]
    assert fix.needed()


@pytest.mark.usefixtures("flat_buffer_optimizer")
def test_the_guard_stops_a_run_with_the_hosts_own_optimizer(fastreid_command, config_file, tmp_path):
    outcome = fastreid_command("train", "--config", config_file, "--output", tmp_path / "run")
    assert_one_line(outcome, "the first optimizer step changed none of 32 weights", "flat buffer on torch >= 2")


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_the_fixed_optimizer_moves_weights(name):
    cfg = get_cfg()
    cfg.SOLVER.OPT = name
    model = torch.nn.Linear(3, 2)
    optimizer, _ = build_optimizer(cfg, model)
    assert one_step(optimizer, model) > 0


def test_parameters_share_groups_by_rate_and_decay():
    cfg = get_cfg()
    cfg.SOLVER.BIAS_LR_FACTOR = 2.0
    cfg.SOLVER.WEIGHT_DECAY_NORM = 0.0
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    optimizer, _ = build_optimizer(cfg, model)
    groups = {(g["lr"], g["weight_decay"]): len(g["params"]) for g in optimizer.param_groups}
    # two linear weights; three biases at twice the rate; the norm's weight without decay
    assert groups == {(3e-4, 5e-4): 2, (6e-4, 5e-4): 3, (3e-4, 0.0): 1}


def test_parameters_without_gradient_do_not_decay():
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 2), "idle": torch.nn.Linear(3, 2)})
    optimizer, _ = build_optimizer(get_cfg(), model)
    idle = model["idle"].weight.detach().clone()
    model["used"](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert torch.equal(model["idle"].weight, idle)


def test_images_of_the_caller_stay_as_they_are():
    from fastreid.modeling.meta_arch import Baseline

    model = Baseline(
        backbone=torch.nn.Identity(), heads=torch.nn.Flatten(), pixel_mean=[1.0] * 3, pixel_std=[2.0] * 3
    ).eval()
    images = torch.full((1, 3, 1, 1), 5.0)
    first, second = model({"images": images}), model({"images": images})
    assert first.tolist() == second.tolist() == [[2.0, 2.0, 2.0]]  # (5 - 1) / 2, both times
    assert images.unique().tolist() == [5.0]


def test_affine_augmentation_builds_and_runs():
    from fastreid.data.transforms import build_transforms

    cfg = get_cfg()
    cfg.INPUT.AFFINE.ENABLED = True
    assert build_transforms(cfg, is_train=True)(Image.new("RGB", (8, 8))).shape == (3, 256, 128)


def test_black_and_white_image_becomes_gray():
    from fastreid.data.transforms import ToTensor

    assert ToTensor()(Image.new("1", (2, 2), 1)).unique().tolist() == [255.0]


def test_short_galleries_are_ranked():
    from fastreid.evaluation.rank import evaluate_rank

    cmc, precision, inverse_penalty = evaluate_rank(
        np.array([[0.1, 0.2], [0.1, 0.2]]), np.array([0, 1]), np.array([0, 1]), np.array([0, 0]), np.array([1, 1])
    )
    assert cmc[:2].tolist() == [0.5, 1.0]
    assert len(cmc) == 50
    assert precision == [1.0, 0.5]
    assert inverse_penalty == [1.0, 0.5]


def test_no_answerable_query_is_one_line():
    from fastreid.evaluation.rank import evaluate_rank

    with pytest.raises(InputError, match="none of the 1 queries has a match in the gallery"):
        evaluate_rank(np.zeros((1, 1)), np.array([0]), np.array([0]), np.array([1]), np.array([1]))


def test_roc_calls_pairs_of_one_person_positive():
    from fastreid.evaluation.roc import evaluate_roc

    scores, labels = evaluate_roc(
        np.array([[0.1, 0.9]]), np.array([0]), np.array([0, 1]), np.array([0]), np.array([1, 1])
    )
    assert dict(zip(labels.tolist(), scores.tolist(), strict=True)) == {1.0: -0.1, 0.0: -0.9}


@pytest.mark.parametrize("count", [3, 30])
def test_reranking_runs_on_a_cpu_and_on_few_images(count):
    from fastreid.utils.compute_dist import build_dist

    features = torch.nn.functional.normalize(torch.randn(count, 8, generator=torch.Generator().manual_seed(0)))
    distances = build_dist(features, features, "jaccard", k1=20, k2=6)
    assert distances.shape == (count, count)
    assert np.allclose(np.diag(distances), 0, atol=1e-5)
    assert np.isfinite(distances).all()


def test_modes_come_back_after_an_error_and_frozen_layers_stay_frozen():
    from fastreid.evaluation import inference_context

    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    model[0].eval()
    seen = []

    def fail_in_context():
        with inference_context(model):
            seen.append(model[1].training)
            raise LookupError

    with pytest.raises(LookupError):
        fail_in_context()
    assert seen == [False]
    assert (model.training, model[0].training, model[1].training) == (True, False, True)


@pytest.mark.parametrize(
    "content",
    [{"model": {"w": torch.ones(1)}, "epoch": 3}, {"w": torch.ones(1)}, {"state_dict": {"w": torch.ones(1)}}],
    ids=["host", "plain", "state_dict"],
)
def test_checkpoints_of_three_shapes_are_read(tmp_path, content):
    torch.save(content, tmp_path / "a.pth")
    assert read_checkpoint(str(tmp_path / "a.pth"))["model"]["w"].item() == 1


@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_code_in_a_checkpoint_does_not_run(tmp_path, kind):
    path, content = tmp_path / "a.pth", {"model": Writes(tmp_path / "marker")}
    if kind == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path)
    with pytest.raises(InputError, match="can run code"):
        read_checkpoint(path)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04broken"])
def test_a_damaged_checkpoint_is_one_line(tmp_path, content):
    path = tmp_path / "a.pth"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.pth") as error:
        read_checkpoint(str(path))
    assert "\n" not in str(error.value)


def test_networks_described_by_files_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    widths = []
    for name, depth in (("regnet", "200y"), ("regnet", "200x"), ("effnet", "b0"), ("regnet", "200x")):
        cfg = get_cfg()
        cfg.MODEL.BACKBONE.merge_from_list(["NAME", f"build_{name}_backbone", "DEPTH", depth, "PRETRAIN", False])
        network = build_backbone(cfg).eval()
        widths.append((network(torch.zeros(1, 3, 32, 32)).shape[1], sum(each.numel() for each in network.parameters())))
    assert [width for width, _ in widths] == [368, 368, 1280, 368]
    assert widths[1] == widths[3]  # nothing is left of the network before
    assert widths[0] != widths[1]  # 200y squeezes and excites
