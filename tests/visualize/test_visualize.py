"""`fastreid visualize`: pictures show what tiny models do, and bad input ends in one line."""

import base64
import io
import json
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import RESNET, assert_one_line
from fastreid.modeling import build_model
from PIL import Image
from small_gallery import make_visa

from agreid_plugin import Extractor
from agreid_plugin.cli import main, visualize
from agreid_plugin.data.images import read_image
from agreid_plugin.data.transforms import patch_probabilities
from agreid_plugin.evaluation.features import load_features
from agreid_plugin.evaluation.ranking_options import RankingOptions
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.inference.evaluation_sets import load_evaluation_setup
from agreid_plugin.types import View
from agreid_plugin.visualize import ranks
from agreid_plugin.visualize.figures import Subject, draw_expert_shares
from agreid_plugin.visualize.run_page import report_page
from agreid_plugin.visualize.style import PALETTE, RIGHT, WRONG

HISTORY = [
    {"iteration": step, "total_loss": 3.0 - step, "CARGO/ALL/mAP": 10.0 * step, "CARGO/ALL/Rank-1": 9.0 * step}
    | {f"experts/backbone.queries.shared_router/{expert}": share for expert, share in enumerate((0.9, 0.8, 0.3))}
    for step in (1, 2)
]


@pytest.fixture(scope="module")
def made(tmp_path_factory, agsynth) -> Path:
    """The folder of a run: configuration and weights."""
    folder = tmp_path_factory.mktemp("visualize")
    make_visa(folder, agsynth)
    (folder / "visa.yml").rename(folder / "config.yaml")
    (folder / "visa.pth").rename(folder / "model_final.pth")
    return folder


@pytest.fixture
def draw(made, fastreid_command, tmp_path):
    """Draw a picture of the tiny model; return it and the numbers in it."""

    def run(name: str, *argv: object) -> tuple[Image.Image, dict]:
        files = ("--out", tmp_path / f"{name}.png", "--json", tmp_path / f"{name}.json")
        outcome = fastreid_command("visualize", name, *model(made), *files, *argv)
        assert outcome.code == 0, outcome.err
        assert str(tmp_path / f"{name}.png") in outcome.out
        with Image.open(tmp_path / f"{name}.png") as image:
            image.load()
        return image, json.loads((tmp_path / f"{name}.json").read_text())

    return run


def model(folder: Path) -> tuple[object, ...]:
    return ("--config", folder / "config.yaml", "--weights", folder / "model_final.pth")


@torch.no_grad()
def outputs_of(folder: Path, path: str, view: str):
    """What the model makes of one image, without the code of the pictures."""
    model = Extractor.from_config(folder / "config.yaml", folder / "model_final.pth").model
    image = model.settings.transform(read_image(path)).unsqueeze(0)
    return model, model.method.infer({"images": image, "views": torch.tensor([View[view.upper()]])})


@pytest.mark.parametrize("name", visualize.EXAMPLES)
def test_every_picture_has_help_with_an_example(name, capsys):
    with pytest.raises(SystemExit) as left:
        main(["visualize", name, "--help"])
    assert left.value.code == 0
    assert f"examples:\n  fastreid visualize {name} " in capsys.readouterr().out


