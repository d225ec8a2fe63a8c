"""Groups of the optimizer, and a cosine that falls with every iteration, also in a resumed run."""

import math
import re

import pytest
import torch
from fastreid.modeling import build_model
from fastreid.utils.events import EventStorage
from small_text import configured

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.engine import solver
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer

pytest_plugins = ("small_text",)


def test_groups_of_the_optimizer(tiny_text):
    cfg = configured(tiny_text, "SOLVER.WEIGHT_DECAY", 0.02)
    model = build_model(cfg)
    optimizer, _ = Trainer.build_optimizer(cfg, model)
    names = {id(value): name for name, value in model.named_parameters()}
    found = {
        names[id(value)]: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for value in group["params"]
    }
    assert set(found) == {name for name, value in model.named_parameters() if value.requires_grad}
    for name, (rate, decay) in found.items():
        assert rate == pytest.approx(1e-2 if name.startswith(("image_local.", "text_local.")) else 1e-3), name
        vector = model.get_parameter(name).dim() < 2 or name.endswith("bias")
        assert decay == (0 if vector else 0.02), name
    assert found["image.tower.visual.transformer.resblocks.1.experts.c_fc_bias"][1] == 0
    assert len(optimizer.param_groups) == 4


@pytest.mark.parametrize(
    ("layers", "iterations", "words"),
    [
        (["image.tower.nope"], 5, "'image.tower.nope' unknown (did you mean image.tower"),
        (["image("], 5, "MODEL.FREEZE_LAYERS 'image(' is no pattern"),
        (["image"], 0, "SOLVER.FREEZE_ITERS is 0: say for how many iterations"),
    ],
)
def test_layers_that_would_not_be_frozen_are_refused(tiny_text, layers, iterations, words):
    cfg = configured(tiny_text, "MODEL.FREEZE_LAYERS", layers, "SOLVER.FREEZE_ITERS", iterations)
    with pytest.raises(InputError, match=re.escape(words)):
        Trainer.build_model(cfg)


def test_layers_are_frozen_by_the_beginning_of_names(tiny_text):
    cfg = configured(tiny_text, "MODEL.FREEZE_LAYERS", ["image.tower"], "SOLVER.FREEZE_ITERS", 5)
    model = Trainer.build_model(cfg)
    optimizer, _ = Trainer.build_optimizer(cfg, model)
    frozen = {id(w) for group in optimizer.param_groups if group["freeze_status"] == "freeze" for w in group["params"]}
    names = {name for name, value in model.named_parameters() if id(value) in frozen}
    assert names == {
        name for name, value in model.named_parameters() if name.startswith("image.tower") if value.requires_grad
    }


def test_the_cosine_falls_with_every_iteration(tiny_text):
    cfg = configured(tiny_text, "SOLVER.MAX_EPOCH", 3, "SOLVER.WARMUP_ITERS", 4, "SOLVER.WARMUP_FACTOR", 0.01)
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimizer = torch.optim.AdamW([{"params": [w], "lr": rate} for w, rate in zip(weights, (1e-3, 1e-2), strict=True)])
    scheduler = solver.cosine_by_iteration(cfg, optimizer, iters_per_epoch=4)

    class Stub:
        warmup_iters, delay_epochs, iters_per_epoch, grad_scaler = 4, 0, 4, None
        storage = EventStorage()

    hook, trainer = solver.IterationScheduler(optimizer, scheduler), Stub()
    hook.trainer = trainer
    seen = []
    for trainer.iter in range(12):
        seen.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        hook.after_step()
        hook.after_epoch()
    warm = [0.01 + 0.99 * step / 4 for step in range(4)]
    cosine = [0.01 + 0.99 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(8)]
    assert [rates[0] for rates in seen] == pytest.approx([1e-3 * factor for factor in warm + cosine])
    assert [rates[1] for rates in seen] == pytest.approx([1e-2 * factor for factor in warm + cosine])


def by_iteration(path, epochs: int) -> tuple[torch.optim.Optimizer, solver.CosineByIteration]:
    """Return an optimizer and its cosine over epochs of four iterations, without warm-up."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=1e-3)
    cfg = configured(path, "SOLVER.MAX_EPOCH", epochs, "SOLVER.WARMUP_ITERS", 0)
    return optimizer, solver.cosine_by_iteration(cfg, optimizer, iters_per_epoch=4)["lr_sched"]


def state_after(path, epochs: int, steps: int) -> tuple[dict, float]:
    """Return what a checkpoint has of the schedule after some steps, and the rate there."""
    optimizer, schedule = by_iteration(path, epochs)
    for _ in range(steps):
        optimizer.step()
        schedule.step()
    return schedule.state_dict(), optimizer.param_groups[0]["lr"]


def test_a_longer_cosine_by_iteration_is_told_and_holds_from_the_first_step(tiny_text, caplog):
    state, _ = state_after(tiny_text, epochs=2, steps=5)
    optimizer, schedule = by_iteration(tiny_text, epochs=4)
    solver.continue_schedule(schedule, state)
    told = "resumed with another schedule (steps 16 in place of 8): the rate is what it says from here on"
    assert [record.getMessage() for record in caplog.records] == [told]
    for steps in (5, 6):
        _, expected = state_after(tiny_text, epochs=4, steps=steps)
        assert optimizer.param_groups[0]["lr"] == expected
        optimizer.step()
        schedule.step()


def test_the_same_cosine_by_iteration_goes_on_without_a_word(tiny_text, caplog):
    state, rate = state_after(tiny_text, epochs=2, steps=5)
    optimizer, schedule = by_iteration(tiny_text, epochs=2)
    optimizer.param_groups[0]["lr"] = rate  # as the optimizer's own state says
    solver.continue_schedule(schedule, state)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == state_after(tiny_text, epochs=2, steps=6)[1]
    assert not caplog.records


@pytest.mark.parametrize(("before", "now"), [("epoch", "iteration"), ("iteration", "epoch")])
def test_epochs_are_not_taken_for_iterations(tiny_text, before, now):
    def schedule(step: str) -> torch.optim.lr_scheduler.LRScheduler:
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=1e-3)
        cfg = configured(tiny_text, "SOLVER.SCHED_STEP", step, "SOLVER.WARMUP_ITERS", 0)
        return Trainer.build_lr_scheduler(cfg, optimizer, 4)["lr_sched"]

    told = f"of another schedule (SOLVER.SCHED_STEP was {before} there, it is {now} here)"
    with pytest.raises(InputError, match=re.escape(told)):
        solver.continue_schedule(schedule(now), schedule(before).state_dict())
