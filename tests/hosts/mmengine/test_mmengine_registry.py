"""Our parts in mmengine's registries, found by scope alone."""

import logging
import subprocess
import sys

import pytest
import torch
from mmengine.registry import MODELS, DefaultScope, Registry, root

from agreid_plugin import losses, registry
from agreid_plugin.errors import InputError
from agreid_plugin.losses import VIAL

VIT = {"image_size": (32, 16), "patch_size": 8, "width": 16, "depth": 2, "heads": 2}
WRAPPERS = {"FeatureLoss", "LogitLoss", "OutputLoss"}  # they wrap a loss, and take no plain values
ROOTS = {name: value for name, value in vars(root).items() if isinstance(value, Registry)}
TRAINING = f"""
import sys, torch
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement
assert "agreid_plugin" not in sys.modules
backbone = dict(type="agreid_plugin.VDTBackbone", vit={VIT})
vial = dict(type="agreid_plugin.VIAL", weight=2.0)
model = MODELS.build(dict(type="agreid_plugin.VDT", num_ids=2, backbone=backbone, objectives=dict(vial=vial)))
samples = [BaseDataElement(metainfo=dict(gt_label=n // 2, view=n % 2)) for n in range(4)]
losses = model(torch.rand(4, 3, 32, 16), samples, mode="loss")
model.parse_losses(losses)[0].backward()
print(*sorted(losses))
print(*[name for name in ("fastreid", "mmpretrain", "mmcv", "open_clip") if name in sys.modules])
"""


def test_the_root_registry_finds_us_without_custom_imports_or_another_toolbox(tmp_path):
    command = [sys.executable, "-c", TRAINING]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert result.stdout.splitlines() == ["cls_accuracy loss_orthogonal loss_vial_id loss_view", ""], result.stderr


@pytest.mark.parametrize("name", sorted(ROOTS))
def test_each_registry_of_mmengine_has_a_child_of_ours(name):
    child = getattr(registry, name)
    assert (child.parent, child.scope) == (ROOTS[name], "agreid_plugin")
    assert name in registry.__all__


def test_a_run_in_our_scope_is_warned_of_nothing(caplog):
    with DefaultScope.overwrite_default_scope("agreid_plugin"), caplog.at_level(logging.WARNING):
        for parent in ROOTS.values():
            with parent.switch_scope_and_registry(None) as found:
                assert found.scope == "agreid_plugin"
        assert isinstance(root.HOOKS.build({"type": "IterTimerHook"}), root.HOOKS.get("IterTimerHook"))
    assert not caplog.records


def test_every_loss_is_registered():
    kinds = [getattr(losses, name) for name in losses.__all__]
    for kind in kinds:
        if isinstance(kind, type) and kind.__name__ not in WRAPPERS:
            assert isinstance(MODELS.build({"type": f"agreid_plugin.{kind.__name__}"}), kind)


def test_a_loss_of_the_registry_is_ours():
    features, pids = torch.randn(6, 8), torch.tensor([0, 0, 1, 1, 2, 2])
    views = torch.tensor([0, 1, 0, -1, 0, 1])
    built = MODELS.build({"type": "agreid_plugin.VIAL", "weight": 2.0})
    torch.testing.assert_close(built(features, pids), 2 * VIAL()(features, pids))
    torch.testing.assert_close(built(features, pids, views), 2 * VIAL()(features, pids, views))


def test_networks_are_built_from_plain_values():
    vit = MODELS.build({"type": "agreid_plugin.VisionTransformer", **VIT})
    assert vit(torch.rand(2, 3, 32, 16)).shape == (2, 9, 16)
    neck = MODELS.build({"type": "agreid_plugin.BNNeck", "width": 16, "classes": 4})
    assert neck(torch.rand(2, 16)).logits.shape == (2, 4)


def test_a_wrong_value_is_refused_as_everywhere():
    with pytest.raises(InputError, match="weight=-1 should be 0 or more"):
        MODELS.build({"type": "agreid_plugin.VIAL", "weight": -1})


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        ("ReIDDataset", "DATASETS"),
        ("PLRM", "TRANSFORMS"),
        ("Pack", "TRANSFORMS"),
        ("ViewBalancedIdentitySampler", "DATA_SAMPLERS"),
        ("MultiProtocolMetric", "METRICS"),
        ("LearningGuard", "HOOKS"),
        ("ExpertUsage", "HOOKS"),
        ("RunCard", "HOOKS"),
        ("RankLists", "HOOKS"),
        ("ExactResume", "HOOKS"),
        ("IdentityCheck", "HOOKS"),
        ("CheckpointHook", "HOOKS"),
        ("ResumableEpochLoop", "LOOPS"),
        ("seed_worker", "FUNCTIONS"),
        ("TAGCLIP", "MODELS"),
    ],
)
def test_parts_are_found_from_the_root(kind, group):
    assert ROOTS[group].get(f"agreid_plugin.{kind}").__name__ == kind
