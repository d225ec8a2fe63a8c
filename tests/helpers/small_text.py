"""A tiny TAG-CLIP inside fast-reid and captioned pictures for it; `pytest_plugins` has its fixtures."""

import json
from pathlib import Path

import pytest
import torch
from small_fastreid import write_tiny

from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.synth import make_agsynth
from agreid_plugin.types import View

SHAPE = {"WIDTH": 16, "LAYERS": 3, "HEADS": 2, "TEXT_WIDTH": 8, "TEXT_LAYERS": 2, "TEXT_HEADS": 2, "EMBED_DIM": 8}
TINY = {
    "MODEL": {
        "META_ARCHITECTURE": "TAGCLIP",
        "BACKBONE": {"NAME": "build_clip_backbone", "STRIDE_SIZE": [8, 8]},
        "CLIP": {**SHAPE, "PATCH_SIZE": 8},
        "TAG_CLIP": {"AT": [1], "TSE_WIDTH": 10, "TEMPERATURE": 0.07, "FREEZE_PATCHES": False},
        "LOSSES": {"NAME": []},
    },
    "INPUT": {"SIZE_TRAIN": [32, 16], "SIZE_TEST": [32, 16], "PIPELINE": ["Resize", "ToTensor", "AugmentationPool"]},
    "DATASETS": {"NAMES": ["TAG_PEDES"], "TESTS": ["TAG_PEDES"]},
    "DATALOADER": {"SAMPLER_TRAIN": "TrainingSampler", "NUM_WORKERS": 0},
    "SOLVER": {
        "OPT": "AdamW",
        "BETAS": [0.9, 0.98],
        "LR_FACTORS": [["image_local", 10], ["text_local", 10]],
        "DECAY_VECTORS": False,
        "SCHED": "CosineAnnealingLR",
        "SCHED_STEP": "iteration",
        "ETA_MIN_LR": 1e-5,
        "BASE_LR": 1e-3,
        "IMS_PER_BATCH": 16,
        "MAX_EPOCH": 2,
        "WARMUP_ITERS": 2,
        "LOG_PERIOD": 1,
        "CHECKPOINT_PERIOD": 1,
    },
    "TEST": {"EVAL_PERIOD": 1, "IMS_PER_BATCH": 16},
}
PROTOCOLS = ["T2I", "T2I-aerial", "T2I-ground"]


@pytest.fixture(scope="session")
def captioned_pictures(tmp_path_factory) -> Path:
    """AG-Synth as TAG-PEDES: 3 people to train on, 3 to test with, 8 images each; odd captions among them."""
    root = tmp_path_factory.mktemp("captioned")
    folder = make_agsynth(root, ids=6, images_per_id=8, size=(32, 16), layout="tag-pedes", workers=1, progress=False)
    for split in ("train", "test"):
        entries = annotations(folder, split)
        entries[0]["captions"] = ["", "Man."]
        entries[1]["captions"] = ["red " * 60 + "counterrevolutionaries " * 20]
        write_annotations(folder, split, entries)
    return root


@pytest.fixture
def tiny_text(tmp_path, captioned_pictures) -> Path:
    """A configuration that trains TAG-CLIP on `captioned_pictures` in seconds."""
    return write_tiny(tmp_path, TINY, captioned_pictures)


def annotations(folder: Path, split: str) -> list[dict]:
    return json.loads((folder / "anno_dir" / f"{split}_reid.json").read_text())


def write_annotations(folder: Path, split: str, entries: list[dict]) -> None:
    (folder / "anno_dir" / f"{split}_reid.json").write_text(json.dumps(entries))


def configured(path: Path, *overrides: object):
    return load_config(path, ["MODEL.DEVICE", "cpu", "MODEL.HEADS.NUM_CLASSES", "3", *map(str, overrides)])


def batch_of(model, images: torch.Tensor) -> dict:
    tokens = model.text.tokenize(["a man in red", "", "a woman", "someone with a bag"])
    views = torch.tensor([View.AERIAL, View.GROUND, View.GROUND, -1])
    return {"images": images, "targets": torch.tensor([0, 0, 1, 2]), "views": views, "tokens": tokens}
