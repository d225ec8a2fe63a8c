"""Every dataset and protocol of ours as mmengine's loaders read them."""

import json
import logging
import pickle
import shutil

import pytest
import torch
from data import trees
from mmengine.dataset import pseudo_collate
from mmengine.logging import MMLogger
from mmengine.registry import DATASETS as HOST_DATASETS
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from agreid_plugin.data.captions import clean, list_captions
from agreid_plugin.data.datasets import DATASETS, load
from agreid_plugin.data.datasets.locations import AGSYNTH_FILE
from agreid_plugin.data.protocols import protocols, select
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation.evaluation_sets import VALIDATION, EvaluationSet
from agreid_plugin.nn.clip import tokenize
from agreid_plugin.types import UNKNOWN, View, platform_label

READ = [
    {"type": "agreid_plugin.ReadImage"},
    {"type": "agreid_plugin.Resize", "size": [32, 16]},
    {"type": "agreid_plugin.Pack"},
]
LABELS = "CP2108/attributes_labeled_qwen.json"


def whole_cargo(root):
    """The tree of CARGO in which every protocol has a query with a match."""
    return trees.write_images(trees.cargo(root), ["gallery/Cam7/Cam7_day_11_9.jpg"])


def own_folder(root):
    names = ["train/1_c1.jpg", "train/2_c2.jpg", "query/3_c1.jpg", "gallery/3_c2.jpg", "gallery/4_c2.jpg"]
    return trees.write_images(root, [*names, "query/3_c2_2.jpg", "gallery/3_c1_3.jpg"])


def own_table(root):
    rows = ["a,1,1,aerial,train", "b,2,2,ground,train", "c,3,1,aerial,query", "d,3,2,ground,gallery"]
    rows += ["e,3,2,ground,query", "f,3,1,aerial,gallery"]
    trees.write_images(root, [f"{row[0]}.jpg" for row in rows])
    table = "path,pid,camera,view,split\n" + "\n".join(f"{row[0]}.jpg{row[1:]}" for row in rows)
    return trees.write_text(root / "people.csv", table)


TREES = {
    "CARGO": whole_cargo,
    "AG-ReID": trees.ag_reid,
    "AG-ReID.v2": trees.ag_reid_v2,
    "LAGPeR": trees.lagper,
    "G2APS-ReID": trees.g2aps,
    "CP2108": trees.cp2108,
    "TAG-PEDES": trees.tag_pedes,
    "CUHK-PEDES": lambda root: trees.one_file_set(root, "reid_raw.json"),
    "ICFG-PEDES": lambda root: trees.one_file_set(root, "ICFG-PEDES.json"),
    "RSTPReid": lambda root: trees.one_file_set(root, "data_captions.json"),
    "folder": own_folder,
    "csv": own_table,
}
OPTIONS = {"folder": {"options": {"aerial_cameras": [1]}}, "AG-ReID": {"attributes": ["gender", "bag"]}}
OPTIONS["CP2108"] = {"options": {"attribute_level": "image"}, "attributes": []}


def build(name, root, **options):
    config = {"type": "agreid_plugin.ReIDDataset", "name": name, "data_root": str(root), "serialize_data": False}
    return HOST_DATASETS.build({**config, "pipeline": READ, **options})


def is_text(name) -> bool:
    return any(protocol.kind == "text" for protocol in protocols(name).values())


@pytest.mark.parametrize("name", DATASETS)
def test_every_dataset_to_train_on(tmp_path, name):
    root, options = TREES[name](tmp_path / "here"), OPTIONS.get(name, {})
    captions = {"captions": {"length": 20}} if is_text(name) else {}
    dataset = build(name, root, **options, **captions)
    records = load(name, root, **options.get("options", {})).split("train")
    if captions:
        records = [record for record in records for _ in record.captions]
    assert len(dataset) == len(records) > 0
    about = dataset.metainfo
    assert about["name"] == name
    assert about["num_ids"] == len({record.pid for record in records})
    assert len(about["fingerprint"]) >= 8
    assert json.loads(json.dumps(about)) == about  # a checkpoint keeps it
    labels = set()
    for index, record in enumerate(records):
        item = dataset[index]
        sample = item["data_samples"]
        assert item["inputs"].shape == (3, 32, 16)
        assert (sample.img_path, sample.pid, sample.camera) == (record.path, record.pid, record.camera)
        assert sample.view == (UNKNOWN if record.view is None else int(record.view))
        assert sample.platform == platform_label(record.platform)
        assert (sample.sample_idx, sample.caption_number) == (index, None)
        labels.add(int(sample.gt_label))
        assert ("tokens" in sample) == bool(captions)
        assert ("attributes" in sample) == ("attributes" in options)
    assert labels == set(range(about["num_ids"]))


