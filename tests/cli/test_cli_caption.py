"""`fastreid data caption`: images in, TAG-PEDES's annotations out."""

import json
from pathlib import Path

import pytest
from caption_server import numbered, press_ctrl_c, serve
from conftest import Outcome, assert_one_line
from PIL import Image

from agreid_plugin.cli import main
from agreid_plugin.data.datasets import load
from agreid_plugin.synth import make_agsynth

pytestmark = pytest.mark.usefixtures("without_proxy")


@pytest.fixture
def crops(tmp_path) -> Path:
    """Four images of two people, all different."""
    folder = tmp_path / "crops"
    folder.mkdir()
    for number, name in enumerate(["1_c1.png", "1_c2.png", "2_c1.png", "2_c2.png"]):
        Image.new("RGB", (4, 8), (0, 60 * number, 0)).save(folder / name)
    return folder


@pytest.fixture
def command(capfd, crops, tmp_path):
    """Run the command on the images, with what a test adds; it needs no fast-reid."""

    def run(*arguments: object, source: tuple[object, ...] = ("--images", crops)) -> Outcome:
        capfd.readouterr()
        fixed = ["data", "caption", "--out", tmp_path / "captions.json", "--retries", 1, "--backoff", 0.01]
        code = main([str(argument) for argument in (*fixed, *source, *arguments)])
        return Outcome(code, *capfd.readouterr())

    return run


def at(model) -> list[object]:
    return ["--endpoint", model.url, "--model", "vlm"]


def captions(tmp_path) -> list[dict]:
    return json.loads((tmp_path / "captions.json").read_text())


def test_a_run_ends_with_a_table_and_three_files_become_two(command, tmp_path):
    with serve() as model:
        outcome = command(*at(model), "--aerial-cameras", 1)
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[0].split() == ["images", "4"]
    assert "captions in " in outcome.out
    assert [(entry["file_path"], entry["id"], entry["cam_id"]) for entry in captions(tmp_path)] == [
        ("1_c1.png", 1, 0),
        ("1_c2.png", 1, 1),
        ("2_c1.png", 2, 0),
        ("2_c2.png", 2, 1),
    ]
    assert json.loads((tmp_path / "captions.json.report.json").read_text())["captions"] == 8
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "captions.json",
        "captions.json.report.json",
    ]
    with serve() as model:
        assert_one_line(command(*at(model)), "captions.json exists and is not overwritten")
    assert not model.requests


def test_a_dataset_brings_identities_views_and_attributes(command, tmp_path):
    make_agsynth(tmp_path, ids=4, images_per_id=8, size=(32, 16), layout="cp2108", workers=1, progress=False)
    source = ("--dataset", "cp2108", "--root", tmp_path, "--splits", "train")
    outcome = command("--out", tmp_path / "train_reid.json", "--backend", "attributes", source=source)
    assert outcome.code == 0, outcome.err
    ours = load("TAG-PEDES", tmp_path)
    theirs = load("CP2108", tmp_path).split("train")
    assert [(r.path, r.pid, r.view) for r in ours.records] == [(r.path, r.pid, r.view) for r in theirs]
    assert all(len(record.captions) == 2 for record in ours.records)
    report = json.loads((tmp_path / "train_reid.json.report.json").read_text())
    assert report["flags"]["contradiction"] == report["flags"]["viewpoint"] == 0
    assert report["mean_words"] > 15


def test_a_dry_run_asks_nobody(command, tmp_path):
    outcome = command("--dry-run", "--limit", 2)
    assert outcome.code == 0, outcome.err
    lines = (tmp_path / "captions.json.prompts.jsonl").read_text().splitlines()
    assert [json.loads(line)["file_path"] for line in lines] == ["1_c1.png"] * 2 + ["2_c1.png"] * 2
    assert outcome.out.strip().endswith("captions.json.prompts.jsonl")


def test_ctrl_c_says_how_to_continue(command, tmp_path):
    def reply(number, body):
        if number == 3:
            press_ctrl_c()
        return numbered(number, body)

    with serve(reply) as model:
        outcome = command(*at(model), "--concurrency", 1)
        assert outcome.code == 130
        last = outcome.err.strip().splitlines()[-1]
        assert last.startswith("fastreid: interrupted; 3 captions are kept in ")
        assert last.endswith("the same command continues from there")
        assert_one_line(command(*at(model), "--seed", 1), "begun with seed 0, not 1")
        assert command(*at(model)).code == 0
    assert len(model.requests) == len(set(model.questions)) == 8
    assert [len(entry["captions"]) for entry in captions(tmp_path)] == [2] * 4


