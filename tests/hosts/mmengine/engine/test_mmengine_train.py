"""One epoch of every small recipe through mmengine's own Runner, made smaller yet."""

import json
import math
from pathlib import Path

import pytest
from mmengine.runner import Runner
from small_recipes import SMALLER, small

from agreid_plugin.data.datasets import load
from agreid_plugin.evaluation.evaluation_sets import choose_protocols
from agreid_plugin.hosts.mmengine.engine.optimizers import clip_each

TERMS = {
    "VDT": {"loss_cls_id", "loss_triplet_id", "loss_view", "loss_orthogonal"},
    "ViSA": {"loss_cls_id", "loss_triplet_id", "loss_view", "loss_orthogonal", "loss_balance"},
    "VIF-AGReID": {"loss_cls", "loss_triplet", "loss_vial"},
    "SVPR-ReID": {"loss_view", "loss_attributes"},
    "TAG-CLIP": {"loss_nitc", "loss_ritc", "loss_id", "loss_view"},
}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory) -> Path:
    """A folder where the recipes make AG-Synth, each in its layout."""
    return tmp_path_factory.mktemp("datasets")


@pytest.mark.parametrize("name", SMALLER)
def test_a_recipe_trains_validates_and_leaves_its_results(name, datasets, tmp_path):
    config = small(name, datasets, tmp_path / f"train-{name}")
    runner = Runner.from_cfg(config)
    before = {key: value.clone() for key, value in runner.model.state_dict().items()}
    runner.train()

    history = runner.message_hub.log_scalars
    terms = {
        key.removeprefix("train/"): value.data[0] for key, value in history.items() if key.startswith("train/loss")
    }
    assert set(terms) >= TERMS[name] | {"loss"}
    assert all(math.isfinite(value) for values in terms.values() for value in values)
    assert len(terms["loss"]) == 2  # 32 images
    after = runner.model.state_dict()
    assert any(not before[key].equal(value) for key, value in after.items())

    dataset = load(config.val_dataloader.dataset.name, datasets)
    protocols = choose_protocols(dataset, config.val_dataloader.dataset.get("protocols", ()))
    results = json.loads((Path(runner.work_dir) / "results.json").read_text())
    assert {f"{name}/{protocol}" for name, found in results.items() for protocol in found} == set(
        map(str, protocols.values())
    )
    assert (Path(runner.work_dir) / "run_card.json").is_file()
    assert (Path(runner.work_dir) / "epoch_1.pth").is_file()


def test_the_steps_of_a_real_recipe_are_taken_on_a_cpu_without_mixed_precision(datasets, tmp_path):
    config = small("VDT", datasets, tmp_path / "train-cargo", recipe="cargo", epochs=2)
    config.param_scheduler.warmup_iters = 1
    runner = Runner.from_cfg(config)
    runner.train()
    assert not runner.optim_wrapper.enabled
    assert runner.optim_wrapper.clip_func is clip_each
    rates = runner.message_hub.get_scalar("train/lr").data[0]
    assert rates == pytest.approx([8e-5, 8e-3, 1.6e-6, 1.6e-6])  # warm-up, the rest of its epoch, and the cosine's end
    norms = runner.message_hub.get_scalar("train/grad_norm").data[0]
    assert len(norms) == 4
    assert all(math.isfinite(norm) and norm > 0 for norm in norms)
