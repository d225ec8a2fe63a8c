"""The Python of the guides, run as it is printed."""

import pytest
import torch
from conftest import assert_one_line, slow
from pages import ROOT, blocks, write_files


def python_of(page: str) -> str:
    """The Python blocks of a guide, one after another."""
    found = [block.text for block in blocks(f"guide/{page}") if block.kind == "python" and not block.file]
    assert found
    return "\n".join(found)


def test_parts_work_without_a_host():
    torch.manual_seed(0)
    names = {}
    exec(python_of("parts.md"), names)
    assert all(weight.grad.any() for weight in names["network"].parameters())
    outputs = names["outputs"]
    assert outputs.encoded.identity.shape == outputs.local.shape == (8, 192)
    assert names["features"].shape == (8, 128)
    assert (names["found"].protocol, names["found"]["Rank-1"]) == ("CARGO/A2G", 100.0)


@pytest.mark.parametrize(
    ("file", "learned"),
    [("vit_classifier.py", "model.head.num_classes"), *slow(("resnet_vif.py", "model.num_ids"))],
)
def test_mixes_of_both_toolboxes_are_trained(fastreid_command, tmp_path, monkeypatch, agsynth, file, learned):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    assert file in {path.name for path in write_files(blocks("guide/mmengine.md"), tmp_path)}
    short = ["train_cfg.max_epochs", 1, "train_cfg.val_interval", 1, "model.backbone.vit.depth", 1]
    short = short if "vit" in file else short[:-2]
    short += ["train_dataloader.batch_size", 16, "train_dataloader.sampler.batch_size", 16]
    for loader in ("train", "val", "test"):
        dataset = f"{loader}_dataloader.dataset"
        short += [f"{dataset}.data_root", agsynth, f"{dataset}.agsynth.ids", 0, f"{loader}_dataloader.num_workers", 0]
    outcome = fastreid_command("train", "--config", file, "--output", "run", *short, learned, 4)
    assert outcome.code == 0, outcome.err
    assert "CARGO/AG-cross" in outcome.out
    outcome = fastreid_command("train", "--config", file, "--output", "other", *short, learned, 5)
    assert_one_line(outcome, f"{learned} is 5, but CARGO has 4 identities to train on: set {learned.split('.')[-1]}=4")
