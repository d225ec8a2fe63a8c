"""A tiny ViSA with weights, and a table of what is known of AG-Synth's images."""

import csv
from pathlib import Path

import torch
import yaml
from fastreid.modeling import build_model

from agreid_plugin.data.datasets import load
from agreid_plugin.data.images import read_image
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data.transforms import build_transforms
from agreid_plugin.types import Record

SETTINGS = {
    "MODEL": {
        "META_ARCHITECTURE": "ViSA",
        "DEVICE": "cpu",
        "BACKBONE": {"NAME": "build_visa_backbone", "DEPTH": "tiny", "STRIDE_SIZE": [8, 8], "DROP_PATH_RATIO": 0.0},
        "VIT": {"PATCH_SIZE": 8, "WIDTH": 16, "LAYERS": 2, "HEADS": 2},
        "VISA": {"EXPERTS": 3, "TOKENS": 2, "NEIGHBORS": 3},
        "HEADS": {"NAME": "BNNeckHead"},
        "PIXEL_MEAN": [127.5] * 3,
        "PIXEL_STD": [127.5] * 3,
    },
    "INPUT": {"SIZE_TRAIN": [32, 16], "SIZE_TEST": [32, 16]},
    "DATALOADER": {"NUM_WORKERS": 0},
    "TEST": {"IMS_PER_BATCH": 16, "PROTOCOLS": ["ALL"]},
}
COLUMNS = ("path", "pid", "camera", "view", "time", "weather")


@torch.no_grad()
def make_visa(folder: Path, data: Path) -> None:
    """Write `visa.yml` and `visa.pth`: random weights that see both views, and norms that tell images apart."""
    sets = {"NAMES": ["CARGO"], "TESTS": ["CARGO"], "ROOT": str(data)}
    settings = {**SETTINGS, "DATASETS": sets, "OUTPUT_DIR": str(folder / "run")}
    (folder / "visa.yml").write_text(yaml.safe_dump(settings))
    torch.manual_seed(0)
    cfg = load_config(folder / "visa.yml", ["MODEL.HEADS.NUM_CLASSES", "4"])
    model = build_model(cfg).eval()
    for parameter in model.view_predictor.parameters():
        torch.nn.init.normal_(parameter)
    records, transform = gallery_records(data), build_transforms(cfg, is_train=False)
    images = torch.stack([transform(read_image(record.path)) for record in records])
    outputs = model.infer({"images": images, "views": torch.tensor([record.view for record in records])})
    for neck, features in ((model.head, outputs.identity.features), (model.local_head, outputs.local.features)):
        (norm,) = (module for module in neck.modules() if isinstance(module, torch.nn.BatchNorm1d))
        norm.running_mean.copy_(features.mean(dim=0))
        norm.running_var.copy_(features.var(dim=0))
    torch.save({"model": model.state_dict()}, folder / "visa.pth")


def gallery_records(data: Path) -> list[Record]:
    """Return AG-Synth's images to search in, in the order of their paths."""
    records = [record for record in load("CARGO", data).records if record.split == "gallery"]
    return sorted(records, key=lambda record: record.path)


def make_table(path: Path, records: list[Record]) -> None:
    """Write a table of images, with times and weather that were made up."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for number, record in enumerate(records):
            known = (record.path, record.pid, record.camera, record.view.name.lower())
            table.writerow((*known, f"2026-05-{1 + number:02d}T10:00", ("sun", "rain")[number % 2]))
