"""`fastreid data`: make, check, list."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import assert_one_line, slow
from PIL import Image


@pytest.fixture
def made(fastreid_command, tmp_path):
    """A tiny AG-Synth made by the command."""

    def make(*arguments: object, root: str = "data"):
        size = ["--ids", 4, "--images-per-id", 8, "--size", "32x16"]
        return fastreid_command("data", "make", "agsynth", "--root", tmp_path / root, *size, *arguments)

    return make


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("layout", "name"),
    [("cargo", "CARGO"), ("tag-pedes", "TAG-PEDES"), *slow(("ag-reid-v2", "AG-ReID.v2"), ("cp2108", "CP2108"))],
)
def test_what_is_made_passes_the_check(made, fastreid_command, tmp_path, layout, name):
    outcome = made("--layout", layout)
    assert outcome.code == 0, outcome.err
    assert outcome.out.strip() == f"32 images in {tmp_path / 'data' / name}"
    outcome = fastreid_command("data", "check", name, "--root", tmp_path / "data")
    assert outcome.code == 0, outcome.out
    assert outcome.out.startswith(name)
    assert "no problem found" in outcome.out
    assert "differs" not in outcome.out  # the real dataset's counts do not apply


def test_one_seed_makes_one_tree(made, tmp_path):
    for root, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert made("--seed", seed, root=root).code == 0
    a, b, c = (tree(tmp_path / root) for root in "abc")
    assert a == b
    assert a != c


def test_a_folder_that_is_not_empty_is_kept(made, tmp_path):
    assert made().code == 0
    before = tree(tmp_path / "data")
    assert_one_line(made("--seed", 5), "is not empty", str(tmp_path / "data" / "CARGO"))
    assert tree(tmp_path / "data") == before
    assert made("--seed", 5, "--overwrite").code == 0
    assert tree(tmp_path / "data") != before


def test_preview_is_a_picture(fastreid_command, tmp_path):
    outcome = fastreid_command("data", "make", "agsynth", "--preview", tmp_path / "sheet.png", "--size", "32x16")
    assert outcome.code == 0, outcome.err
    assert min(Image.open(tmp_path / "sheet.png").size) > 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data", "make", "agsinth", "--root", "x"], ["'agsinth' unknown (did you mean agsynth?)"]),
        (["data", "make", "agsynth"], ["--root", "--preview"]),
        (["data", "make", "agsynth", "--root", "x", "--layout", "carg"], ["did you mean cargo?"]),
        (["data", "make", "agsynth", "--root", "x", "--size", "big"], ["'big' is not HEIGHTxWIDTH"]),
        (["data", "make", "agsynth", "--root", "x", "--ids", "1"], ["ids is 1"]),
        (["data", "check", "CARG", "--root", "."], ["dataset 'CARG' unknown (did you mean CARGO?)"]),
        (["data", "check", "CARGO", "--root", "nowhere"], ["nowhere"]),
        (["data", "chek"], ["did you mean check?"]),
    ],
)
def test_bad_input_is_one_line(fastreid_command, arguments, words):
    assert_one_line(fastreid_command(*arguments), *words)


def test_check_finds_broken_images_and_exits_with_2(made, fastreid_command, tmp_path):
    made()
    images = sorted((tmp_path / "data").rglob("*.jpg"))
    images[0].write_bytes(b"")
    images[1].write_bytes(images[1].read_bytes()[:200])
    outcome = fastreid_command("data", "check", "CARGO", "--root", tmp_path / "data", "--json")
    assert outcome.code == 2
    problems = " ".join(json.loads(outcome.out)["problems"])
    assert images[0].name in problems
    assert images[1].name in problems
    assert fastreid_command("data", "check", "CARGO", "--root", tmp_path / "data", "--no-images").code == 0


def test_a_foreign_name_is_told_and_can_be_skipped(made, fastreid_command, tmp_path):
    made()
    image = next((tmp_path / "data").rglob("*.jpg"))
    image.rename(image.with_name("holiday.jpg"))
    check = ["data", "check", "CARGO", "--root", tmp_path / "data"]
    assert_one_line(fastreid_command(*check), "holiday.jpg", "1 of")
    outcome = fastreid_command(*check, "--skip-bad-names")
    assert outcome.code == 2
    assert "problem: 1 images left out because of their names: " in outcome.out
    assert "holiday.jpg" in outcome.out


def test_names_of_ones_own_are_told_of_the_pattern(fastreid_command, tmp_path):
    Image.new("RGB", (8, 16)).save(tmp_path / "person7-camera2.png")
    outcome = fastreid_command("data", "check", "folder", "--root", tmp_path)
    assert_one_line(outcome, "person7-camera2.png", "write one that fits (--pattern, ", "--skip-bad-names")


@pytest.mark.parametrize(("separator", "option"), [(";", ";"), ("\t", r"\t")])
def test_a_table_of_ones_own_is_checked_as_it_is_trained_on(fastreid_command, tmp_path, separator, option):
    rows = ["path,pid,camera,split", "1.png,1,1,", "2.png,1,2,", "3.png,2,1,query", "4.png,2,2,gallery"]
    table, pictures = tmp_path / "people.csv", tmp_path / "pictures"
    table.write_text("\n".join(rows).replace(",", separator))
    pictures.mkdir()
    for number in range(1, 5):
        Image.new("RGB", (8, 16)).save(pictures / f"{number}.png")
    check = ["data", "check", "csv", "--root", table, "--json"]
    assert_one_line(fastreid_command(*check), f"{separator!r} separates its columns")
    outcome = fastreid_command(
        *check, "--delimiter", option, "--image-folder", pictures, "--aerial-cameras", 1, "--split", "val"
    )
    assert outcome.code == 0, outcome.out
    told = json.loads(outcome.out)["breakdown"]
    assert {name: counts for name, counts in told.items() if name.endswith("view")} == {
        "val view": {"aerial": 1, "ground": 1},
        "query view": {"aerial": 1},
        "gallery view": {"ground": 1},
    }
    assert_one_line(fastreid_command(*check, "--delimiter", ";;"), "delimiter ';;' should be one character")


PLUGIN = """
from pathlib import Path