def test_the_key_comes_from_the_environment_and_stays_there(command, tmp_path, monkeypatch):
    with serve() as model:
        assert_one_line(command(*at(model), "--api-key-env", "CAPTION_KEY"), "CAPTION_KEY is not set")
        monkeypatch.setenv("CAPTION_KEY", "secret")
        assert command(*at(model), "--api-key-env", "CAPTION_KEY", "--request", '{"temperature": 0.5}').code == 0
    assert {headers["Authorization"] for headers in model.headers} == {"Bearer secret"}
    assert {request["temperature"] for request in model.requests} == {0.5}
    assert not any("secret" in path.read_text() for path in tmp_path.glob("captions*"))


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((401, "bad key"), ["HTTP 401: bad key", "--api-key-env"]),
        ((404, "no model vlm"), ["HTTP 404: no model vlm", "--model"]),
        ((500, "oops"), ["/chat/completions gave no usable answer in 2 tries: HTTP 500: oops"]),
        ((200, "<html>"), ["not the JSON of a chat completion: <html>"]),
        ((400, "too big"), ["refuses every question, HTTP 400: too big"]),
    ],
)
def test_an_endpoint_that_is_none_is_one_line(command, tmp_path, reply, words):
    with serve(lambda *_: reply) as model:
        assert_one_line(command(*at(model)), *words)
    assert not list(tmp_path.glob("captions*"))


def test_nobody_at_the_address(command):
    with serve() as model:
        pass
    assert_one_line(command(*at(model)), model.url, "Connection refused")


def test_unreadable_and_small_images(command, crops, tmp_path):
    (crops / "1_c2.png").write_bytes(b"rubbish")
    Image.new("RGB", (2, 2)).save(crops / "2_c2.png")
    (crops / "1_c3_\udcff.png").write_bytes((crops / "1_c1.png").read_bytes())
    with serve() as model:
        assert_one_line(
            command(*at(model)),
            r"2 of 5 images cannot be read, first 1_c3_\udcff.png: its name is not UTF-8",
            "--skip-bad-images",
        )
        assert not model.requests
        assert command(*at(model), "--skip-bad-images", "--min-pixels", 4).code == 0
    assert [entry["file_path"] for entry in captions(tmp_path)] == ["1_c1.png", "2_c1.png"]
    left_out = json.loads((tmp_path / "captions.json.report.json").read_text())["left_out"]
    assert left_out[r"1_c3_\udcff.png"] == "its name is not UTF-8"
    assert left_out["2_c2.png"] == "too small"
    assert left_out["1_c2.png"].startswith("unreadable image")


def test_people_without_attributes_are_left_to_a_model(command, tmp_path):
    table = tmp_path / "people.csv"
    table.write_text("id,gender,Upper Clothing,Upper Color,shoes\n2,male,coat,red,boots\n")
    assert_one_line(command("--backend", "attributes"), "none of the 4 images is left: no attributes")
    assert command("--backend", "attributes", "--attributes", table).code == 0
    assert {entry["id"] for entry in captions(tmp_path)} == {2}
    assert all("a red coat and boots" in text for entry in captions(tmp_path) for text in entry["captions"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--strategy", "promt", "--dry-run"], ["'promt' unknown (did you mean prompt?)"]),
        (["--strategy", "attribute", "--dry-run"], ["1_c1.png: strategy 'attribute' needs attributes"]),
        ([], ["--endpoint URL --model NAME", "--backend attributes"]),
        (["--endpoint", "localhost:1", "--model", "m"], ["'localhost:1' is no address"]),
        (["--endpoint", "http://h/v1", "--model", "m", "--request", "[1]"], ["--request '[1]' has to be an object"]),
        (["--endpoint", "http://h/v1", "--model", "m", "--request", "{"], ["--request '{' is not JSON"]),
        (["--endpoint", "http://h/v1", "--model", "m", "--timeout", "0"], ["--timeout=0.0"]),
        (["--endpoint", "http://h/v1", "--model", "m", "--concurrency", "0"], ["concurrency is 0"]),
        (["--endpoint", "http://h/v1", "--model", "m", "--min-words", "90"], ["captions of 90 to 77 words"]),
        (["--dry-run", "--pattern", "x"], ["pattern 'x' has no group named pid"]),
        (["--dry-run", "--identity-folders"], ["4 of 4 names"]),
        (["--dry-run", "--splits", "trian"], ["split 'trian' unknown (did you mean train?)"]),
        (["--dry-run", "--splits", "query"], ["no image of split query; folder has train"]),
        (["--dry-run", "--attributes", "nowhere.csv"], ["nowhere.csv does not exist"]),
        (["--dry-run", "--root", "x"], ["--dataset and --root belong together"]),
    ],
)
def test_bad_input_is_one_line(command, arguments, words):
    assert_one_line(command(*arguments), *words)


def test_images_have_to_be_named_and_there(command, tmp_path):
    assert_one_line(command("--dry-run", source=()), "either --images DIR, or --dataset NAME")
    assert_one_line(command("--dry-run", source=("--dataset", "CARG", "--root", tmp_path)), "did you mean CARGO?")
    assert_one_line(command("--dry-run", source=("--images", tmp_path / "crobs")), "did you mean crops?")
    (tmp_path / "empty").mkdir()
    assert_one_line(command("--dry-run", source=("--images", tmp_path / "empty")), "no .jpg", str(tmp_path / "empty"))


def test_help_shows_the_format_of_attributes(command, capfd):
    with pytest.raises(SystemExit):
        command("--help")
    out = capfd.readouterr().out
    assert "id,gender,Upper Color" in out
    assert '{"7": {"gender": "male"}' in out
