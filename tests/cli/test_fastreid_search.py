"""`fastreid search` with a tiny TAG-CLIP: what it finds, shows and keeps, and the lines about bad input."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import assert_one_line
from fastreid.modeling import build_model
from PIL import Image
from small_text import SHAPE

from agreid_plugin.data.captions import clean
from agreid_plugin.data.images import read_image
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data.transforms import build_transforms
from agreid_plugin.nn.clip import Tokenizer
from agreid_plugin.types import View

SETTINGS = {
    "MODEL": {
        "META_ARCHITECTURE": "TAGCLIP",
        "DEVICE": "cpu",
        "BACKBONE": {"NAME": "build_clip_backbone", "STRIDE_SIZE": [8, 8]},
        "CLIP": {**SHAPE, "PATCH_SIZE": 8},
        "TAG_CLIP": {"AT": [1], "TSE_WIDTH": 10},
        "LOSSES": {"NAME": []},
    },
    "INPUT": {"SIZE_TRAIN": [32, 16], "SIZE_TEST": [32, 16]},
    "DATASETS": {"NAMES": ["TAG_PEDES"], "TESTS": ["TAG_PEDES"]},
    "DATALOADER": {"NUM_WORKERS": 0},
    "TEST": {"IMS_PER_BATCH": 4},
}
TEXT = "A woman in a red coat, carrying a backpack."
IMAGES = 10


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with a configuration, weights that send half of the images to each view, and images at any depth."""
    root = tmp_path_factory.mktemp("search")
    (root / "tiny.yml").write_text(yaml.safe_dump(SETTINGS))
    random = np.random.default_rng(0)
    for number in range(IMAGES):
        folder = root / "crops" / ("" if number % 2 else f"deep/{number}")
        folder.mkdir(parents=True, exist_ok=True)
        noise = random.integers(0, 256, size=(32, 16, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    (root / "crops" / "read me.txt").write_text("no image")
    model = build(root)
    halve_views(model, root)
    torch.save({"model": model.state_dict()}, root / "w.pth")
    return root


def build(root: Path):
    torch.manual_seed(0)
    return build_model(load_config(root / "tiny.yml", ["MODEL.HEADS.NUM_CLASSES", "3"])).eval()


def trained(root: Path):
    """The model with the weights of the file."""
    model = build(root)
    model.load_state_dict(torch.load(root / "w.pth")["model"])
    return model


def embedded(model, text: str) -> torch.Tensor:
    return model.encode_texts(Tokenizer(77)(clean(text)).unsqueeze(0)).embedding[0]


def pixels(root: Path) -> tuple[list[str], torch.Tensor]:
    cfg = load_config(root / "tiny.yml")
    paths = sorted(str(path) for path in (root / "crops").rglob("*.png"))
    return paths, torch.stack([build_transforms(cfg, is_train=False)(read_image(path)) for path in paths])


@torch.no_grad()
def halve_views(model, root: Path) -> None:
    (block,) = (module for module in model.modules() if hasattr(module, "image_router"))
    block.image_router.weight.normal_()
    (routed,) = model.infer(pixels(root)[1]).images.routed
    block.image_router.bias[0] -= (routed.logits[:, 0] - routed.logits[:, 1]).median() + 1e-4


@pytest.fixture
def search(made, fastreid_command):
    """Run the command with the tiny model; a later option replaces an earlier one."""

    def run(*argv: object, text=("--text", TEXT)):
        common = ("--config", made / "tiny.yml", "--weights", made / "w.pth", "--gallery", made / "crops")
        return fastreid_command("search", *common, *text, *argv)

    return run


@torch.no_grad()
def expected(made: Path, text: str) -> list[tuple[str, float, str]]:
    """Path, score and view of every image, best first, from the model itself."""
    model = trained(made)
    paths, images = pixels(made)
    outputs = model.infer(images)
    views = [View(int(view)).name.lower() for view in outputs.images.routed[0].views]
    scores = (outputs.images.embedding @ embedded(model, text)).tolist()
    return sorted(zip(paths, scores, views, strict=True), key=lambda row: -row[1])


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.strip()[:1].isdigit()]


def test_images_are_ranked_by_the_sentence(search, made):
    outcome = search("--top", 4)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith(f'"{TEXT}"\n  rank')
    wanted = expected(made, TEXT)[:4]
    for number, (row, (path, score, view)) in enumerate(zip(rows(outcome.out), wanted, strict=True), start=1):
        assert row == [str(number), row[1], view, path]
        assert float(row[1]) == pytest.approx(score, abs=2e-4)


def test_flip_testing_is_that_of_an_evaluation(search, made, tmp_path):
    outcome = search("--json", tmp_path / "f.json", "TEST.FLIP.ENABLED", "True")
    assert outcome.code == 0, outcome.err
    scores = {hit["path"]: hit["score"] for hit in hits(tmp_path / "f.json")}
    model = trained(made)
    paths, images = pixels(made)
    with torch.no_grad():
        mean = (model(images) + model(images.flip(3))) / 2
        wanted = torch.nn.functional.normalize(mean, dim=1) @ embedded(model, TEXT)
    assert [scores[path] for path in paths] == pytest.approx(wanted.tolist(), abs=1e-5)


def hits(path: Path, query: int = 0) -> list[dict]:
    return json.loads(path.read_text())["answers"][query]["hits"]


def test_several_sentences_and_all_files(search, made, tmp_path):
    (tmp_path / "wanted.txt").write_text(f"{TEXT}\n\n  a man & a <dog>\n")
    files = [tmp_path / name for name in ("f.html", "f.png", "f.json")]
    outcome = search(
        *("--html", files[0], "--picture", files[1], "--json", files[2], "--top", 3),
        text=("--texts", tmp_path / "wanted.txt"),
    )
    assert outcome.code == 0, outcome.err
    assert f"written: {files[2]}, {files[0]}, {files[1]}" in outcome.out
    told = json.loads(files[2].read_text())
    assert told["gallery"] == str(made / "crops")
    assert [answer["query"] for answer in told["answers"]] == [TEXT, "a man & a <dog>"]
    for number, text in enumerate((TEXT, "a man & a <dog>")):
        assert [hit["path"] for hit in hits(files[2], number)] == [path for path, *_ in expected(made, text)[:3]]
    html = files[0].read_text()
    assert html.count("<img ") == 6
    assert "a man &amp; a &lt;dog&gt;" in html
    with Image.open(files[1]) as sheet:
        assert sheet.format == "PNG"

    both = search(text=("--text", "a man", "--text", TEXT))
    assert both.out.count("rank") == 2
    assert rows(both.out)[IMAGES][-1] == expected(made, TEXT)[0][0]


@pytest.mark.parametrize("view", ["aerial", "ground"])
def test_a_view_keeps_the_images_that_the_router_takes_for_it(search, made, view):
    wanted = [path for path, _, own in expected(made, TEXT) if own == view]
    assert 0 < len(wanted) < IMAGES
    found = rows(search("--view", view).out)
    assert [row[-1] for row in found] == wanted
    assert {row[2] for row in found} == {view}


def test_a_model_without_a_view_router(search, made, tmp_path):
    settings = yaml.safe_load((made / "tiny.yml").read_text())
    settings["MODEL"]["TAG_CLIP"] |= {"BLOCK": "vit", "TSE": False, "VIEW_LOSS": False, "ORTHO_LOSS": False}
    (tmp_path / "tbps.yml").write_text(yaml.safe_dump(settings))
    model = build_model(load_config(tmp_path / "tbps.yml", ["MODEL.HEADS.NUM_CLASSES", "3"]))
    torch.save({"model": model.state_dict()}, tmp_path / "w.pth")
    other = ("--config", tmp_path / "tbps.yml", "--weights", tmp_path / "w.pth")
    outcome = search(*other)
    assert outcome.code == 0, outcome.err
    assert len(rows(outcome.out)) == IMAGES
    assert "view" not in outcome.out
    assert_one_line(search(*other, "--view", "aerial"), "--view needs a model that learned to predict views", "hr_moe")


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("red " * 60 + "counterrevolutionaries " * 20, "more than 77 tokens: its end was not read"),
        ("blue " * 200, "more than 77 tokens"),
        ("穿红色外套的女人", "no word that CLIP knows"),
        ("a qzxwvk", "no word that CLIP knows"),
        (TEXT, None),
    ],
)
def test_a_sentence_that_is_not_understood_is_told(search, text, note):
    outcome = search("--top", 1, text=("--text", text))
    assert outcome.code == 0, outcome.err
    notes = [line for line in outcome.out.splitlines() if line.startswith("note: ")]
    assert len(notes) == (note is not None)
    assert not note or note in notes[0]