@pytest.mark.parametrize(("name", "protocol"), [(name, row) for name in DATASETS for row in ("", *protocols(name))])
def test_every_protocol_to_test_by(tmp_path, name, protocol):
    root, options = TREES[name](tmp_path / "here"), {"options": OPTIONS.get(name, {}).get("options", {})}
    captions = {"length": 20} if is_text(name) else None
    dataset = build(name, root, split="test", protocols=[protocol] if protocol else [], captions=captions, **options)
    test_set = dataset.metainfo["test_set"]
    assert isinstance(test_set, EvaluationSet)
    assert list(test_set.protocols) == ([protocol] if protocol else list(protocols(name)))
    sides = [select(each, test_set.dataset) for each in test_set.protocols.values()]
    asked = {record.path for side in sides for record in (*side.query, *side.gallery)}
    samples = [dataset[index]["data_samples"] for index in range(len(dataset))]
    images = [sample for sample in samples if sample.caption_number is None]
    assert [sample.img_path for sample in images] == sorted(asked) == [record.path for record in test_set.records]
    assert not any("gt_label" in sample for sample in samples)
    assert not any("attributes" in sample or "tokens" in sample for sample in images)
    sentences = samples[len(images) :]
    texts = list_captions(test_set.records) if test_set.has_text else []
    assert [sample.caption_number for sample in sentences] == list(range(len(texts)))
    for sample, text in zip(sentences, texts, strict=True):
        assert torch.equal(sample.tokens, tokenize(clean(text), 20)[0])
        assert sample.img_path in asked


def test_captions_come_without_an_image_and_collate_with_those_that_have_one(tmp_path):
    dataset = build("TAG-PEDES", trees.tag_pedes(tmp_path), split="test", captions={})
    loader = DataLoader(dataset, batch_size=5, collate_fn=pseudo_collate, num_workers=2)
    first, second = loader  # three images, then two captions of each
    assert [image is None for image in first["inputs"]] == [False] * 3 + [True] * 2
    assert [image is None for image in second["inputs"]] == [True] * 4
    numbers = [sample.caption_number for batch in (first, second) for sample in batch["data_samples"]]
    assert numbers == [None] * 3 + list(range(6))
    assert {sample.tokens.shape for sample in second["data_samples"]} == {(77,)}


def test_validation_is_the_test_set_and_the_validation_split(tmp_path):
    root = trees.one_file_set(tmp_path, "reid_raw.json")
    found = build("CUHK-PEDES", root, split="val", captions={})
    assert list(found.metainfo["test_set"].protocols) == ["T2I", VALIDATION]
    assert found.metainfo["test_set"].selection_protocol.name == VALIDATION
    assert len(found) == 3 + 3  # images of test and val, and a caption each
    assert len(build("CUHK-PEDES", root, split="test", captions={})) == 2 + 2
    images = build("CARGO", whole_cargo(tmp_path / "CARGO"), split="val")
    assert VALIDATION not in images.metainfo["test_set"].protocols


@pytest.fixture(scope="module")
def cargo(tmp_path_factory):
    return whole_cargo(tmp_path_factory.mktemp("trees") / "CARGO")


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("serialize", [True, False])
def test_the_hosts_own_arguments(cargo, split, serialize):
    whole = build("CARGO", cargo, split=split)
    lazy = build("CARGO", cargo, split=split, lazy_init=True, serialize_data=serialize)
    assert "name" not in lazy.metainfo
    assert len(lazy) == len(whole)  # which reads it
    assert lazy.metainfo["name"] == "CARGO"
    for indices, expected in ((3, [0, 1, 2]), ([2, 0], [2, 0]), (-1, [len(whole) - 1])):
        part = build("CARGO", cargo, split=split, indices=indices, serialize_data=serialize)
        paths = [part[index]["data_samples"].img_path for index in range(len(part))]
        assert paths == [whole[index]["data_samples"].img_path for index in expected]
        assert part.metainfo == whole.metainfo  # identities are still numbered among all
    subset = lazy.get_subset([1])
    assert subset[0]["data_samples"].img_path == whole[1]["data_samples"].img_path
    assert build("CARGO", cargo, split=split, metainfo={"note": 3}).metainfo["note"] == 3


