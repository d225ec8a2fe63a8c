"""The check finds each planted problem, and says nothing of a clean set."""

import json
import shutil
from dataclasses import replace

import pytest
import trees
import yaml
from PIL import ImageFile

from agreid_plugin.data.check import PUBLISHED, Count, check, fingerprint
from agreid_plugin.data.datasets import DATASETS, Dataset, load
from agreid_plugin.data.protocols import protocols
from agreid_plugin.types import Record


def clean(folder):
    """Write two people seen by cameras 1 and 2, with a match for every query."""
    for pid, split in ((1, "train"), (2, "train"), (7, "query"), (8, "query")):
        trees.write_images(folder, [f"{split}/{pid}_c1_a.jpg", f"{split}/{pid}_c2_b.jpg"])
    return trees.write_images(folder, [f"gallery/{pid}_c{camera}_z.jpg" for pid in (7, 8) for camera in (1, 2)])


def checked(root, **options):
    return check(load("folder", root, aerial_cameras=[1], **options), progress=False)


def test_a_clean_set(tmp_path):
    report = checked(clean(tmp_path))
    assert report.problems == []
    assert report.ok
    assert report.hints == []
    assert report.lines()[-1] == "no problem found"
    assert report.breakdown["train view"] == {"aerial": 2, "ground": 2}
    assert report.breakdown["gallery camera"] == {"1": 2, "2": 2}
    assert report.breakdown["train platform"] == {"unknown": 4}
    assert report.breakdown["train images an identity"] == {"least": 2, "most": 2}
    rows = [line.split() for line in report.lines()]
    assert rows[1] == ["split", "ids", "images", "images", "an", "id", "cameras", "views"]
    assert rows[2] == ["train", "2", "4", "2", "2", "aerial", "2,", "ground", "2"]
    assert rows[5] == ["test", "2", "8"]
    assert ["protocol", "queries", "gallery", "with", "a", "match"] in rows
    assert ["folder/A2G", "2", "2", "2"] in rows
    assert "published" not in " ".join(report.lines())
    assert json.loads(json.dumps(report.as_dict()))["ok"] is True


@pytest.mark.parametrize("allow_truncated", [False, True])
def test_broken_images_are_named(tmp_path, monkeypatch, allow_truncated):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", allow_truncated)  # some toolboxes set it
    root = clean(tmp_path)
    (root / "train/1_c1_a.jpg").write_bytes(b"")
    (root / "train/1_c2_b.jpg").write_bytes(trees.jpeg(64, 64)[:2000])
    (root / "train/2_c1_a.jpg").write_bytes(b"GIF of a kind")
    problems = checked(root).problems
    assert [problem.split("train/")[1].split(" (")[0] for problem in problems] == [
        "1_c1_a.jpg: empty file, 0 bytes",
        "1_c2_b.jpg: unreadable image",
        "2_c1_a.jpg: unreadable image",
    ]
    assert "truncated" in problems[1]
    assert allow_truncated == ImageFile.LOAD_TRUNCATED_IMAGES
    dataset = load("folder", root, aerial_cameras=[1])
    assert check(dataset, images=False, progress=False).ok


def test_progress_bar(tmp_path, capsys):
    check(load("folder", clean(tmp_path)), progress=True)
    assert "decoding" in capsys.readouterr().err


def test_a_flat_folder_cannot_be_evaluated(tmp_path):
    trees.write_images(tmp_path, [f"{pid}_c{camera}.jpg" for pid in (1, 2) for camera in (1, 2)])
    (problem,) = checked(tmp_path).problems
    assert problem.startswith("nothing can be evaluated: folder/ALL: ")


@pytest.mark.parametrize("names", [("1_c1_a", "1_c1_b"), ("1_c1_a", "2_c2_b")], ids=["one camera", "other people"])
def test_queries_without_a_match_cannot_be_evaluated(tmp_path, names):
    trees.write_images(tmp_path, [f"query/{names[0]}.jpg", f"gallery/{names[1]}.jpg"])
    problems = check(load("folder", tmp_path), progress=False).problems
    assert problems[-1] == "nothing can be evaluated: no query has a match under any protocol"


def test_overlap_of_train_and_test(tmp_path):
    root = clean(tmp_path)
    trees.write_images(root, ["train/7_c1_x.jpg", "train/7_c2_x.jpg"])
    assert checked(root).problems == ["1 identities are in train and in test: 7"]


def test_train_identities_with_one_view_are_a_hint(tmp_path):
    root = clean(tmp_path)
    (root / "train/2_c2_b.jpg").unlink()
    report = checked(root)
    assert report.ok
    assert report.hints == ["1 of 2 train identities are seen from one view only: 2"]


def test_queries_without_a_match(tmp_path):
    root = clean(tmp_path)
    trees.write_images(root, ["query/9_c1_a.jpg"])
    (root / "gallery/8_c2_z.jpg").unlink()
    report = checked(root)
    # Identity 9 is nowhere else. Identity 8 is left with camera 1 in the gallery, hidden from its query of camera 1,
    # and missing among the ground images that A2G searches.
    assert {name: {why: len(q) for why, q in lost.items()} for name, lost in report.unmatched.items()} == {
        "folder/ALL": {
            "all its gallery images hidden by same_camera_same_id": 1,
            "identity not in gallery": 1,
        },
        "folder/A2G": {"identity not in gallery": 2},
        "folder/G2A": {},
    }
    assert any(
        problem.startswith("folder/ALL: 1 of 5 queries: all its gallery images hidden by same_camera_same_id: ")
        and "query/8_c1_a.jpg" in problem
        for problem in report.problems
    )
    assert len(report.problems) == 3


