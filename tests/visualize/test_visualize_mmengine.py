"""`fastreid visualize` with configurations of mmengine's: the other methods' experts, patches and attention."""

import json
from pathlib import Path

import numpy as np
import pytest
import small_mmengine
import torch
from PIL import Image
from small_gallery import make_visa
from small_mmengine import CONFIGS

CONFIG = """
model = {model}
pipeline = [
    dict(type="agreid_plugin.ReadImage"),
    dict(type="agreid_plugin.Resize", size=(32, 16)),
    dict(type="agreid_plugin.Pack"),
]
test_dataloader = dict(
    batch_size=16,
    dataset=dict(
        type="agreid_plugin.ReIDDataset",
        name="CARGO",
        data_root={root!r},
        split="test",
        protocols=["ALL"],
        pipeline=pipeline,
    ),
)
test_evaluator = dict(type="agreid_plugin.MultiProtocolMetric")
"""


@pytest.fixture
def draw(agsynth, fastreid_command, tmp_path):
    """Draw a picture of a tiny model; return the numbers in it."""

    def run(name: str, model: str, *argv: object) -> dict:
        config, weights = tmp_path / f"{model}.py", tmp_path / f"{model}.pth"
        if not config.exists():
            config.write_text(CONFIG.format(model={**CONFIGS[model], "num_ids": 3}, root=str(agsynth)))
            torch.save({"state_dict": small_mmengine.model(model).state_dict()}, weights)
        files = ("--out", tmp_path / f"{name}.png", "--json", tmp_path / f"{name}.json")
        outcome = fastreid_command("visualize", name, "--config", config, "--weights", weights, *files, *argv)
        assert outcome.code == 0, outcome.err
        with Image.open(tmp_path / f"{name}.png") as image:
            image.load()
        return json.loads((tmp_path / f"{name}.json").read_text())

    return run


def test_stages_of_a_refinement_choose_among_those_before(draw):
    data = draw("graph", "SVPR", "--count", 2)
    assert len(data["images"]) == 2
    for image in data["images"]:
        chosen = [set(places[0]) for places in image["chosen"].values()]
        assert list(image["chosen"]) == ["stage 1", "stage 2", "stage 3"]
        assert [len(places) for places in chosen] == [4, 2, 1]
        assert chosen[0] > chosen[1] > chosen[2]


def test_attention_of_a_clip_tower(draw):
    data = draw("attention", "TAGCLIP", "--count", 3)
    rows = np.array([image["attention"] for image in data["images"]])
    assert rows.shape == (3, 8)
    assert (rows.sum(axis=1) < 1).all()


def test_experts_of_tokens(draw):
    data = draw("experts", "TAGCLIP")
    assert data["groups"]
    for group in data["groups"]:
        assert np.array(group["shares"]).shape == (len(group["experts"]), len(group["cameras"]))
        assert np.ptp(np.sum(group["shares"], axis=0)) < 1e-5


def test_rankings_and_planes(draw):
    data = draw("ranks", "SVPR", "--queries", 2, "--top", 3, "--order", "random")
    assert [len(query["listed"]) for query in data["queries"]] == [3, 3]
    assert list(draw("tsne", "SVPR", "--compare", "untrained")["planes"]) == ["before training", "after training"]


@pytest.mark.both_hosts
def test_both_hosts_choose_the_same_patches(draw, agsynth, fastreid_command, tmp_path: Path):
    make_visa(tmp_path, agsynth)
    theirs = tmp_path / "theirs.json"
    argv = ("--config", tmp_path / "visa.yml", "--weights", tmp_path / "visa.pth", "--count", 3)
    outcome = fastreid_command("visualize", "graph", *argv, "--out", tmp_path / "theirs.png", "--json", theirs)
    assert outcome.code == 0, outcome.err
    ours = draw("graph", "ViSA", "--count", 3, "--weights", tmp_path / "visa.pth", "model.num_ids", 4)
    assert ours == json.loads(theirs.read_text())