def test_what_a_dataset_says_of_itself_cannot_be_changed_by_others(cargo):
    dataset = build("CARGO", cargo, metainfo={"notes": [1]})
    dataset.metainfo["notes"].append(2)
    assert dataset.metainfo["notes"] == [1]
    test_set = build("CARGO", cargo, split="test").metainfo["test_set"]
    assert pickle.loads(pickle.dumps(test_set)).records == test_set.records


@pytest.mark.parametrize("serialize", [True, False])
def test_workers_read_what_the_main_process_reads(cargo, serialize):
    dataset = build("CARGO", cargo, serialize_data=serialize)
    (batch,) = DataLoader(dataset, batch_size=4, num_workers=1, collate_fn=pseudo_collate)
    copied = pickle.loads(pickle.dumps(dataset))  # what a worker has that is not forked
    for index, (image, sample) in enumerate(zip(batch["inputs"], batch["data_samples"], strict=True)):
        for here in (dataset[index], copied[index]):
            assert torch.equal(image, here["inputs"])
            assert sample.metainfo == here["data_samples"].metainfo
            assert int(sample.gt_label) == int(here["data_samples"].gt_label)


@pytest.mark.parametrize(("split", "workers"), [("train", 0), ("test", 0), ("train", 1)])
def test_an_image_that_cannot_be_read_is_named_and_not_replaced(tmp_path, workers, split):
    root = whole_cargo(tmp_path / "CARGO")
    bad = next(iter(sorted((root / ("train" if split == "train" else "query")).rglob("*.jpg"))))
    bad.write_bytes(b"no image")
    config = {"dataset": build("CARGO", root, split=split), "batch_size": 4, "num_workers": workers}
    loader = Runner.build_dataloader({**config, "sampler": {"type": "DefaultSampler", "shuffle": False}})
    with pytest.raises(InputError, match=f"image {bad} cannot be read"):
        list(loader)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_transform_that_gives_nothing_is_told_of(cargo, split):
    dataset = build("CARGO", cargo, split=split, pipeline=[READ[0], lambda _: None])
    with pytest.raises(InputError, match=r"a transform of the pipeline gave nothing for .*\.jpg"):
        dataset[0]


def test_the_log_of_a_run_has_what_is_odd_about_a_copy(tmp_path):
    whole_cargo(tmp_path / "CARGO")
    MMLogger.get_instance("a run", log_file=tmp_path / "run.log")
    build("CARGO", tmp_path)
    assert "CARGO: read from CARGO" in (tmp_path / "run.log").read_text()


def test_several_datasets_to_train_on(described):
    joined = build(["CARGO", "cp2108"], described, options={"CP2108": {"attribute_level": "image"}}, attributes=[])
    parts = [build(name, described) for name in ("CARGO", "CP2108")]
    assert joined.metainfo["name"] == "CARGO+CP2108"
    assert joined.metainfo["num_ids"] == sum(part.metainfo["num_ids"] for part in parts)
    assert joined.metainfo["fingerprint"] == "+".join(part.metainfo["fingerprint"] for part in parts)
    assert len(joined) == sum(map(len, parts))
    samples = [joined[index]["data_samples"] for index in range(len(joined))]
    without = [sample for sample in samples if "CARGO" in sample.img_path]
    assert {tuple(sample.attributes.tolist()) for sample in without} == {(UNKNOWN,) * 22}
    labels = [int(sample.gt_label) for sample in samples]
    assert not set(labels[: len(without)]) & set(labels[len(without) :])


def test_the_root_may_come_from_the_environment(described, monkeypatch, tmp_path):
    monkeypatch.setenv("FASTREID_DATASETS", str(described))
    assert len(build("CARGO", "")) == len(build("CARGO", described))
    monkeypatch.delenv("FASTREID_DATASETS")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^datasets does not exist"):
        build("CARGO", "")


