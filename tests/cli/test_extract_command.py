"""`fastreid extract`: what the file has, going on after an interruption, and the lines about bad input."""

import json
import shutil
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from conftest import assert_one_line, interrupted_after
from PIL import Image
from small_gallery import gallery_records, make_table, make_visa

from agreid_plugin import Extractor
from agreid_plugin.inference import extraction
from agreid_plugin.retrieval.feature_files import read_features

COUNT = 20


@pytest.fixture(scope="module")
def made(tmp_path_factory, agsynth) -> Path:
    """A model, 20 images in a folder of their own, and a table of them."""
    folder = tmp_path_factory.mktemp("extract")
    make_visa(folder, agsynth)
    (folder / "crops").mkdir()
    records = gallery_records(agsynth)[:COUNT]
    for record in records:
        shutil.copy(record.path, folder / "crops")
    make_table(folder / "crops.csv", records)
    return folder


@pytest.fixture
def extract(made, fastreid_command, tmp_path, monkeypatch):
    """Run the command with the tiny model, 8 images a part; a later option replaces an earlier one."""
    monkeypatch.setattr(extraction, "CHUNK", 8)

    def run(*argv: object, out="f.npz", images=made / "crops.csv"):
        common = ("--config", made / "visa.yml", "--weights", made / "visa.pth", "--batch-size", 4)
        return fastreid_command("extract", *common, "--images", images, "--out", tmp_path / out, *argv)

    return run


def test_an_npz_has_features_and_what_the_table_says(extract, made, agsynth, tmp_path):
    outcome = extract()
    assert outcome.code == 0, outcome.err
    assert outcome.out == f"{tmp_path / 'f.npz'}: 20 images, features 32 wide\n"
    assert outcome.err == ""
    records = gallery_records(agsynth)[:COUNT]
    found = np.load(tmp_path / "f.npz")
    assert found["path"].tolist() == [record.path for record in records]
    assert found["view"].tolist() == [record.view.name.lower() for record in records]
    assert found["camera"].tolist() == [record.camera for record in records]
    assert found["pid"].tolist() == [record.pid for record in records]
    assert found["time"][2] == datetime(2026, 5, 3, 10, tzinfo=timezone.utc).timestamp()
    assert json.loads(found["tags"][1]) == {"weather": "rain"}
    visa = Extractor.from_config(made / "visa.yml", made / "visa.pth")
    wanted = visa([record.path for record in records], [record.view for record in records])
    np.testing.assert_allclose(found["features"], wanted, atol=3e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.npz"]


def test_a_parquet_file_has_the_same(extract, tmp_path):
    assert extract().code == extract(out="f.parquet").code == 0
    table = pq.read_table(tmp_path / "f.parquet")
    found = np.load(tmp_path / "f.npz")
    assert table["path"].to_pylist() == found["path"].tolist()
    np.testing.assert_array_equal(np.array(table["features"].to_pylist(), np.float32), found["features"])
    makers, entries = [], []
    for name in ("f.npz", "f.parquet"):
        fingerprint, chunks = read_features(tmp_path / name)
        makers.append(fingerprint)
        entries.append([entry for chunk in chunks for entry in chunk.entries])
    assert makers[0] == makers[1] != ""
    assert entries[0] == entries[1]
    assert len(entries[0]) == COUNT


def test_a_folder_has_views_that_the_model_tells(extract, made, tmp_path):
    outcome = extract("--raw", images=made / "crops")
    assert outcome.code == 0, outcome.err
    assert outcome.err == "fastreid: the views of 20 images are what the model takes them for\n"
    found = np.load(tmp_path / "f.npz")
    assert set(found["view"]) == {"aerial", "ground"}
    assert set(found["camera"]) == {-1}
    assert np.isnan(found["time"]).all()
    raw = Extractor.from_config(made / "visa.yml", made / "visa.pth", normalize=False)
    np.testing.assert_allclose(found["features"], raw(made / "crops"), atol=2e-4)


def test_a_dataset_tells_identity_camera_and_view(extract, agsynth, tmp_path):
    outcome = extract("--dataset", "CARGO", images=agsynth)
    assert outcome.code == 0, outcome.err
    assert "fastreid: CARGO: 36 images of split gallery (--splits chooses)\n" in outcome.err
    _, chunks = read_features(tmp_path / "f.npz")
    entries = [entry for chunk in chunks for entry in chunk.entries]
    known = {entry.path: (entry.pid, entry.camera, entry.view) for entry in entries}
    assert known == {record.path: (record.pid, record.camera, record.view) for record in gallery_records(agsynth)}


def test_an_interrupted_command_goes_on(extract, tmp_path, opened):
    with interrupted_after(18):
        outcome = extract()
    assert (outcome.code, outcome.err) == (130, "fastreid: interrupted\n")
    assert not (tmp_path / "f.npz").exists()
    assert extract().code == 0
    assert len(opened) == COUNT - 16  # two parts were done
    first = np.load(tmp_path / "f.npz")["features"]
    assert extract(out="at_once.npz").code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "at_once.npz")["features"], first)


