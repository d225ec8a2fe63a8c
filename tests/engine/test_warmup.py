"""Runs shorter than their warm-up: it is shortened, alike in both hosts, and every other run is as it was."""

from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, assert_one_line
from fastreid.engine import hooks
from fastreid.utils.events import EventStorage
from mmengine.registry import PARAM_SCHEDULERS
from small_mmengine_config import write_config
from zygote import assert_refused

from agreid_plugin.engine.configuration import fit_warmup
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.engine import solver
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer

pytestmark = pytest.mark.both_hosts

COSINE = {"SOLVER.SCHED": "CosineAnnealingLR", "SOLVER.ETA_MIN_LR": 0.01}
SCHEDULES = {
    "steps": ({"SOLVER.SCHED": "MultiStepLR", "SOLVER.STEPS": "[50]"}, {"kind": "MultiStep", "milestones": [50]}),
    "cosine by epoch": (COSINE, {"kind": "Cosine", "eta_min": 0.01}),
    "cosine by iteration": (
        {**COSINE, "SOLVER.SCHED_STEP": "iteration"},
        {"kind": "Cosine", "eta_min": 0.01, "every": "iteration"},
    ),
}


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


def fastreid_rates(path, settings: dict, epochs: int, length: int, warmup: int) -> list[float]:
    """Return the rate of every iteration as the host's hooks step the schedule."""
    settings = {"SOLVER.BASE_LR": 1.0, "SOLVER.MAX_EPOCH": epochs, "SOLVER.WARMUP_ITERS": warmup, **settings}
    cfg, stepped = load_config(path, [str(part) for pair in settings.items() for part in pair]), optimizer()
    hook_type = solver.IterationScheduler if cfg.SOLVER.SCHED_STEP == "iteration" else hooks.LRScheduler
    hook = hook_type(stepped, Trainer.build_lr_scheduler(cfg, stepped, length))
    hook.trainer = trainer = SimpleNamespace(
        iter=0,
        warmup_iters=solver.warmup_iterations(cfg, length),
        delay_epochs=0,
        iters_per_epoch=length,
        grad_scaler=None,
        storage=EventStorage(),
    )
    rates = []
    for trainer.epoch in range(epochs):
        for _ in range(length):
            rates.append(stepped.param_groups[0]["lr"])
            stepped.step()
            hook.after_step()
            trainer.iter += 1
        hook.after_epoch()
    return rates


def mmengine_rates(options: dict, epochs: int, length: int, warmup: int) -> list[float]:
    """Return the rate of every iteration of mmengine's schedule."""
    stepped, given = optimizer(), {name: value for name, value in options.items() if name != "kind"}
    schedule = PARAM_SCHEDULERS.build(
        {"type": f"agreid_plugin.Warmup{options['kind']}LR", "convert_to_iter_based": True, **given}
        | {"end": epochs, "warmup_iters": warmup},
        default_args={"optimizer": stepped, "epoch_length": length},
    )
    rates = []
    for _ in range(epochs * length):
        rates.append(stepped.param_groups[0]["lr"])
        stepped.step()
        schedule.step()
    return rates


