"""Protocols: hand-counted sides and hidden pairs on tiny trees, and how they are found by name."""

import pytest
import trees

from agreid_plugin.data.datasets import DATASETS, Source, load
from agreid_plugin.data.protocols import (
    Meta,
    _load_protocols,
    add_dataset,
    hidden_mask,
    protocol,
    protocols,
    select,
    usable_protocols,
)
from agreid_plugin.errors import InputError


def counts(dataset, name):
    """Return queries, gallery images, hidden pairs."""
    chosen = protocol(dataset.name, name)
    sides = select(chosen, dataset)
    mask = hidden_mask(chosen, Meta.collect(sides.query), Meta.collect(sides.gallery))
    return len(sides.query), len(sides.gallery), int(mask.sum())


# Queries: a (id 11, camera 1, aerial), b (11, 6, ground), c (12, 3, aerial). Gallery: 1 (11, 1, A), 2 (11, 2, A),
# 3 (11, 6, G), 4 (12, 8, G), 5 (12, 3, A), 6 (13, 9, G).
CARGO = {
    "ALL": (3, 6, 3),  # same camera and identity: a-1, b-3, c-5
    "A2A": (2, 3, 2),  # a, c against 1, 2, 5: a-1, c-5
    "G2G": (1, 3, 1),  # b against 3, 4, 6: b-3
    "A2G": (2, 3, 0),  # a, c against 3, 4, 6
    "G2A": (1, 3, 0),  # b against 1, 2, 5
    "AG-both": (3, 6, 4),  # same view and identity: a-1, a-2, b-3, c-5
    "AG-cross": (3, 6, 9),  # same view: each query loses the three images of its own view
}
AG_REID = {"A2G": (2, 3, 0), "G2A": (1, 2, 0)}  # the folders' own counts
AG_REID_V2 = dict.fromkeys(("A2C", "A2W", "C2A", "W2A"), (1, 1, 0))  # a line a side in each list
LAGPER = {
    "A2G": (1, 2, 0),
    "G2A": (1, 2, 0),
    "G2AG": (2, 3, 1),  # identity 7 of camera 1 is query and gallery; identity 8 is of cameras 11 and 2
}
G2APS = {"A2G": (1, 2, 0), "G2A": (1, 1, 0)}
# Queries: a (id 5, camera 2, ground, time 1), b (5, 24, aerial, 1), c (6, 3, ground, 1). Gallery: 1 (5, 2, G, 1),
# 2 (5, 4, G, 0), 3 (5, 24, A, 0), 4 (6, 4, G, 1), 5 (7, 25, A, 1).
CP2108 = {
    "ALL": (3, 5, 2),  # a-1, b-3
    "A2G": (1, 3, 0),  # b against 1, 2, 4
    "G2A": (1, 2, 0),  # a against 3, 5: identity 6 has no aerial image, so c is left out
    "AG-cross": (3, 5, 8),  # a and c lose 1, 2, 4; b loses 3, 5
    "ALL-cross-time": (3, 5, 10),  # all are of time 1 and lose 1, 4, 5; by camera b-3 too: 3 * 3 + 1
    "A2G-cross-time": (1, 3, 2),  # b loses 1, 4
    "G2A-cross-time": (1, 2, 1),  # a loses 5
    "AG-cross-cross-time": (3, 5, 12),  # a and c: 1, 2, 4, 5; b: 1, 3, 4, 5
}
TAG_PEDES = {
    "T2I": (3, 3, 0),
    "T2I-aerial": (2, 1, 0),  # one aerial image, of identity 7; the captions of its two images
    "T2I-ground": (3, 2, 0),
}
CASES = {
    "CARGO": (trees.cargo, CARGO),
    "AG-ReID": (trees.ag_reid, AG_REID),
    "AG-ReID.v2": (trees.ag_reid_v2, AG_REID_V2),
    "LAGPeR": (trees.lagper, LAGPER),
    "G2APS-ReID": (trees.g2aps, G2APS),
    "CP2108": (trees.cp2108, CP2108),
    "TAG-PEDES": (trees.tag_pedes, TAG_PEDES),
    "CUHK-PEDES": (lambda root: trees.one_file_set(root, "reid_raw.json"), {"T2I": (2, 2, 0)}),
    "ICFG-PEDES": (lambda root: trees.one_file_set(root, "ICFG-PEDES.json"), {"T2I": (2, 2, 0)}),
    "RSTPReid": (lambda root: trees.one_file_set(root, "data_captions.json"), {"T2I": (2, 2, 0)}),
}


@pytest.mark.parametrize("name", CASES)
def test_every_protocol_by_hand(tmp_path, name):
    build, expected = CASES[name]
    dataset = load(name, build(tmp_path))
    assert {row: counts(dataset, row) for row in protocols(name)} == expected
    assert usable_protocols(dataset) == (protocols(name), {})


def test_every_dataset_has_protocols_with_sources():
    for name in DATASETS:
        assert protocols(name)
        assert all(row.source and str(row) == f"{name}/{row.name}" for row in protocols(name).values())