def test_frames_tell_right_from_wrong_and_numbers_are_those_of_the_evaluation(draw, made, fastreid_command, tmp_path):
    picture, data = draw("ranks", "--order", "worst", "--queries", 4, "--top", 5)
    assert data["protocol"] == "CARGO/ALL"
    assert picture.height == ranks.HEAD + 4 * ranks.ROW
    for row, query in enumerate(data["queries"]):
        for listed in query["listed"]:
            color = RIGHT if listed["pid"] == query["pid"] else WRONG
            assert picture.getpixel(ranks.format_place(row, listed["rank"])) == color
            assert listed["right"] == (color == RIGHT)
        distances = [listed["distance"] for listed in query["listed"]]
        assert distances == sorted(distances)
        assert len(distances) == 5
    kept = tmp_path / "feats.npz"
    assert fastreid_command("eval", *model(made), "--save-features", kept, "--output", tmp_path / "eval").code == 0
    tested = load_evaluation_setup(made / "config.yaml")
    (metrics,) = RankingOptions().compute(load_features(kept), [tested.find("ALL")[1]])
    precision = [query["average_precision"] for query in data["queries"]]
    assert precision == pytest.approx(sorted(metrics.per_query.precision)[:4], abs=1e-5)
    first = dict(zip(metrics.per_query.row.tolist(), metrics.per_query.first.tolist(), strict=True))
    assert [query["first_right"] for query in data["queries"]] == [first[query["row"]] for query in data["queries"]]
    again = tmp_path / "again.json"
    from_file = ("--config", made / "config.yaml", "--features", kept, "--order", "worst", "--queries", 4, "--top", 5)
    outcome = fastreid_command("visualize", "ranks", *from_file, "--out", tmp_path / "again.png", "--json", again)
    assert outcome.code == 0, outcome.err
    shown = [[each["path"] for each in query["listed"]] for query in json.loads(again.read_text())["queries"]]
    assert shown == [[each["path"] for each in query["listed"]] for query in data["queries"]]


def test_tsne_colors_identities_and_is_the_same_again(draw, tmp_path):
    picture, data = draw("tsne", "--compare", "untrained", "--identities", 3)
    assert list(data["planes"]) == ["before training", "after training"]
    before, after = (np.array(plane["points"]) for plane in data["planes"].values())
    assert before.shape == after.shape == (len(data["images"]), 2)
    assert not np.allclose(before, after)
    pixels = {tuple(color) for color in np.unique(np.asarray(picture).reshape(-1, 3), axis=0).tolist()}
    assert [as_rgb(color) in pixels for color in PALETTE[:5]] == [True] * 3 + [False] * 2
    first = (tmp_path / "tsne.png").read_bytes()
    for path in tmp_path.glob("tsne.*"):
        path.unlink()
    draw("tsne", "--compare", "untrained", "--identities", 3)
    assert (tmp_path / "tsne.png").read_bytes() == first


def as_rgb(color: str) -> tuple[int, ...]:
    return tuple(int(color[place : place + 2], 16) for place in (1, 3, 5))


def test_experts_are_counted_as_the_router_chooses(draw, made):
    picture, data = draw("experts")
    shared, aerial, ground = data["groups"]
    assert (shared["group"], aerial["group"], ground["group"]) == ("", "aerial", "ground")
    for group in data["groups"]:
        np.testing.assert_allclose(np.sum(group["shares"], axis=0), 2, atol=1e-5)  # experts asked for an image
    assert {camera["view"] for camera in aerial["cameras"]} == {"aerial"}
    tested = load_evaluation_setup(made / "config.yaml").sets[0].records
    camera = shared["cameras"][0]["camera"]
    counts = np.zeros(3)
    own = [record for record in tested if record.camera == camera]
    for record in own:
        _, outputs = outputs_of(made, record.path, record.view.name)
        counts[outputs.features.queries.shared.experts[0].numpy()] += 1
    np.testing.assert_allclose(np.array(shared["shares"])[:, 0], counts / len(own), atol=1e-5)
    assert not data["training"]
    assert picture.width > picture.height


def test_experts_over_training_come_from_the_history_beside_the_configuration(draw, made, tmp_path):
    short, _ = draw("experts")
    for path in tmp_path.glob("experts.*"):
        path.unlink()
    with history(made):
        tall, data = draw("experts")
    assert data["training"]
    assert tall.height > short.height + 100
    assert tall.width == short.width


@contextmanager
def history(folder: Path):
    """Have a run's folder hold what it wrote down in training."""
    path = folder / "metrics.json"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in HISTORY))
    try:
        yield
    finally:
        path.unlink()


