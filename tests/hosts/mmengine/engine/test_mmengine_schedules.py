"""Learning rates under mmengine at every iteration, by hand, and after a resume."""

import math

import pytest
import torch
from mmengine.registry import PARAM_SCHEDULERS
from torch import nn
from torch.optim import SGD

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.engine import optimizers


@pytest.fixture
def said(monkeypatch) -> list[str]:
    """What is logged."""
    lines = []
    monkeypatch.setattr(optimizers, "print_log", lambda line, *_: lines.append(line))
    return lines


def rates(epoch_length, end, bases=(1.0,), **options):
    """Return the rates of each group at every iteration of a run."""
    values = [nn.Parameter(torch.zeros(1)) for _ in bases]
    optimizer = SGD([{"params": [value], "lr": base} for value, base in zip(values, bases, strict=True)], lr=1.0)
    config = {"convert_to_iter_based": True, "end": end, **options}
    scheduler = PARAM_SCHEDULERS.build(config, default_args={"optimizer": optimizer, "epoch_length": epoch_length})
    found = []
    for _ in range(end * epoch_length):
        found.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return found


def single(*args, **kwargs):
    return [rate for (rate,) in rates(*args, **kwargs)]


def test_warm_up_reaches_the_whole_rate_at_its_last_iteration():
    found = single(
        2, 6, type="agreid_plugin.WarmupMultiStepLR", warmup_iters=4, warmup_factor=0.2, milestones=[4], gamma=0.5
    )
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5])


def test_warm_up_in_epochs_is_as_many_iterations():
    options = {"type": "agreid_plugin.WarmupMultiStepLR", "warmup_factor": 0.1, "milestones": [3, 5]}
    assert single(3, 6, warmup_epochs=2, **options) == single(3, 6, warmup_iters=6, **options)


def test_the_epoch_in_which_warm_up_ends_has_the_whole_rate_to_its_end():
    found = single(2, 5, type="agreid_plugin.WarmupCosineLR", warmup_iters=3, warmup_factor=0.0, eta_min=0.1)
    epochs = [0.1 + 0.9 * (1 + math.cos(math.pi * k / 3)) / 2 for k in range(4)]  # K = 5 - ceil(3 / 2), k from epoch 1
    expected = [0, 1 / 3, 2 / 3, 1, *(epochs[1],) * 2, *(epochs[2],) * 2, *(epochs[3],) * 2]
    assert found == pytest.approx(expected)
    assert found[-1] == pytest.approx(0.1)


def test_a_cosine_by_iteration_ends_at_a_share_of_each_rate():
    options = {"type": "agreid_plugin.WarmupCosineLR", "warmup_iters": 1, "every": "iteration", "eta_min_ratio": 0.2}
    found = rates(2, 3, bases=(1.0, 10.0), **options)
    factors = [0.1, *(0.2 + 0.8 * (1 + math.cos(math.pi * k / 5)) / 2 for k in range(5))]  # K = 6 - 1
    assert found == [pytest.approx([factor, 10 * factor]) for factor in factors]


def test_without_warm_up_the_cosine_starts_at_once():
    found = single(1, 4, type="agreid_plugin.WarmupCosineLR")
    assert found == pytest.approx([(1 + math.cos(math.pi * k / 4)) / 2 for k in range(4)])


def started(end: int):
    """A cosine of so many epochs of two iterations, and its optimizer."""
    config = {"type": "agreid_plugin.WarmupCosineLR", "convert_to_iter_based": True, "end": end, "warmup_iters": 3}
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    built = PARAM_SCHEDULERS.build(config, default_args={"optimizer": optimizer, "epoch_length": 2})
    return optimizer, built


def stopped(path, end: int, steps: int) -> None:
    """Keep the states of such a schedule after some iterations."""
    optimizer, scheduler = started(end)
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
    torch.save([optimizer.state_dict(), scheduler.state_dict()], path)


def resumed_rates(path, end: int, steps: int) -> list[float]:
    """Return the rates of the next iterations after what was kept."""
    parts, found = started(end), []
    for part, state in zip(parts, torch.load(path), strict=True):
        part.load_state_dict(state)
    for _ in range(steps):
        found.append(parts[0].param_groups[0]["lr"])
        for part in parts:
            part.step()
    return found


def cosine(end: int) -> list[float]:
    return single(2, end, type="agreid_plugin.WarmupCosineLR", warmup_iters=3)


def test_a_resumed_schedule_goes_on(tmp_path, said):
    stopped(tmp_path / "state.pth", end=5, steps=5)
    assert resumed_rates(tmp_path / "state.pth", end=5, steps=2) == cosine(5)[5:7]
    assert not said


@pytest.mark.parametrize("steps", [7, 10])  # within the shorter run, and at its end
def test_a_longer_schedule_is_told_and_holds_from_the_first_iteration(tmp_path, said, steps):
    stopped(tmp_path / "state.pth", end=5, steps=steps)
    assert resumed_rates(tmp_path / "state.pth", end=8, steps=2) == cosine(8)[steps : steps + 2]
    assert said == [
        "resumed with another schedule (epochs 8 in place of 5): the rate is what it says from here on",
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"type": "agreid_plugin.WarmupMultiStepLR", "milestones": [3, 3]}, "milestones=.* should increase"),
        ({"type": "agreid_plugin.WarmupCosineLR", "every": "epochs"}, "every 'epochs' unknown .did you mean epoch"),
        ({"type": "agreid_plugin.WarmupCosineLR", "warmup_iters": 1, "warmup_epochs": 1}, "not both"),
        ({"type": "agreid_plugin.WarmupCosineLR", "eta_min": 1e-5, "eta_min_ratio": 0.1}, "not both"),
        ({"type": "agreid_plugin.WarmupCosineLR", "warmup_factor": 2}, "warmup_factor=2 should be between 0 and 1"),
        ({"type": "agreid_plugin.WarmupCosineLR", "convert_to_iter_based": False}, "write convert_to_iter_based=True"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        single(2, 4, **options)
