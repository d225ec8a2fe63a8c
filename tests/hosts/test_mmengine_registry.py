"""Our parts in mmengine's registries, found by scope alone."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from mmengine.registry import MODELS, TRANSFORMS

from agreid_plugin import losses
from agreid_plugin.errors import InputError
from agreid_plugin.losses import VIAL
from agreid_plugin.methods.vdt import VDT
from agreid_plugin.methods.visa import ViSABackbone
from agreid_plugin.types import Batch

VIT = {"image_size": (32, 16), "patch_size": 8, "width": 16, "depth": 2, "heads": 2}
ON_HEADS = {"OnFeatures", "OnLogits", "OnParts"}  # they wrap a loss, and take no plain values


def test_the_root_registry_builds_a_loss_without_custom_imports(tmp_path):
    code = (
        "import sys; from mmengine.registry import MODELS\n"
        "assert 'agreid_plugin' not in sys.modules\n"
        "print(MODELS.build(dict(type='agreid_plugin.VIAL', weight=2.0)).weight, 'fastreid' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ), timeout=120
    )
    assert result.stdout.split() == ["2.0", "False"], result.stderr


def test_every_loss_is_registered():
    kinds = [getattr(losses, name) for name in losses.__all__]
    for kind in kinds:
        if isinstance(kind, type) and kind.__name__ not in ON_HEADS:
            assert type(MODELS.build({"type": f"agreid_plugin.{kind.__name__}"})) is kind


def test_a_loss_of_the_registry_is_the_class_itself():
    features, pids = torch.randn(6, 8), torch.tensor([0, 0, 1, 1, 2, 2])
    built = MODELS.build({"type": "agreid_plugin.VIAL", "weight": 2.0})
    torch.testing.assert_close(built(features, pids), 2 * VIAL()(features, pids))


def test_networks_are_built_from_plain_values():
    vit = MODELS.build({"type": "agreid_plugin.VisionTransformer", **VIT})
    assert vit(torch.rand(2, 3, 32, 16)).shape == (2, 9, 16)
    neck = MODELS.build({"type": "agreid_plugin.BNNeck", "width": 16, "classes": 4})
    assert neck(torch.rand(2, 16)).logits.shape == (2, 4)
    backbone = MODELS.build(
        {"type": "agreid_plugin.ViSABackbone", "vit": VIT, "experts": 3, "tokens": 2, "neighbors": 3}
    )
    assert isinstance(backbone, ViSABackbone)


def test_vdt_learns():
    model = MODELS.build({"type": "agreid_plugin.VDT", "num_ids": 2, "vit": VIT, "view_weight": 0.01})
    assert isinstance(model, VDT)
    labels = torch.tensor([0, 0, 1, 1])
    batch = Batch(images=torch.rand(4, 3, 32, 16), pids=labels, views=labels)
    found = model.losses(model(batch), batch)
    sum(found.values()).backward()
    assert all(name.startswith("loss_") and torch.isfinite(value) for name, value in found.items())


@pytest.mark.parametrize("name", ["PLRM", "RandomRotation", "PatchShuffle"])
def test_transforms_change_an_array_into_an_array(name):
    transform = TRANSFORMS.build({"type": f"agreid_plugin.{name}", "p_img": 1.0})
    image = np.random.default_rng(0).integers(0, 256, (64, 32, 3), dtype=np.uint8)
    before = image.copy()
    torch.manual_seed(0)
    results = transform({"img": image, "gt_label": 3})
    assert (results["img"].shape, results["img"].dtype, results["gt_label"]) == (image.shape, np.uint8, 3)
    assert not np.array_equal(results["img"], image)
    assert np.array_equal(image, before)
    assert repr(pickle.loads(pickle.dumps(transform))) == repr(transform)  # data workers are given copies

    off = TRANSFORMS.build({"type": f"agreid_plugin.{name}", "p_img": 0.0})
    assert np.array_equal(off({"img": image})["img"], image)


def test_channels_are_turned_alike():
    image = np.random.default_rng(0).integers(0, 256, (64, 32, 3), dtype=np.uint8)
    transform = TRANSFORMS.build({"type": "agreid_plugin.PLRM", "p_img": 1.0})
    torch.manual_seed(0)
    blue_first = transform({"img": image})["img"]
    torch.manual_seed(0)
    red_first = transform({"img": image[..., ::-1]})["img"]
    assert np.array_equal(blue_first[..., ::-1], red_first)


@pytest.mark.parametrize("results", [{}, {"img": np.zeros((4, 4), np.uint8)}])
def test_what_is_no_image_is_refused(results):
    with pytest.raises(InputError, match="PLRM: results"):
        TRANSFORMS.build({"type": "agreid_plugin.PLRM"})(results)


def test_a_wrong_value_is_refused_as_everywhere():
    with pytest.raises(InputError, match="weight=-1 should be 0 or more"):
        MODELS.build({"type": "agreid_plugin.VIAL", "weight": -1})