@pytest.fixture
def copied(made, tmp_path) -> Path:
    """Images that a test may change."""
    return shutil.copytree(made / "crops", tmp_path / "crops")


def test_a_second_search_reads_no_image_again(search, copied, tmp_path, opened):
    cached = ("--gallery", copied, "--cache", tmp_path / "c.npz")
    first = search(*cached)
    assert first.code == 0, first.err
    assert len(opened) == IMAGES
    assert search(*cached).out == first.out
    assert len(opened) == IMAGES
    assert search(*cached, "--view", "aerial", text=("--text", "a man")).code == 0
    assert len(opened) == IMAGES

    changed, added, removed = copied / "1.png", copied / "new.png", copied / "3.png"
    os.utime(changed, ns=(1, 1))
    shutil.copy(copied / "5.png", added)
    removed.unlink()
    opened.clear()
    outcome = search(*cached, "--top", 99)
    assert sorted(opened) == [str(changed), str(added)]
    assert len(rows(outcome.out)) == IMAGES
    assert str(removed) not in outcome.out


def test_other_weights_or_settings_make_the_cache_anew(search, made, copied, tmp_path, opened):
    cached = ("--gallery", copied, "--cache", tmp_path / "c.npz")
    first = search(*cached)
    stored = torch.load(made / "w.pth")
    next(value for name, value in stored["model"].items() if name.endswith("conv1.weight")).mul_(2)
    torch.save(stored, tmp_path / "w.pth")
    other = ("--weights", tmp_path / "w.pth")
    opened.clear()
    outcome = search(*cached, *other)
    assert len(opened) == IMAGES
    assert f"{tmp_path / 'c.npz'} is of other weights or another configuration: made anew" in outcome.err
    assert outcome.out != first.out
    opened.clear()
    shutil.copy(tmp_path / "w.pth", tmp_path / "same.pth")
    assert search(*cached, "--weights", tmp_path / "same.pth").out == outcome.out
    assert opened == []
    assert search(*cached, *other, "TEST.FLIP.ENABLED", "True").code == 0
    assert len(opened) == IMAGES


