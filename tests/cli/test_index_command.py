"""`fastreid index` and `fastreid search --index`, with faiss and with Milvus Lite: the real commands on a tiny ViSA."""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import assert_one_line, interrupted_after
from PIL import Image
from small_gallery import gallery_records, make_table, make_visa

from agreid_plugin import Extractor
from agreid_plugin.cli import main
from agreid_plugin.data.datasets import load
from agreid_plugin.data.images import read_image
from agreid_plugin.inference import extraction, gallery_search
from agreid_plugin.inference.gallery_search import Queries
from agreid_plugin.retrieval.index import SearchResult, Where, open_index
from agreid_plugin.synth import make_agsynth
from agreid_plugin.types import View

COUNT = 24
ENGINES = ["people", "people.db"]


@pytest.fixture(scope="module")
def made(tmp_path_factory, agsynth) -> Path:
    """A model, a table of 24 images, their features, and an index of each engine that tests only read."""
    folder = tmp_path_factory.mktemp("index")
    make_visa(folder, agsynth)
    make_table(folder / "crops.csv", gallery_records(agsynth)[:COUNT])
    model = ["--config", str(folder / "visa.yml"), "--weights", str(folder / "visa.pth")]
    assert main(["extract", *model, "--images", str(folder / "crops.csv"), "--out", str(folder / "f.npz")]) == 0
    for engine in ENGINES:
        assert main(["index", "build", "--index", str(folder / engine), "--features", str(folder / "f.npz")]) == 0
    return folder


@pytest.fixture
def records(agsynth) -> list:
    return gallery_records(agsynth)[:COUNT]


@pytest.fixture
def model(made) -> tuple:
    return ("--config", made / "visa.yml", "--weights", made / "visa.pth")


@pytest.fixture
def index(fastreid_command):
    return partial(fastreid_command, "index")


@pytest.fixture
def search(fastreid_command, model, tmp_path):
    """Search in an index; returns what the JSON file says, or how the command ended if it did not."""

    def run(where: Path, *argv: object):
        file = tmp_path / f"found-{len(list(tmp_path.iterdir()))}.json"
        outcome = fastreid_command("search", *model, "--index", where, "--json", file, *argv)
        return json.loads(file.read_text())["answers"] if outcome.code == 0 else outcome

    return run


def paths(answer: dict) -> list[str]:
    return [hit["path"] for hit in answer["hits"]]


def similar(record, folder: Path) -> Path:
    """Write the image once more, larger and as a JPEG: another file of the same person."""
    path = folder / f"{Path(record.path).stem}-again.jpg"
    image = read_image(record.path)
    image.resize((image.width * 3, image.height * 3), Image.Resampling.BICUBIC).save(path, quality=90)
    return path


