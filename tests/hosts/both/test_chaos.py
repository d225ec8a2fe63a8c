"""Runs that are killed again and again, at moments nobody chose, end with the weights of one that never was."""

import random
import signal

import pytest
from small_runs import final, logged, same, write_config

MOMENTS = {"step": 5, "hooks": 5, "evaluate": 1, "rename": 4, "written": 6, "torn": 3}
"""What may be under way when a run is killed, and the highest number of times it has happened by then."""
VARIANTS = {
    "alone": (),
    "workers": ("DATALOADER.NUM_WORKERS", 2, "DATALOADER.SAMPLER_TRAIN", "ViewBalancedIdentitySampler"),
    "half-precision": ("SOLVER.AMP.ENABLED", True, "SOLVER.CHECKPOINT_ITERS", 1, "DATALOADER.NUM_WORKERS", 1),
}
KILLS = {"alone": 7, "workers": 5, "half-precision": 4}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_killed_at_random_ends_as_one_that_was_not(forked_command, agsynth, tmp_path, variant):
    chance = random.Random(variant)
    train = ("train", "--config", write_config(tmp_path / "c.yml", agsynth), *VARIANTS[variant])
    straight = forked_command(*train, "--output", tmp_path / "straight")
    assert straight.code == 0, straight.said
    told, moments = [], [chance.choice(list(MOMENTS)) for _ in range(KILLS[variant])]
    for moment in moments:
        at = (moment, chance.randint(1, MOMENTS[moment]))
        ended = forked_command(*train, "--output", tmp_path / "killed", "--resume", at=at)
        told.append(at)
        assert ended.code == -signal.SIGKILL, (told, ended.said)
    resumed = forked_command(*train, "--output", tmp_path / "killed", "--resume")
    assert resumed.code == 0, resumed.said
    whole, patched = final(tmp_path / "straight"), final(tmp_path / "killed")
    assert {name: same(whole[name], patched[name]) for name in whole} == dict.fromkeys(whole, True), told
    lines = logged(tmp_path / "killed")
    assert sorted(lines) == sorted(logged(tmp_path / "straight"))
    assert len(lines) == len(set(lines))