def test_ag_reid_v2_falls_back_on_names_and_says_so(tmp_path):
    dataset = load("AG-ReID.v2", trees.ag_reid_v2(tmp_path, lists=False))
    # Two UAV queries now, of identities 3 and 4; two CCTV images in the gallery.
    assert counts(dataset, "A2C") == (2, 2, 0)
    (note,) = select(protocol("AG-ReID.v2/A2C"), dataset).notes
    assert note == "AG-ReID.v2/A2C: exp1_aerial_to_cctv.txt not found, sides made from file names"


def test_lagper_without_its_list_cannot_run(tmp_path):
    root = trees.lagper(tmp_path)
    (root / "exp4_G2A+.txt").unlink()
    dataset = load("LAGPeR", root)
    assert "exp4_G2A+.txt not found: LAGPeR/G2A cannot be run" in dataset.notes
    allowed, refused = usable_protocols(dataset)
    assert list(allowed) == ["A2G", "G2AG"]
    assert "LAGPeR/G2A: the list file exp4_G2A+.txt is not under" in refused["G2A"]


def test_restriction_is_said(tmp_path):
    notes = select(protocol("CP2108/G2A"), load("CP2108", trees.cp2108(tmp_path))).notes
    assert notes == ("CP2108/G2A: 1 queries left out, identity not in the gallery",)


def test_text_views_where_there_are_none(tmp_path):
    allowed, refused = usable_protocols(load("TAG-PEDES", trees.tag_pedes(tmp_path, views=False)))
    assert list(allowed) == ["T2I"]
    assert refused["T2I-aerial"] == (
        "TAG-PEDES/T2I-aerial: none of the 3 test images has view aerial (view is unknown)"
    )


def test_own_images_without_camera_and_view(tmp_path):
    trees.write_images(tmp_path, ["query/1/a.jpg", "gallery/1/b.jpg"])
    dataset = load("folder", tmp_path, identity_folders=True)
    assert counts(dataset, "ALL") == (1, 1, 0)
    sides = select(protocol("folder/ALL"), dataset)
    assert sides.notes == ("folder/ALL: no camera is known, so same_camera_same_id hides nothing",)
    allowed, refused = usable_protocols(dataset)
    assert (list(allowed), list(refused)) == (["ALL"], ["A2G", "G2A"])


def test_own_images_with_cameras_and_views(tmp_path):
    trees.write_images(tmp_path, ["query/1_c1.jpg", "query/1_c2.jpg", "gallery/1_c1x.jpg", "gallery/1_c2x.jpg"])
    dataset = load("folder", tmp_path, aerial_cameras=[1])
    assert {name: counts(dataset, name) for name in protocols("folder")} == {
        "ALL": (2, 2, 2),
        "A2G": (1, 1, 0),
        "G2A": (1, 1, 0),
    }


def test_own_images_without_a_gallery(tmp_path):
    trees.write_images(tmp_path, ["train/1_c1.jpg"])
    with pytest.raises(InputError, match="folder/ALL: no query images under"):
        select(protocol("folder", "ALL"), load("folder", tmp_path))


def test_no_query_identity_in_the_gallery(tmp_path):
    root = trees.cp2108(tmp_path)
    trees.write_text(root / "split_v100/query_v100.txt", "6_3_1_1_0001.jpg")
    with pytest.raises(InputError, match="CP2108/G2A: none of the 1 queries' identities is in the gallery"):
        select(protocol("CP2108", "G2A"), load("CP2108", root))


def test_names():
    assert protocol("cargo", "A2G") is protocol("CARGO/A2G")
    assert protocol("CARGO", "CARGO/A2G") is protocol("CARGO/A2G")
    with pytest.raises(InputError, match=r"CARGO protocol 'A2C' unknown .*known: A2A, A2G, AG-both"):
        protocol("CARGO", "A2C")
    with pytest.raises(InputError, match=r"dataset 'CARGOO' unknown \(did you mean CARGO\?\)"):
        protocol("CARGOO/A2G")


@pytest.mark.parametrize("name", ["AG", "A<->G", "A↔G", "A->G", "AG-ReID", "CARGO_AG", "aerial-ground"])
def test_the_bare_name_of_three_tasks_is_refused(name):
    with pytest.raises(InputError) as error:
        protocol("CARGO", name)
    assert "three tasks" in str(error.value)
    assert all(f"{task} (" in str(error.value) for task in ("A2G", "AG-both", "AG-cross"))


def test_a_dataset_of_ones_own_is_added_once_and_alone(tmp_path):
    source = Source(list, ("campus",), "our campus", "ours")
    path = tmp_path / "campus.yml"
    path.write_text("Campus: {ALL: {hide: [same_camera_same_id], source: ours}}\n")
    with pytest.raises(InputError, match="dataset CARGO is there already"):
        add_dataset("CARGO", source, path)
    with pytest.raises(InputError, match="expected protocols of Kampus only, found Campus"):
        add_dataset("Kampus", source, path)
    assert not {"Campus", "Kampus"} & DATASETS.keys()
    try:
        add_dataset("Campus", source, path)
        assert str(protocol("Campus", "ALL")) == "Campus/ALL"
    finally:
        DATASETS.pop("Campus", None)
        _load_protocols().pop("Campus", None)