@pytest.mark.parametrize("engine", ENGINES)
def test_an_image_finds_itself_and_is_told_about(made, search, records, tmp_path, engine):
    wanted = records[5]
    query = similar(wanted, tmp_path)
    (answer,) = search(made / engine, "--image", query, "--query-view", wanted.view.name.lower(), "--top", 3)
    assert answer["query"] == str(query)
    first = answer["hits"][0]
    assert first == {
        "rank": 1,
        "path": wanted.path,
        "score": pytest.approx(1, abs=0.05),
        "view": wanted.view.name.lower(),
        "camera": wanted.camera,
        "pid": wanted.pid,
        "time": "2026-05-06T10:00:00",
    }
    assert len(answer["hits"]) == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_an_index_finds_the_model_that_it_was_built_with(
    fastreid_command, index, made, records, tmp_path, monkeypatch, engine
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place, image = tmp_path / engine, records[5].path
    search_it = partial(fastreid_command, "search", "--index", place, "--image", image)
    named = ("--config", "visa.yml", "--weights", "visa.pth")
    assert index("build", "--index", place, "--features", made / "f.npz").code == 0
    unknown = f"the model of index {place} is not known here: name it with --config and --weights"
    assert_one_line(search_it(), unknown)
    assert_one_line(index("add", "--index", place, "--images", made / "crops.csv"), unknown)
    monkeypatch.chdir(made)
    named = fastreid_command(
        "search", "--index", place, "--image", image, "--config", "visa.yml", "--weights", "visa.pth"
    )
    monkeypatch.chdir(tmp_path)
    assert named.code == 0, named.err
    assert search_it().out == named.out
    assert index("add", "--index", place, "--images", made / "crops.csv").code == 0
    assert_one_line(search_it("--weights", "gone.pth"), "gone.pth' does not exist")


def test_a_folder_is_searched_by_a_model_that_is_named(fastreid_command, records):
    outcome = fastreid_command("search", "--gallery", Path(records[0].path).parent, "--image", records[0].path)
    assert_one_line(outcome, "--gallery needs --config, and --weights")


def test_both_engines_answer_the_same(made, search, records):
    query = ("--image", Path(records[0].path).parent, "--query-view", "aerial", "--top", 10)
    for conditions in (
        (),
        ("--view", "ground"),
        ("--camera", records[0].camera, "--camera", records[-1].camera),
        ("--pid", records[3].pid),
        ("--after", "2026-05-10", "--before", "2026-05-20T10:00"),
        ("--where", "weather=rain", "--view", "aerial"),
    ):
        first, second = (search(made / engine, *query, *conditions) for engine in ENGINES)
        assert [paths(answer) for answer in first] == [paths(answer) for answer in second]
        scores = [[hit["score"] for answer in found for hit in answer["hits"]] for found in (first, second)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)
        assert len(first) > 1


@pytest.mark.parametrize("engine", ENGINES)
def test_conditions_keep_the_images_that_meet_them(made, search, records, engine):
    def found(*conditions):
        (answer,) = search(made / engine, "--image", records[0].path, "--top", COUNT, *conditions)
        return set(paths(answer))

    assert found() == {record.path for record in records}
    assert found("--view", "aerial") == {record.path for record in records if record.view == View.AERIAL}
    assert found("--camera", records[3].camera) == {r.path for r in records if r.camera == records[3].camera}
    assert found("--pid", records[3].pid) == {r.path for r in records if r.pid == records[3].pid}
    assert found("--after", "2026-05-10T10:00") == {record.path for record in records[9:]}
    assert found("--before", "2026-05-10T10:00") == {record.path for record in records[:9]}
    assert found("--where", "weather=rain") == {record.path for record in records[1::2]}
    assert [
        answer["hits"]
        for answer in search(
            made / engine, *("--image", records[0].path, "--image", records[1].path), "--where", "weather=snow"
        )
    ] == [[], []]


def test_nothing_found_is_said_and_no_error(made, fastreid_command, model, records, tmp_path):
    files = ("--html", tmp_path / "f.html", "--picture", tmp_path / "f.png")
    argv = ("--index", made / "people", "--image", records[0].path, "--query-view", "aerial", "--camera", 99)
    outcome = fastreid_command("search", *model, *argv, *files)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[1] == "no image of the gallery meets the conditions"
    assert (tmp_path / "f.html").read_text().count("<img ") == 1  # the query
    queries = Queries(("a",), np.eye(1, 32), ((),))
    with open_index(made / "people") as opened:
        assert gallery_search.search(opened, queries, 5, Where(cameras=(99,))) == [SearchResult("a", ())]


def test_a_query_that_is_in_the_gallery_itself_is_noted(made, fastreid_command, model, records, tmp_path):
    query = tmp_path / "link.jpg"
    query.symlink_to(records[5].path)
    argv = ("search", *model, "--index", made / "people", "--query-view", records[5].view.word, "--top", 3)
    outcome = fastreid_command(*argv, "--image", query)
    (note,) = [line for line in outcome.out.splitlines() if line.startswith("note: ")]
    (rank,) = [line.split()[0] for line in outcome.out.splitlines() if line.endswith(records[5].path)]
    assert note == f"note: rank {rank} is the query's file itself, which is in the gallery"
    assert "note: " not in fastreid_command(*argv, "--image", similar(records[5], tmp_path)).out


def test_a_view_that_the_model_guessed_is_noted(made, search, model, records):
    encoder = Extractor.from_config(*model[1::2])
    query = ("--image", records[5].path, "--top", 1)
    ((guess,),) = [part.views for part in encoder.stream(records[5].path)]
    (answer,) = search(made / "people", *query)
    note = f"the image is taken for {guess.word}, which its feature depends on; --query-view gives its view"
    assert note in answer["notes"]
    (answer,) = search(made / "people", *query, "--query-view", records[5].view.word)
    assert note not in answer["notes"]


def test_a_table_a_page_and_a_sheet(made, fastreid_command, model, records, tmp_path):
    query = similar(records[2], tmp_path)
    files = ("--html", tmp_path / "f.html", "--picture", tmp_path / "f.png")
    asked = ("--index", made / "people", "--image", query, "--query-view", "aerial", "--top", 2)
    outcome = fastreid_command("search", *model, *asked, *files)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == str(query)
    assert lines[1].split() == ["rank", "score", "view", "camera", "pid", "time", "path"]
    page = (tmp_path / "f.html").read_text()
    assert page.count("<img ") == 3  # the query, too
    assert not any(str(place) in page for place in (tmp_path, made, Path(records[0].path).parents[1]))
    assert f"gallery: {made.name}/people, config: {made.name}/visa.yml, weights: {made.name}/visa.pth<" in page
    with Image.open(tmp_path / "f.png") as sheet:
        assert sheet.format == "PNG"


@pytest.mark.parametrize("engine", ENGINES)
def test_add_remove_and_info(made, index, search, model, records, agsynth, tmp_path, engine):
    uri = tmp_path / engine
    outcome = index("build", "--uri", uri, "--images", made / "crops.csv", *model, "--kind", "flat")
    assert outcome.code == 0, outcome.err
    told = dict(line.split(maxsplit=1) for line in outcome.out.splitlines() if not line.startswith("made by"))
    assert told["kind"] == "flat, exact"
    assert told["recall@10"] == "1.000 of exact search"
    assert (told["images"], told["width"]) == ("24", "32")
    assert told["size"].endswith(" MB")
    (built,) = search(uri, "--image", records[0].path, "--top", COUNT)
    (other,) = search(made / engine, "--image", records[0].path, "--top", COUNT)
    assert paths(built) == paths(other)  # of images, and of their features

    more = [record.path for record in gallery_records(agsynth)[COUNT : COUNT + 3]]
    (tmp_path / "more").mkdir()
    for path in more:
        shutil.copy(path, tmp_path / "more")
    outcome = index("add", "--uri", uri, "--images", tmp_path / "more", *model)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("3 images added\n")
    assert outcome.err.startswith("fastreid: the views of 3 images are what the model takes them for")
    new = tmp_path / "more" / Path(more[0]).name
    assert paths(search(uri, "--image", more[0], "--top", 1)[0]) == [str(new)]

    assert index("remove", "--uri", uri, "--path", new).out.startswith("1 images removed\n")
    assert str(new) not in paths(search(uri, "--image", more[0], "--top", 99)[0])
    camera = records[0].camera
    count = sum(record.camera == camera for record in records)
    assert index("remove", "--uri", uri, "--camera", camera).out.startswith(f"{count} images removed\n")
    assert_one_line(index("remove", "--uri", uri), "removing needs a path or a filter")
    assert f"images     {COUNT + 2 - count}" in index("info", "--uri", uri, "--check").out


@pytest.mark.parametrize("engine", ENGINES)
def test_an_interrupted_build_goes_on(made, index, search, model, records, tmp_path, monkeypatch, opened, engine):
    monkeypatch.setattr(extraction, "CHUNK", 8)
    build = ("build", "--index", tmp_path / engine, "--images", made / "crops.csv", *model, "--batch-size", 4)
    with interrupted_after(18):
        assert index(*build).code == 130
    assert_one_line(search(tmp_path / engine, "--image", records[-1].path), "is not finished: build it again")
    opened.clear()
    assert index(*build).code == 0
    assert len(opened) == COUNT - 16  # two chunks were in
    (whole,) = search(made / engine, "--image", records[0].path, "--top", COUNT)
    assert paths(search(tmp_path / engine, "--image", records[0].path, "--top", COUNT)[0]) == paths(whole)
    assert_one_line(index(*build), "is finished: add to it, or remove it first")


def test_a_damaged_index_is_refused(made, search, index, records, tmp_path):
    shutil.copytree(made / "people", tmp_path / "people")
    vectors = tmp_path / "people" / "vectors-0.f32"
    data = bytearray(vectors.read_bytes())
    data[40] ^= 1
    vectors.write_bytes(data)
    damaged = "vectors-0.f32 has a wrong checksum: the index is damaged; build it again"
    assert_one_line(search(tmp_path / "people", "--image", records[0].path), damaged)
    assert_one_line(index("info", "--index", tmp_path / "people"), damaged)


def test_another_models_vectors_are_refused(made, fastreid_command, index, records, tmp_path):
    stored = torch.load(made / "visa.pth")
    for value in stored["model"].values():
        value += 0.01 if value.is_floating_point() else 0
    torch.save(stored, tmp_path / "other.pth")
    other = ("--config", made / "visa.yml", "--weights", tmp_path / "other.pth")
    words = "has vectors of other weights or another configuration"
    image = ("--image", records[0].path)
    assert_one_line(fastreid_command("search", *other, "--index", made / "people", *image), words)
    added = index("add", "--index", made / "people", "--images", made / "crops.csv", *other)
    assert_one_line(added, words)


def test_features_of_an_evaluation(fastreid_command, index, model, records, tmp_path):
    save = ("--output", tmp_path / "eval", "--save-features", tmp_path / "eval.npz")
    assert fastreid_command("eval", *model, *save).code == 0
    assert index("build", "--index", tmp_path / "i", "--features", tmp_path / "eval.npz").code == 0
    found = fastreid_command("search", *model, "--index", tmp_path / "i", "--image", records[0].path, "--top", 1)
    assert found.code == 0, found.err
    assert found.err.startswith(f"fastreid: the vectors of {tmp_path / 'i'} have no fingerprint")
    assert found.out.splitlines()[-2].endswith(records[0].path)


def test_approximate_kinds_tell_their_recall(made, index, tmp_path):
    outcome = index("build", "--index", tmp_path / "i", "--features", made / "f.npz", "--kind", "hnsw")
    assert outcome.code == 0, outcome.err
    assert "kind       hnsw, looks at 32 lists or candidates" in outcome.out
    assert "recall@10  1.000 of exact search" in outcome.out
    with open_index(tmp_path / "i") as opened:
        assert opened.info().images == COUNT


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["build", "--index", "{tmp}/i"], ["--images", "--features", "required"]),
        (["build", "--index", "{tmp}/i", "--images", "{made}/crops.csv"], ["--images needs --config"]),
        (["build", "--index", "{tmp}/i", "--features", "{made}/f.npz", "--kind", "tree"], ["kind 'tree' unknown"]),
        (["build", "--index", "{tmp}/i", "--features", "{made}/f.npz", "--config", "a.yml"], ["are there already"]),
        (["build", "--index", "{tmp}/i", "--images", "{made}", "--config", "a", "--splits", "val"], ["with --dataset"]),
        (["build", "--index", "{made}/people", "--features", "{made}/f.npz"], ["is finished"]),
        (["build", "--index", "{tmp}/i", "--features", "{made}/visa.yml"], ["end with .npz or .parquet"]),
        (["build", "--index", "{tmp}/i", "--features", "{tmp}/other.npz"], ["other.npz: not features"]),
        (["build", "--uri", "http://127.0.0.1:9", "--features", "{made}/f.npz"], ["http://127.0.0.1:9: "]),
        (["add", "--index", "{tmp}/nothing", "--features", "{made}/f.npz"], ["nothing has no gallery index"]),
        (["info", "--index", "{tmp}"], ["has no gallery index"]),
        (["remove", "--index", "{made}/people", "--after", "noon"], ["time 'noon' cannot be read"]),
        (["remove", "--index", "{made}/people", "--where", "rain"], ["'rain' should be TAG=VALUE"]),
        (["rebuild"], ["rebuild", "did you mean build?"]),
    ],
)
def test_bad_input_is_one_line(made, index, tmp_path, argv, words):
    (tmp_path / "other.npz").write_text("other")
    assert_one_line(index(*[part.format(tmp=tmp_path, made=made) for part in argv]), *words)
    assert not (tmp_path / "i").exists()