def test_skipped_names_and_missing_protocols(tmp_path):
    root = clean(tmp_path)
    trees.write_images(root, ["train/oops.jpg"])
    report = check(load("folder", root, skip_bad_names=True), progress=False)
    assert [p.split(":")[0] for p in report.problems] == ["1 images left out because of their names"]
    assert any("folder/A2G: none of the 4 query images has view aerial" in hint for hint in report.hints)


def test_counts_against_published_ones(tmp_path):
    dataset = load("CARGO", trees.cargo(tmp_path))
    report = check(dataset, images=False, progress=False)
    assert "train images: 4 (differs by -51,447 from the published 51,451)" in report.problems
    # Here queries are lost too, but CARGO's own number of them is known, so that is what is compared.
    assert "CARGO/G2G valid_queries: 0 (differs by -112 from the published 112)" in report.problems
    assert not any("queries: all its" in problem for problem in report.problems)
    assert any("VDT README" in hint for hint in report.hints)
    synthetic = check(dataset, images=False, progress=False, published=False)
    assert not any("published 5" in line for line in synthetic.lines())


def test_count_in_words():
    assert str(Count("a", 5, (5,))) == "a: 5 (matches the published 5)"
    assert str(Count("a", 6347, (6347, 6374))) == "a: 6,347 (matches the published 6,347 or 6,374)"
    assert str(Count("a", 7, (5, 6))) == "a: 7 (differs by +2 from the published 5 or 6)"
    assert not Count("a", 7, (5,)).matches
    assert Count("a", 7).matches


def test_published_counts_are_about_what_exists():
    content = yaml.safe_load(PUBLISHED.read_text())
    assert content.keys() == DATASETS.keys() - {"folder", "csv"}
    for name, figures in content.items():
        assert figures["source"]
        assert figures.keys() <= {"source", "note", "splits", "protocols"}
        assert figures["splits"].keys() <= {"train", "val", "query", "gallery", "test"}
        assert figures.get("protocols", {}).keys() <= protocols(name).keys()


def test_published_cargo_counts_add_up():
    cargo = yaml.safe_load(PUBLISHED.read_text())["CARGO"]
    sizes = {name: (row["queries"], row["gallery"]) for name, row in cargo["protocols"].items()}
    assert [a + g for a, g in zip(sizes["A2A"], sizes["G2G"], strict=True)] == list(sizes["ALL"])
    assert sum(sizes["ALL"]) == cargo["splits"]["test"]["images"]


def test_what_a_protocol_notes_is_told_once(tmp_path):
    trees.write_images(tmp_path / "own", ["query/1/a.jpg", "gallery/1/b.jpg"])
    report = check(load("folder", tmp_path / "own", identity_folders=True), progress=False)
    assert report.ok
    assert "folder/ALL: no camera is known, so same_camera_same_id hides nothing" in report.hints
    assert report.breakdown["query camera"] == {"unknown": 1}
    v2 = load("AG-ReID.v2", trees.ag_reid_v2(tmp_path / "v2", lists=False))
    hints = check(v2, progress=False, published=False).hints
    assert sum("exp1_aerial_to_cctv.txt" in hint for hint in hints) == 1


def test_odd_names_are_printed_in_one_line(tmp_path):
    clean(tmp_path)
    trees.write_images(tmp_path, ["train/2_c2_\udcff.jpg", "gallery/7_c1_a\nb.jpg", "query/odd\udcff.jpg"])
    (tmp_path / "train/2_c1_a\nb.jpg").write_bytes(b"rubbish")
    report = checked(tmp_path, skip_bad_names=True)
    lines = report.lines()
    assert all(line.isprintable() for line in lines)
    assert any(line.startswith(rf"problem: {tmp_path}/train/2_c1_a\nb.jpg: unreadable image") for line in lines)
    assert rf"problem: 1 images left out because of their names: {tmp_path}/query/odd\udcff.jpg" in lines


def test_text_sets_count_captions(tmp_path):
    report = check(load("TAG-PEDES", trees.tag_pedes(tmp_path)), progress=False, published=False)
    rows = [line.split() for line in report.lines()]
    assert ["test", "2", "3", "6", "1-2"] in [row[:5] for row in rows]
    assert ["TAG-PEDES/T2I-aerial", "4"] in [row[:2] for row in rows]


def test_fingerprint(tmp_path):
    root = trees.cargo(tmp_path / "here" / "CARGO")
    print_ = fingerprint(load("CARGO", root))
    assert len(print_) == 64
    assert fingerprint(load("CARGO", tmp_path / "here")) == print_  # however the folder is named
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = load("CARGO", tmp_path / "there")
    assert fingerprint(moved) == print_
    assert fingerprint(replace(moved, records=moved.records[::-1])) == print_
    trees.write_images(tmp_path / "there/CARGO/gallery", ["Cam5_day_11_99.jpg"])
    added = fingerprint(load("CARGO", tmp_path / "there"))
    (tmp_path / "there/CARGO/gallery/Cam5_day_11_99.jpg").write_bytes(trees.JPEG + b"x")
    assert len({print_, added, fingerprint(load("CARGO", tmp_path / "there"))}) == 3


def test_fingerprint_of_relative_and_absolute_paths(tmp_path, monkeypatch):
    trees.write_images(tmp_path, ["near/1.jpg", "far/2.jpg"])
    monkeypatch.chdir(tmp_path)
    prints = set()
    for first, second in [("", ""), ("", f"{tmp_path}/"), (f"{tmp_path}/", f"{tmp_path}/")]:
        records = (Record(f"{first}near/1.jpg", 1), Record(f"{second}far/2.jpg", 2))
        prints.add(fingerprint(Dataset("csv", "", records)))
    assert len(prints) == 1