def test_attributes_by_name_and_by_rows(described):
    everything = build("CP2108", described, attributes=[])
    assert len(everything.metainfo["attributes"]) == 22
    assert build("CP2108", described).metainfo["attributes"] is None
    some = build("CP2108", described, attributes=["Pose", "environment"])
    assert [name for name, _ in some.metainfo["attributes"]] == ["Pose", "Illumination", "View"]
    rows = [["Pose", ["Standing", "Walking"]], ["Gender", ["Female", "Male"]]]  # not the dataset's orders
    by_rows = build("CP2108", described, attributes=rows)
    assert by_rows.metainfo["attributes"] == rows
    told = {record.path: record.attributes for record in load("CP2108", described).split("train")}
    for index in range(len(by_rows)):
        sample = by_rows[index]["data_samples"]
        values = [values[label] for (_, values), label in zip(rows, sample.attributes.tolist(), strict=True)]
        assert values == [told[sample.img_path][name] for name, _ in rows]
    of_model = {"dataset": "CP2108", "data_root": str(described), "names": ["Pose"]}
    assert build("CP2108", described, attributes=of_model).metainfo["attributes"] == some.metainfo["attributes"][:1]
    assert build("CARGO", described, attributes=[]).metainfo["attributes"] is None


def test_how_much_is_known_of_attributes_is_said(described, caplog):
    with caplog.at_level(logging.INFO, "agreid_plugin"):
        build(["CARGO", "CP2108"], described, attributes=[])
    assert "22 attributes, known of 47.7 % of the training images" in caplog.text
    assert "no training image has a label of Ethnicity: nothing is learned of it" in caplog.text


def test_a_training_identity_that_the_attribute_file_lacks(described, tmp_path):
    shutil.copytree(described / "CP2108", tmp_path / "CP2108")
    pid = load("CP2108", tmp_path).split("train")[0].pid
    told = json.loads((tmp_path / LABELS).read_text())
    (tmp_path / LABELS).write_text(
        json.dumps({key: value for key, value in told.items() if not key.startswith(f"{pid}_")})
    )
    with pytest.raises(InputError) as error:
        build("CP2108", tmp_path, attributes=[])
    assert str(error.value) == (
        f"{tmp_path / LABELS} lacks 1 training identities of CP2108, for example {pid}: complete it, or set "
        "missing_attributes=True to learn from the others"
    )
    assert len(build("CP2108", tmp_path, attributes=[], missing_attributes=True)) == 32
    assert len(build("CP2108", tmp_path)) == 32  # whoever learns nothing from attributes does not care


def test_captions_each_or_one_of_them(tmp_path, caplog):
    root = trees.tag_pedes(tmp_path)
    entries = json.loads((root / "anno_dir/train_reid.json").read_text())
    entries[0]["captions_bt"] = ["first back", "second back"]
    entries[0]["captions"][1] = "red " * 90
    entries[1]["captions"] = []
    trees.write_json(root / "anno_dir/train_reid.json", entries)
    with caplog.at_level(logging.INFO, "agreid_plugin"):
        each = build("TAG-PEDES", root, captions={"which": "all", "length": 20, "back_translation": 1.0})
    assert "1 of 2 training images have no caption and are left out" in caplog.text
    assert "1 of 2 training captions have more than 20 tokens: cut" in caplog.text
    assert "2 training captions have a back-translation" in caplog.text
    expected = [tokenize(text, 20)[0] for text in ("first back", "second back")]
    found = [each[index]["data_samples"].tokens for index in range(len(each))]
    assert len(found) == 2
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    caplog.clear()
    one = build("TAG-PEDES", root, captions={"which": "one", "length": 20})
    assert len(one) == 1
    drawn = {tuple(one[0]["data_samples"].tokens.tolist()) for _ in range(40)}
    assert drawn == {tuple(tokenize(clean(text), 20)[0].tolist()) for text in entries[0]["captions"]}
    assert "left out" in caplog.text


def test_no_caption_has_a_back_translation(tmp_path, caplog):
    build("TAG-PEDES", trees.tag_pedes(tmp_path), captions={"back_translation": 0.5})
    assert "no training caption has a back-translation: back_translation changes nothing" in caplog.text