def test_other_weights_do_not_go_on_with_what_is_there(extract, made, tmp_path, opened):
    shutil.copytree(made / "crops", tmp_path / "crops")
    (tmp_path / "crops" / "z.jpg").write_text("no picture")
    assert_one_line(extract(images=tmp_path / "crops"), "1 image cannot be read", "z.jpg", "--skip-bad-images")
    assert (tmp_path / "f.npz.parts").is_dir()
    stored = torch.load(made / "visa.pth")
    for value in stored["model"].values():
        value += 0.01 if value.is_floating_point() else 0
    torch.save(stored, tmp_path / "other.pth")
    opened.clear()
    outcome = extract("--weights", tmp_path / "other.pth", "--skip-bad-images", images=tmp_path / "crops")
    assert outcome.code == 0, outcome.err
    assert len(opened) == COUNT + 1
    lines = outcome.err.splitlines()
    assert lines[0].endswith("f.npz.parts had parts of other images, weights or settings: made anew")
    assert lines[1].startswith("fastreid: the views of 20 images")
    assert lines[2].startswith("fastreid: left out: 1 image cannot be read: ")
    assert outcome.out.endswith(": 20 images, features 32 wide\n")


def test_images_of_odd_names_are_refused_or_left_out(extract, made, tmp_path):
    shutil.copytree(made / "crops", tmp_path / "crops")
    for name in ("a\nb.png", "c\udcff.png"):
        shutil.copy(next((made / "crops").iterdir()), tmp_path / "crops" / name)
    assert_one_line(extract(images=tmp_path / "crops"), "2 images", r"a\nb.png", r"c\udcff.png", "--skip-bad-images")
    outcome = extract("--skip-bad-images", images=tmp_path / "crops")
    assert outcome.code == 0, outcome.err
    assert outcome.out.endswith(": 20 images, features 32 wide\n")
    line = outcome.err.splitlines()[0]
    assert line.startswith("fastreid: left out: 2 images cannot be kept by a name with ")
    assert line.endswith(rf": {tmp_path}/crops/a\nb.png, {tmp_path}/crops/c\udcff.png")


def test_frames_are_counted_in_one_line(extract, made, tmp_path):
    shutil.copytree(made / "crops", tmp_path / "crops")
    for name in ("x.jpg", "y.jpg"):
        Image.new("RGB", (160, 90)).save(tmp_path / "crops" / name)
    outcome = extract(images=tmp_path / "crops")
    assert outcome.code == 0, outcome.err
    (line,) = [line for line in outcome.err.splitlines() if "like a camera's frame" in line]
    assert line.startswith(f"fastreid: much wider than tall, like a camera's frame: 2 of {COUNT + 2} images, ")
    assert "x.jpg" in line
    assert "cut people out of frames first" in line


def test_nothing_is_overwritten_unless_asked(extract, tmp_path):
    (tmp_path / "f.npz").write_text("mine")
    assert_one_line(extract(), "f.npz exists already", "--force")
    assert (tmp_path / "f.npz").read_text() == "mine"
    assert extract("--force").code == 0
    assert len(np.load(tmp_path / "f.npz")["path"]) == COUNT


@pytest.mark.parametrize(
    ("argv", "options", "words"),
    [
        ([], {"out": "f.csv"}, ["end with .npz or .parquet"]),
        ([], {"out": "no/f.npz"}, ["its folder does not exist"]),
        ([], {"images": "nowhere"}, ["nowhere does not exist"]),
        (["--dataset", "CARGOO"], {}, ["CARGOO", "did you mean CARGO?"]),
        (["--weights", "no.pth"], {}, ["no.pth' does not exist"]),
        (["MODEL.VUE", "given"], {}, ["MODEL.VUE unknown"]),
        (["--batch-size", "0"], {}, ["--batch-size is 0"]),
    ],
)
def test_bad_input_is_one_line(extract, argv, options, words):
    assert_one_line(extract(*argv, **options), *words)


def test_only_bad_images(extract, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/a.jpg").write_text("no picture")
    assert_one_line(extract("--skip-bad-images", images=tmp_path / "bad"), "f.npz would be empty")
    assert not (tmp_path / "f.npz").exists()