def test_the_patches_drawn_are_those_nearest_to_the_query(draw, made):
    _, data = draw("graph", "--count", 3, "--queries", 1)
    assert len(data["images"]) == 3
    for image in data["images"]:
        _, outputs = outputs_of(made, image["path"], image["view"])
        features = outputs.features
        for branch, queries in (("identity", features.queries.invariant), ("view", features.queries.specific)):
            near = torch.nn.functional.cosine_similarity(queries[0][:, None], features.encoded.patches[0][None], dim=-1)
            wanted = near.topk(3, dim=-1).indices
            assert [sorted(row) for row in image["chosen"][branch]] == [sorted(row) for row in wanted.tolist()]


def test_attention_is_of_each_image_alone(draw):
    picture, data = draw("attention", "--count", 4)
    assert [image["view"] for image in data["images"]] == ["aerial"] * 2 + ["ground"] * 2
    rows = np.array([image["attention"] for image in data["images"]])
    assert rows.shape == (4, 8)  # patches of 8 x 8 in 32 x 16
    assert ((rows > 0) & (rows < 1)).all()
    assert (rows.sum(axis=1) < 1).all()  # CLS and the view's token have the rest
    assert len(np.unique(rows.round(5), axis=0)) == 4
    assert picture.mode == "RGB"


def test_images_of_ones_own(draw, agsynth):
    paths = sorted(str(path) for path in agsynth.rglob("*.jpg"))[:2]
    _, data = draw("attention", "--images", *paths, "--view", "aerial")
    assert [image["path"] for image in data["images"]] == paths


def test_plrm_shows_its_draws(fastreid_command, agsynth, tmp_path):
    folder = next(path.parent for path in sorted(agsynth.rglob("*.jpg")))
    common = ("visualize", "plrm", "--images", folder, "--size", "32x16", "--n", 8, "--count", 2, "--draws", 3)
    for alpha in (0.5, 0):
        files = ("--out", tmp_path / f"{alpha}.png", "--json", tmp_path / f"{alpha}.json")
        outcome = fastreid_command(*common, "--alpha", alpha, *files)
        assert outcome.code == 0, outcome.err
    half, none = (json.loads((tmp_path / f"{alpha}.json").read_text()) for alpha in (0.5, 0))
    assert np.array(half["changed"]).shape == (3, 2)
    assert np.array(half["changed"]).min() > 0.1
    assert np.array(none["changed"]).max() == 0
    np.testing.assert_allclose(half["probabilities"], patch_probabilities(4, 2).numpy(), atol=1e-5)
    outcome = fastreid_command(*common[:4], "--size", "0x0", "--out", tmp_path / "none.png")
    assert_one_line(outcome, "'0x0' is not HEIGHTxWIDTH")
    for size in ("7x32", "32x7", "32x99999"):
        outcome = fastreid_command(*common[:4], "--size", size, "--n", 8, "--out", tmp_path / "none.png")
        assert_one_line(outcome, f"images of {size} should have 8 (a patch) to 2048 rows and columns")
    assert not (tmp_path / "none.png").exists()


def test_a_report_is_one_file_and_says_what_it_leaves_out(made, fastreid_command, tmp_path):
    with history(made):
        argv = ("--out", tmp_path / "run.html", "--overrides", "TEST.IMS_PER_BATCH", 8)
        outcome = fastreid_command("visualize", "report", made, "--protocol", "ALL", *argv)
    assert outcome.code == 0, outcome.err
    page = (tmp_path / "run.html").read_text()
    shown = re.findall(r'<img src="([^"]*)" alt="([^"]*)">', page)
    assert [alt for _, alt in shown] == [
        "learning curves", "Ranks, worst", "Ranks, best", "Ranks, random", "t-SNE", "Experts", "Graph", "Attention",
    ]  # fmt: skip
    for source, _ in shown:
        kind, data = source.split(",", 1)
        assert kind == "data:image/png;base64"
        Image.open(io.BytesIO(base64.b64decode(data))).verify()
    assert "http" not in re.sub(r"data:[^\"]*", "", page)
    lines = outcome.err.strip().splitlines()
    assert [line.split(":")[1].strip() for line in lines] == ["Summary left out", "Results left out"]
    assert page.count("Left out: ") == 2