@pytest.fixture(scope="module")
def crowd(tmp_path_factory) -> Path:
    """60 people, four pictures each."""
    root = tmp_path_factory.mktemp("crowd")
    make_agsynth(root, ids=60, images_per_id=4, size=(64, 32), workers=1, progress=False)
    return root


@pytest.mark.parametrize("engine", ENGINES)
def test_the_right_one_of_60_people_is_found(crowd, model, index, search, tmp_path, engine):
    where = tmp_path / engine
    splits = ("--splits", "train", "query", "gallery")
    outcome = index("build", "--index", where, *model, "--images", crowd, "--dataset", "CARGO", *splits)
    assert "images     240" in outcome.out, outcome.err
    assert "CARGO: 240 images of split gallery, query, train (--splits chooses)\n" in outcome.err
    records = sorted(load("CARGO", crowd).records, key=lambda record: record.path)
    assert len({record.pid for record in records}) == 60
    for view in View:
        asked = [record for record in records[::24] if record.view == view]
        assert asked
        images = [word for record in asked for word in ("--image", similar(record, tmp_path))]
        query = (*images, "--query-view", view.name.lower(), "--top", 5)
        assert [answer["hits"][0]["pid"] for answer in search(where, *query)] == [record.pid for record in asked]
        for answer in search(where, *query, "--view", "ground", "--camera", 7):
            assert {(hit["view"], hit["camera"]) for hit in answer["hits"]} == {("ground", 7)}
    assert "4 images removed" in index("remove", "--index", where, "--pid", asked[-1].pid).out
    assert asked[-1].pid not in {hit["pid"] for hit in search(where, *query)[-1]["hits"]}


def test_what_is_no_query_is_one_line(made, search, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.jpg").write_text("no picture")
    assert_one_line(search(made / "people", "--image", tmp_path / "no.jpg"), "no.jpg' in")
    assert_one_line(search(made / "people", "--image", tmp_path / "empty"), "empty has no images in it")
    outcome = search(made / "people", "--image", tmp_path / "note.jpg", "--image", tmp_path / "note.jpg")
    assert_one_line(outcome, "2 images cannot be read", "note.jpg: name other images to look for")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder in which nobody may write, not even root")
def test_results_that_cannot_be_written_are_one_line(made, fastreid_command, model, records):
    argv = ("search", *model, "--index", made / "people", "--image", records[0].path)
    for option, path in (("--json", "/proc/f.json"), ("--html", "/proc/f.html"), ("--picture", "/proc/f.png")):
        outcome = fastreid_command(*argv, option, path)
        assert outcome.code == 2
        assert path in outcome.err
        assert "cannot be written" in outcome.err
        assert outcome.err.count("\n") == 1


def test_sentences_need_a_model_that_reads_them(made, search):
    assert_one_line(search(made / "people", "--text", "a man"), "ViSA reads no sentences; TAGCLIP does")