def test_what_fits_stays_and_half_of_the_run_is_left_otherwise():
    assert [fit_warmup(warmup, 10) for warmup in (0, 3, 9, 10, 11, 2000)] == [0, 3, 9, 10, 6, 6]
    assert [fit_warmup(warmup, 10, left=5) for warmup in (5, 6, 10)] == [5, 6, 6]
    assert [fit_warmup(2000, iterations, left=1) for iterations in (1, 2, 3, 4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_a_short_run_reaches_the_full_rate_alike_in_both_hosts(tmp_path, name, epochs):
    (tmp_path / "empty.yml").write_text("{}")
    settings, options = SCHEDULES[name]
    rates = fastreid_rates(tmp_path / "empty.yml", settings, epochs, 5, warmup=100)
    assert rates == pytest.approx(mmengine_rates(options, epochs, 5, warmup=100))
    assert max(rates) == 1
    assert rates.index(1) == epochs * 5 // 2 + 1
    assert min(rates[rates.index(1) :]) > 0


@pytest.mark.parametrize("recipe", ["ViSA/agsynth", "ViSA/cargo", "SVPR-ReID/cargo", "TAG-CLIP/tag_pedes"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_every_recipe_has_a_schedule_for_short_runs(recipe, epochs):
    cfg = load_config(ROOT / "projects" / f"{recipe}.yml", ["SOLVER.MAX_EPOCH", str(epochs)])
    solver.check_solver(cfg)
    assert 0 < solver.warmup_iterations(cfg, 40) < 40 * epochs
    full = load_config(ROOT / "projects" / f"{recipe}.yml")
    assert solver.warmup_note(full, 40 if "agsynth" in recipe else 700) == ""


@pytest.fixture
def train(fastreid_command, config_file, tmp_path):
    """Train with fast-reid, a warm-up that is too long and overrides."""
    cosine = ["SOLVER.SCHED", "CosineAnnealingLR", "SOLVER.WARMUP_ITERS", 2000]

    def run(*arguments: object):
        return fastreid_command("train", "--config", config_file, "--output", tmp_path / "run", *arguments, *cosine)

    return run


def test_fastreid_trains_for_an_epoch_and_resumes_to_the_same_length_in_silence(train, tmp_path):
    outcome = train("SOLVER.MAX_EPOCH", 1, "SOLVER.CHECKPOINT_ITERS", 1)
    assert outcome.code == 0, outcome.err
    assert "SOLVER.WARMUP_ITERS: a warm-up of 2000 iterations does not fit into the run's 3: shortened" in outcome.out
    (tmp_path / "run" / "model_final.pth").unlink()  # the one within the epoch is left
    outcome = train("--resume", "SOLVER.MAX_EPOCH", 1)
    assert outcome.code == 0, outcome.err
    assert "another schedule" not in outcome.out


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["SOLVER.DELAY_EPOCHS", 2], "SOLVER.DELAY_EPOCHS is 2, SOLVER.MAX_EPOCH 2: the cosine schedule has no epoch"),
        (["SOLVER.IMS_PER_BATCH", 200], "the training set has 48 images, less than one batch"),
        (["DATALOADER.NUM_INSTANCE", 1], "takes 16 identities, the training set has 8"),
        (["TEST.BEST_METRIC", "Market1501/ALL/mPA"], "did you mean Market1501/ALL/mAP"),
        (["DATASETS.ROOT", "nowhere"], "cannot be read under"),
        (["MODEL.HEADS.NUM_CLASSES", 7], "is 7, the training set has 8 identities: leave it 0"),
        (["MODEL.WEIGHTS", "none.pth"], "none.pth does not exist"),
    ],
)
def test_fastreid_makes_no_folder_for_a_run_that_it_refuses(train, tmp_path, overrides, words):
    outcome = train(*overrides)
    assert outcome.code == 2, outcome
    assert words in outcome.err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def schedule(**options: object) -> str:
    return f"\nparam_scheduler = dict(type='WarmupCosineLR', convert_to_iter_based=True, **{options!r})\n"


def test_mmengine_trains_for_an_epoch(fastreid_command, tmp_path, agsynth):
    path = write_config(tmp_path / "tiny.py", agsynth, schedule(warmup_iters=2000))
    outcome = fastreid_command("train", "--config", path, "--output", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert "WarmupCosineLR: a warm-up of 2000 iterations does not fit into the run's 6: shortened to 4" in outcome.out
    outcome = fastreid_command("train", "--config", path, "--output", tmp_path / "run", "--resume")
    assert outcome.code == 0, outcome.err
    assert "another schedule" not in outcome.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"warmup_iters": 1, "warmup_epochs": 1}, "param_scheduler: WarmupCosineLR: give warmup_iters or"),
        ({"every": "epochs"}, "param_scheduler: every 'epochs' unknown (did you mean epoch?)"),
        ({"milestones": [2]}, "param_scheduler: argument of WarmupCosineLR 'milestones' unknown"),
    ],
)
def test_mmengine_makes_no_folder_for_a_schedule_that_it_refuses(fastreid_command, tmp_path, agsynth, options, words):
    path = write_config(tmp_path / "tiny.py", agsynth, schedule(**options))
    assert_one_line(fastreid_command("train", "--config", path, "--output", tmp_path / "run"), words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("train_dataloader.dataset.data_root", "nowhere", "nowhere does not exist"),
        ("model.num_ids", 7, "model.num_ids is 7, but CARGO has 4 identities to train on"),
        ("model.backbone.vit.widht", 3, "'widht' unknown (did you mean width?)"),
        ("load_from", "none.pth", "none.pth does not exist"),
    ],
)
def test_mmengine_leaves_no_folder_of_a_run_that_it_refuses(forked_command, tmp_path, tiny_py, key, value, words):
    ended = forked_command("train", "--config", tiny_py, "--output", tmp_path / "run", key, value)
    assert_refused(ended, words)
    assert not (tmp_path / "run").exists()