def test_bad_images_are_named_and_skipped_if_asked(search, copied, tmp_path, opened):
    (copied / "4bad.jpg").write_text("no picture")
    (copied / "0bad.png").write_bytes((copied / "1.png").read_bytes()[:200])
    (copied / "nowhere.png").symlink_to(tmp_path / "gone.png")
    cached = ("--gallery", copied, "--cache", tmp_path / "c.npz")
    outcome = search(*cached)
    assert_one_line(outcome, "2 images cannot be read", "0bad.png", "4bad.jpg", "--skip-bad-images")  # of a batch
    outcome = search(*cached, "--skip-bad-images")
    assert outcome.code == 0, outcome.err
    assert len(rows(outcome.out)) == IMAGES
    (line,) = outcome.err.strip().splitlines()
    assert line.startswith("fastreid: left out: 3 images cannot be read: ")
    assert all(name in line for name in ("0bad.png", "4bad.jpg", "nowhere.png"))
    opened.clear()
    assert search(*cached, "--skip-bad-images").code == 0
    assert len(opened) == 3  # perhaps they were put right


def test_images_of_odd_names_are_refused_or_left_out(search, copied):
    for name in ("a\nb.png", "c\udcff.png"):
        shutil.copy(copied / "1.png", copied / name)
    outcome = search("--gallery", copied)
    assert_one_line(outcome, "2 images cannot be kept", r"a\nb.png", r"c\udcff.png", "--skip-bad-images")
    outcome = search("--gallery", copied, "--skip-bad-images")
    assert outcome.code == 0, outcome.err
    assert len(rows(outcome.out)) == IMAGES
    (line,) = outcome.err.strip().splitlines()
    assert line.startswith("fastreid: left out: 2 images cannot be kept by a name with ")
    assert line.endswith(rf"a\nb.png, {copied}/c\udcff.png")