from agreid_plugin.data.datasets import Source
from agreid_plugin.data.protocols import add_dataset
from agreid_plugin.types import Record


def parse(tree):
    names = {split: tree.images(split, tree.need(split)) for split in ("query", "gallery")}
    return [Record(str(path), int(path.stem), split=split) for split, paths in names.items() for path in paths]


add_dataset("Campus", Source(parse, ("campus",), "our campus", "ours"), Path(__file__).with_name("campus.yml"))
"""


@pytest.mark.slow
def test_a_dataset_of_a_plugin_is_checked_captioned_and_listed(tmp_path):
    """In a process of its own, to which the plugin is installed as pip would: its file and its metadata on the path."""
    info, photos = tmp_path / "campus-1.0.dist-info", tmp_path / "photos"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: campus\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fastreid.plugins]\ncampus = campus\n")
    (tmp_path / "campus.py").write_text(PLUGIN)
    (tmp_path / "campus.yml").write_text("Campus: {ALL: {source: our own rule}}\n")
    for split in ("query", "gallery"):
        (photos / split).mkdir(parents=True)
        Image.new("RGB", (8, 16)).save(photos / split / "7.png")
    commands = [
        ["data", "check", "campus", "--root", photos],
        ["data", "caption", "--dataset", "campus", "--root", photos, "--out", tmp_path / "captions.json", "--dry-run"],
        ["data", "list"],
    ]
    code = "import json, sys; from agreid_plugin.cli import main; sys.exit(sum(map(main, json.loads(sys.argv[1]))))"
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands, default=str)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert ["Campus/ALL", "1", "1", "1"] in [line.split() for line in done.stdout.splitlines()]
    assert "no problem found" in done.stdout
    assert "captions.json.prompts.jsonl" in done.stdout
    assert re.search(r"Campus: our campus\n  ours\n  Campus/ALL +our own rule\n", done.stdout)


def test_list_names_every_protocol_with_its_source(fastreid_command):
    out = fastreid_command("data", "list").out
    for word in ("CARGO/AG-both", "CARGO/AG-cross", "AG-ReID.v2/A2C", "LAGPeR/G2AG", "TAG-PEDES/T2I-aerial", "SeCap"):
        assert word in out