class Terminal(io.StringIO):
    """Standard error as a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_report_shows_which_part_is_made(made, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with history(made):
        (tmp_path / "config.yaml").write_text((made / "config.yaml").read_text())
        (tmp_path / "metrics.json").write_text((made / "metrics.json").read_text())
    report_page(tmp_path)  # without a checkpoint, whose pictures take a while
    shown = sys.stderr.getvalue()
    assert all(f"{title}:" in shown for title in ("Summary", "Training", "Pictures"))
    assert "/4 [" in shown


def test_passes_over_the_test_set_show_how_many_images_are_done(made, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    subject = Subject(Extractor.from_config(*model(made)[1::2]), load_evaluation_setup(made / "config.yaml"))
    images = len(subject.features.records)
    assert f"extracting:   0%|          | 0/{images} [" in sys.stderr.getvalue()
    draw_expert_shares(subject)
    assert re.search(rf"asking experts: .*/{images} \[", sys.stderr.getvalue())


def test_the_first_picture_is_of_any_queries(draw, made, tmp_path):
    _, data = draw("ranks", "--queries", 4, "--top", 2)
    assert data["order"] == "random"
    (tmp_path / "ranks.png").unlink()
    (tmp_path / "ranks.json").unlink()
    _, others = draw("ranks", "--queries", 4, "--top", 2, "--seed", 1)
    assert [query["row"] for query in data["queries"]] != [query["row"] for query in others["queries"]]


def test_a_report_of_no_run_is_refused(fastreid_command, tmp_path):
    (tmp_path / "program.py").write_text("raise SystemExit('this ran')")
    for folder in (tmp_path, tmp_path / "program.py"):
        outcome = fastreid_command("visualize", "report", folder, "--out", tmp_path / "no.html")
        assert_one_line(outcome, "is no run's folder")
    assert_one_line(fastreid_command("visualize", "report", tmp_path / "x", "--out", tmp_path / "no.html"), "no 'x' in")
    assert not (tmp_path / "no.html").exists()


def test_what_a_model_does_not_have_is_said_in_one_line(config_file, fastreid_command, tmp_path):
    resnet = build_model(load_config(config_file, [*RESNET, "MODEL.HEADS.NUM_CLASSES", "8", "MODEL.DEVICE", "cpu"]))
    torch.save({"model": resnet.state_dict()}, tmp_path / "resnet.pth")
    common = ("--config", config_file, "--weights", tmp_path / "resnet.pth", "--out", tmp_path / "no.png")
    for name, words in (("experts", "no experts"), ("graph", "chooses no patches"), ("attention", "no vision transf")):
        assert_one_line(fastreid_command("visualize", name, *common, *RESNET), "Baseline", words)
    assert not (tmp_path / "no.png").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("ranks", "--protocol", "A2Q"), "protocol 'A2Q' unknown"),
        (("ranks", "--top", 0), "--top is 0"),
        (("ranks", "--queries", 100, "--top", 100), "400 images at most"),
        (("ranks", "--order", "wurst"), "did you mean worst"),
        (("tsne", "--identities", 9), "1 to 8"),
        (("tsne", "--seed", -1), "--seed is -1"),
        (("attention", "--count", 51), "50 images at most"),
        (("graph", "--images", "nowhere.jpg"), "nowhere.jpg"),
    ],
)
def test_bad_input_is_one_line(argv, words, made, fastreid_command, tmp_path):
    outcome = fastreid_command("visualize", *argv, *model(made), "--out", tmp_path / "x.png")
    assert_one_line(outcome, words)
    assert not (tmp_path / "x.png").exists()


def test_no_file_is_replaced(made, fastreid_command, tmp_path):
    for name, ending in (("ranks", "png"), ("report", "html")):
        path = tmp_path / f"kept.{ending}"
        path.write_text("mine")
        argv = (made,) if name == "report" else model(made)
        assert_one_line(fastreid_command("visualize", name, *argv, "--out", path), "exists already")
        assert path.read_text() == "mine"
    assert_one_line(fastreid_command("visualize", "ranks", *model(made), "--out", tmp_path / "a.jpg"), ".png")