def test_frames_are_counted_in_the_gallery_and_noted_of_a_query(search, copied):
    for name in ("x.png", "y.png"):
        Image.new("RGB", (160, 90)).save(copied / name)
    outcome = search("--gallery", copied, "--top", 1, text=("--image", copied / "x.png"))
    assert outcome.code == 0, outcome.err
    (line,) = outcome.err.strip().splitlines()
    assert line.startswith(f"fastreid: much wider than tall, like a camera's frame: 2 of {IMAGES + 2} images, ")
    assert "note: the image is much wider than tall, like a camera's frame; an image counts as one" in outcome.out


def test_what_was_extracted_before_a_bad_image_is_kept(search, copied, tmp_path, opened):
    (copied / "zz.jpg").write_text("no picture")  # in the last batch
    cached = ("--gallery", copied, "--cache", tmp_path / "c.npz")
    assert_one_line(search(*cached), "zz.jpg")
    opened.clear()
    assert search(*cached, "--skip-bad-images").code == 0
    assert len(opened) == IMAGES + 1 - 8


def test_only_bad_images(search, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.jpg").write_text("no picture")
    outcome = search("--gallery", tmp_path / "bad", "--skip-bad-images")
    assert_one_line(outcome, "1 image cannot be read", "no other image is in the gallery")
    (tmp_path / "bad" / "a.jpg").rename(tmp_path / "bad" / "a\n.jpg")
    outcome = search("--gallery", tmp_path / "bad", "--skip-bad-images")
    assert_one_line(outcome, "1 image cannot be kept", r"a\n.jpg", "no other image is in the gallery")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--gallery", "{tmp}/nowhere"], ["nowhere' in"]),
        (["--gallery", "{tmp}/empty"], ["has no images in it"]),
        (["--gallery", "{tmp}/kept.html"], ["is no folder"]),
        (["--weights", "{tmp}/no.pth"], ["weight file", "no.pth' does not exist", "--weights"]),
        (["--weights", "{tmp}/other.pth"], ["made for another model or configuration"]),
        (["--weights", "{tmp}/part.pth"], ["nothing for 1 of the model's tensors (image_local"]),
        (["--top", "0"], ["--top is 0"]),
        (["--top", "many"], ["--top", "many"]),
        (["--top", "5000", "--picture", "{tmp}/f.png"], ["--picture draws 1000 images at most, not 5000"]),
        (["--view", "areal"], ["--view", "did you mean aerial?"]),
        (["--html", "{tmp}/kept.html"], ["--html", "kept.html exists already"]),
        (["--html", "{tmp}/no/f.html"], ["its folder does not exist"]),
        (["--picture", "{tmp}/f.jpg"], ["end its name with .png"]),
        (["--json", "{tmp}/f.txt"], ["end its name with .json"]),
        (["--cache", "{tmp}/mine.npz"], ["mine.npz is no cache of gallery features"]),
        (["--camera", "3"], ["--camera: unknown for the images of a folder; build an index"]),
        (["--query-view", "aerial"], ["--query-view is of --image"]),
        (["--batch-size", "0"], ["--batch-size is 0"]),
        (["--device", "tpu"], ["device 'tpu' unknown"]),
        (["--device", "cuda:7"], ["device cuda:7 is not there"]),
        (["--texts", "x.txt"], ["not allowed with argument --text"]),
    ],
)
def test_bad_input_is_one_line(search, made, tmp_path, argv, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "kept.html").write_text("kept")
    (tmp_path / "mine.npz").write_text("mine")
    torch.save({"model": {"a": torch.ones(2)}}, tmp_path / "other.pth")
    stored = torch.load(made / "w.pth")["model"]
    stored.pop(next(name for name in stored if name.startswith("image_local")))
    torch.save({"model": stored}, tmp_path / "part.pth")
    assert_one_line(search(*[part.format(tmp=tmp_path) for part in argv]), *words)
    assert (tmp_path / "kept.html").read_text() == "kept"
    assert (tmp_path / "mine.npz").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (["--text", " "], ["--text is empty"]),
        (["--text", "a man", "--text", "?! ..."], ["'?! ...' has no words"]),
        (["--texts", "{tmp}/blank.txt"], ["blank.txt is empty"]),
        (["--texts", "{tmp}/no.txt"], ["no.txt", "does not exist"]),
        ([], ["--text", "--texts", "required"]),
    ],
)
def test_empty_sentences_are_refused(search, tmp_path, text, words):
    (tmp_path / "blank.txt").write_text("\n \n")
    assert_one_line(search(text=[part.format(tmp=tmp_path) for part in text]), *words)
