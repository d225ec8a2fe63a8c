"""Pipelines with transforms of ours, of mmcv and of mmpretrain, on datasets of ours."""

import numpy as np
from mmengine.dataset import Compose
from mmengine.registry import DATASETS
from PIL import Image
from small_mmengine import LABELS


def test_transforms_of_mmcv_and_mmpretrain_stand_between(tmp_path):
    Image.fromarray(np.full((20, 10, 3), (200, 100, 0), dtype=np.uint8)).save(tmp_path / "a.png")
    pipeline = Compose(
        [
            {"type": "agreid_plugin.ReadImage"},
            {"type": "mmpretrain.Resize", "scale": (16, 32)},
            {"type": "mmpretrain.RandomFlip", "prob": 0.5, "direction": "horizontal"},
            {"type": "agreid_plugin.PLRM", "p_img": 0.0},
            {"type": "mmpretrain.RandomErasing", "erase_prob": 0.0},
            {"type": "agreid_plugin.Pack"},
        ]
    )
    packed = pipeline({"img_path": str(tmp_path / "a.png"), **LABELS})
    assert packed["inputs"].shape == (3, 32, 16)
    assert packed["inputs"].flatten(1).mean(1).tolist() == [200, 100, 0]
    ends = Compose(
        [pipeline.transforms[0], {"type": "mmpretrain.PackInputs", "meta_keys": ("pid", "view", "img_path")}]
    )
    sample = ends({"img_path": str(tmp_path / "a.png"), **LABELS})["data_samples"]
    assert (sample.gt_label.item(), sample.pid, sample.view) == (2, 7, 1)


def test_mmpretrain_reads_our_dataset(agsynth):
    pipeline = [
        {"type": "mmpretrain.LoadImageFromFile"},
        {"type": "mmpretrain.Resize", "scale": (16, 32)},
        {"type": "mmpretrain.PackInputs", "meta_keys": ("img_path", "pid", "camera", "view")},
    ]
    dataset = DATASETS.build(
        {"type": "agreid_plugin.ReIDDataset", "name": "CARGO", "data_root": str(agsynth), "pipeline": pipeline}
    )
    item, info = dataset[3], dataset.get_data_info(3)
    assert item["inputs"].shape == (3, 32, 16)
    assert item["data_samples"].gt_label.item() == info["gt_label"]
    for name in ("img_path", "pid", "camera", "view"):
        assert item["data_samples"].get(name) == info[name]