def test_a_pipeline_may_read_captions_itself(tmp_path):
    own = [*READ[:2], {"type": "agreid_plugin.Tokenize", "length": 9}, READ[2]]
    dataset = build("TAG-PEDES", trees.tag_pedes(tmp_path), captions={}, pipeline=own)
    assert dataset[0]["data_samples"].tokens.shape == (9,)


def test_agsynth_is_made_where_the_dataset_is_missing(tmp_path):
    options = {"agsynth": {"ids": 4, "images_per_id": 4, "size": (32, 16)}}
    dataset = build("CARGO", tmp_path / "made", lazy_init=True, **options)
    marker = tmp_path / "made" / "CARGO" / AGSYNTH_FILE
    before = marker.stat().st_mtime_ns
    assert len(dataset) == 2 * 4
    assert {dataset[index]["data_samples"].view for index in range(8)} == {View.AERIAL, View.GROUND}
    build("CARGO", tmp_path / "made", split="test", **options)
    assert marker.stat().st_mtime_ns == before
    with pytest.raises(InputError, match=r"AG-Synth with ids 4 instead of 6.*set agsynth.ids 0 to take it as it is"):
        build("CARGO", tmp_path / "made", agsynth={**options["agsynth"], "ids": 6})
    with pytest.raises(InputError, match="AG-Synth with world easy instead of gap"):
        build("CARGO", tmp_path / "made", agsynth={**options["agsynth"], "world": "gap"})
    assert len(build("CARGO", tmp_path / "made", agsynth={"ids": 0})) == 8


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("KARGO", {}, "dataset 'KARGO' unknown .did you mean CARGO"),
        ([], {}, "name a dataset"),
        (["CARGO", "CP2108"], {"split": "test"}, "a test set is of one dataset; several are for training"),
        (["CARGO"], {"options": {"CP2108": {}}}, "options of dataset 'CP2108' unknown"),
        ("CARGO", {"split": "query"}, "split 'query' unknown"),
        ("CARGO", {"protocol": ["A2G"]}, "argument of ReIDDataset 'protocol' unknown .did you mean protocols"),
        ("CARGO", {"ann_file": "a.json"}, "argument of ReIDDataset 'ann_file' unknown"),
        ("CARGO", {"split": "test", "protocols": ["A2H"]}, "CARGO protocol 'A2H' unknown"),
        ("CARGO", {"split": "test", "protocols": ["AG"]}, "names three tasks in the literature"),
        ("CARGO", {"options": {"level": 1}}, "CARGO: option 'level' unknown"),
        ("CARGO", {"captions": {}}, "captions are to be learned from, but CARGO has none: train on a text set"),
        ("CARGO", {"captions": {"which": "some"}}, "captions: which 'some' unknown"),
        ("CARGO", {"captions": {"lenght": 20}}, "captions: argument of Tokenize 'lenght' unknown .did you mean length"),
        ("CARGO", {"attributes": ["Pose"]}, "attributes: Pose cannot be had of CARGO: is the attribute file"),
        ("CP2108", {"attributes": ["Poze"]}, "attributes: attribute 'Poze' unknown .did you mean Pose"),
        (
            "CP2108",
            {"attributes": [["Pose", ["Standing"]]]},
            "attributes: no place for what .*value of attribute 'Pose'",
        ),
        ("CP2108", {"attributes": [3]}, "attributes: rows should be"),
        ("CARGO", {"agsynth": {"id": 4}}, "argument of agsynth 'id' unknown .did you mean ids"),
        ("CARGO", {"data_root": "nowhere"}, "nowhere"),
    ],
)
def test_what_cannot_be_is_one_line(described, name, options, words):
    with pytest.raises(InputError, match=words) as error:
        build(name, described, **options)
    assert "\n" not in str(error.value)


def test_sentences_to_test_with_have_to_be_read(tmp_path):
    root = trees.tag_pedes(tmp_path)
    with pytest.raises(InputError, match="TAG-PEDES/T2I asks with sentences: say how they are read, captions=dict"):
        build("TAG-PEDES", root, split="test")


def test_a_dataset_with_nothing_to_train_on(tmp_path):
    root = trees.write_images(tmp_path, ["query/1_c1.jpg", "gallery/1_c2.jpg"])
    with pytest.raises(InputError, match=f"dataset folder under {root} has no train images"):
        build("folder", root)
    assert len(build("folder", root, split="test", protocols=["ALL"])) == 2
