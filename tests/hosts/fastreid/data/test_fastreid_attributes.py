"""Attributes in the host: which a model learns, and what may be wrong with their files."""

import json
import logging
import shutil

import pytest
import scipy.io
import torch
import yaml
from conftest import assert_one_line

from agreid_plugin.data.attributes import CP2108_APPEARANCE, QUT_GROUPS
from agreid_plugin.data.datasets import load
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data.attributes import get_schema, with_schema
from agreid_plugin.hosts.fastreid.data.datasets import host_name
from agreid_plugin.hosts.fastreid.data.loaders import build_train_loader
from agreid_plugin.types import UNKNOWN

ROWS = [["gender", ["male", "female"]], ["bag", ["nothing", "backpack"]]]
LABELS = "CP2108/attributes_labeled_qwen.json"


@pytest.fixture
def synth(described, tmp_path):
    """A copy of the datasets that a test may damage."""
    return shutil.copytree(described, tmp_path / "datasets")


@pytest.fixture
def config(config_file, synth):
    """A small configuration of some datasets of AG-Synth; overrides come as KEY, VALUE, ..."""

    def make(names, *overrides):
        tests = f"('{names[0]}',)"
        where = ["DATASETS.ROOT", synth, "DATASETS.NAMES", tuple(names), "DATASETS.TESTS", tests]
        return load_config(config_file, list(map(str, ["MODEL.DEVICE", "cpu", *where, *overrides])))

    return make


def rewrite_json(path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def forget(synth, pid: int) -> None:
    """Leave an identity out of CP2108's attributes."""
    rewrite_json(synth / LABELS, lambda told: [told.pop(key) for key in list(told) if key.startswith(f"{pid}_")])


def test_the_schema_is_the_training_sets(config):
    assert get_schema(config(["AG_ReID_v2"])).groups == QUT_GROUPS
    assert len(get_schema(config(["CP2108"]))) == 22
    assert get_schema(config(["CARGO"])) is None
    assert get_schema(config(["CARGO", "CP2108"])).names == get_schema(config(["CP2108"])).names
    both = get_schema(config(["CP2108", "AG_ReID_v2"]))
    assert len(both) == 22 + 15


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (["appearance"], CP2108_APPEARANCE),
        (["Pose", "Age"], ("Pose", "Age")),
        (["Gender", "environment", "View"], ("Gender", "Illumination", "View")),
    ],
)
def test_the_configuration_chooses_attributes_and_their_order(config, asked, names):
    cfg = config(["CP2108"], "DATASETS.ATTRIBUTES", asked)
    assert get_schema(cfg).names == names
    assert build_train_loader(cfg).dataset.schema.names == names


@pytest.mark.parametrize(
    ("names", "asked", "words"),
    [
        (["CP2108"], ["Poze"], "DATASETS.ATTRIBUTES: attribute 'Poze' unknown (did you mean Pose?)"),
        (["CP2108"], [3], "DATASETS.ATTRIBUTES: attribute '3' unknown"),
        (["AG_ReID_v2"], ["appearance"], "DATASETS.ATTRIBUTES: attribute 'Accessories' unknown"),
        (["CARGO"], ["Pose"], "DATASETS.ATTRIBUTES: Pose cannot be had of CARGO: is the attribute file there?"),
    ],
)
def test_attributes_that_do_not_exist_are_named(config, names, asked, words):
    with pytest.raises(InputError) as error:
        get_schema(config(names, "DATASETS.ATTRIBUTES", asked))
    assert str(error.value).startswith(words)


def test_a_run_keeps_its_schema_and_needs_no_training_set_later(config, tmp_path):
    cfg = config(["CP2108"], "DATASETS.ATTRIBUTES", ["Pose", "Holding Phone"])
    cfg.freeze()
    resolved = with_schema(cfg)
    assert resolved.is_frozen()
    assert list(cfg.MODEL.SVPR.ATTRIBUTES) == []
    kept = tmp_path / "config.yaml"
    kept.write_text(resolved.dump())
    again = load_config(kept, ["DATASETS.ROOT", str(tmp_path / "nowhere")])
    assert get_schema(again).groups == get_schema(cfg).groups
    assert get_schema(again).groups["Holding Phone"] == ("No", "Yes", "Unknown")  # text, though YAML has booleans
    assert with_schema(again).MODEL.SVPR.ATTRIBUTES == resolved.MODEL.SVPR.ATTRIBUTES


def test_a_run_without_attributes_keeps_that_too(config, tmp_path):
    resolved = with_schema(config(["CARGO"]))
    assert resolved.MODEL.SVPR.ATTRIBUTES == ["none"]
    assert "attributes" not in next(iter(build_train_loader(resolved)))
    resolved.DATASETS.ROOT = str(tmp_path / "nowhere")
    assert get_schema(resolved) is None
    forgetful = config(["CP2108"], "MODEL.SVPR.ATTRIBUTES", ["none"])
    assert "attributes" not in next(iter(build_train_loader(forgetful)))


def test_the_loader_encodes_with_the_schema_that_the_model_has(config):
    rows = [["Pose", ["Standing", "Walking"]], ["Gender", ["Female", "Male"]]]  # not the dataset's orders
    loader = build_train_loader(config(["CP2108"], "MODEL.SVPR.ATTRIBUTES", rows))
    records = {item[0]: item.record for item in loader.dataset.img_items}
    batch = next(iter(loader))
    told = [records[path].attributes for path in batch["img_paths"]]
    assert batch["attributes"].tolist() == [
        [rows[0][1].index(each["Pose"]), rows[1][1].index(each["Gender"])] for each in told
    ]


@pytest.mark.parametrize(("name", "attributes"), [("AG_ReID_v2", 15), ("CP2108", 22)])
def test_what_svpr_learns_from_comes_out(config, name, attributes):
    loader = build_train_loader(with_schema(config([name])))
    batch = next(iter(loader))
    assert batch["attributes"].shape == (16, attributes)
    assert (batch["attributes"] != UNKNOWN).float().mean() > 0.85
    assert (batch["attributes"] < torch.tensor(loader.dataset.schema.sizes)).all()
    assert (batch["platforms"] != UNKNOWN).all()


def test_images_of_a_set_without_attributes_have_unknown_ones(config, caplog):
    with caplog.at_level(logging.INFO, "fastreid.data"):
        loader = build_train_loader(with_schema(config(["CARGO", "CP2108"])))
    samples = [loader.dataset[index] for index in range(len(loader.dataset))]
    without = [sample for sample in samples if "CARGO" in sample.path]
    assert {sample.attributes for sample in without} == {(UNKNOWN,) * 22}
    assert "22 attributes, known of 47.7 % of the training images" in caplog.text  # half of the images, 21 of 22
    assert "no training image has a label of Ethnicity: nothing is learned of it" in caplog.text


def test_attributes_of_the_image_by_configuration(config):
    cfg = config(["CP2108"], "DATASETS.ATTRIBUTES", ["Illumination"])
    by_identity = build_train_loader(cfg).dataset
    cfg.DATASETS.ATTRIBUTE_LEVEL = "image"
    by_image = build_train_loader(cfg).dataset
    assert {by_identity[index].attributes for index in range(len(by_identity))} == {(0,)}
    assert {by_image[index].attributes for index in range(len(by_image))} == {(0,), (1,)}
    cfg.DATASETS.ATTRIBUTE_LEVEL = "picture"
    with pytest.raises(InputError, match="attribute_level 'picture' unknown"):
        build_train_loader(cfg)


@pytest.mark.parametrize(("dataset", "file"), [("CP2108", LABELS), ("AG-ReID.v2", "AG-ReID.v2/qut_attribute_v8.mat")])
def test_a_training_identity_that_the_file_lacks(config, synth, dataset, file):
    name = host_name(dataset)
    pids = sorted({record.pid for record in load(dataset, synth).split("train")})
    if dataset == "CP2108":
        forget(synth, pids[1])
    else:
        halves = scipy.io.loadmat(synth / file, simplify_cells=True)["qut_attribute"]
        keep = [int(pid) != pids[1] for pid in halves["train"]["image_index"]]
        halves["train"] = {field: column[keep] for field, column in halves["train"].items()}
        scipy.io.savemat(synth / file, {"qut_attribute": halves})
    cfg = with_schema(config([name]))
    with pytest.raises(InputError) as error:
        build_train_loader(cfg)
    assert str(error.value) == (
        f"{synth / file} lacks 1 training identities of {dataset}, for example {pids[1]}: complete it, or set "
        "DATASETS.MISSING_ATTRIBUTES True to learn from the others"
    )
    cfg.DATASETS.MISSING_ATTRIBUTES = True
    assert len(build_train_loader(cfg).dataset) == 32
    # Whoever learns nothing from attributes does not care.
    assert len(build_train_loader(config([name])).dataset) == 32


def test_a_test_identity_that_the_file_lacks_is_nobodys_business(config, synth):
    pid = load("CP2108", synth).split("query")[0].pid
    forget(synth, pid)
    assert load("CP2108", synth).undescribed == (pid,)
    assert len(build_train_loader(with_schema(config(["CP2108"]))).dataset) == 32


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["gender"], "MODEL.SVPR.ATTRIBUTES: rows should be [name, [value, ...]], not 'gender'"),
        ([["gender", []]], "MODEL.SVPR.ATTRIBUTES: rows should be [name, [value, ...]], not ['gender', []]"),
        ([["Glasses", [False, "Yes"]]], "MODEL.SVPR.ATTRIBUTES: value False of 'Glasses' is no text; put it in quotes"),
        ([["Pose", ["a", "a"]]], "MODEL.SVPR.ATTRIBUTES: 'Pose' has a value twice"),
        ([*ROWS, ROWS[0]], "MODEL.SVPR.ATTRIBUTES: 'gender' is named twice"),
    ],
)
def test_a_schema_that_is_none(config, rows, words):
    with pytest.raises(InputError) as error:
        get_schema(config(["CP2108"], "MODEL.SVPR.ATTRIBUTES", rows))
    assert str(error.value).startswith(words)


def test_a_schema_that_contradicts(config):
    cfg = config(["AG_ReID_v2"], "MODEL.SVPR.ATTRIBUTES", ROWS, "DATASETS.ATTRIBUTES", ["bag"])
    with pytest.raises(InputError, match=r"asks for bag, but MODEL.SVPR.ATTRIBUTES of this run has gender, bag"):
        get_schema(cfg)
    cfg.DATASETS.ATTRIBUTES = ["gender", "bag"]
    assert get_schema(cfg).sizes == (2, 2)


def test_training_images_with_values_that_the_model_lacks(config):
    rows = [["Pose", ["Walkin", "Riding"]]]
    with pytest.raises(InputError) as error:
        build_train_loader(config(["CP2108"], "MODEL.SVPR.ATTRIBUTES", rows))
    line = str(error.value)
    assert line.startswith("MODEL.SVPR.ATTRIBUTES: no place for what ")
    assert ".jpg has: value of attribute 'Pose' '" in line
    assert "known: Riding, Walkin" in line


def test_two_sets_that_disagree(config, synth):
    rewrite_json(synth / "CP2108/attr_translation_idx.json", lambda values: values.update(gender={"male": 0}))
    cfg = config(["CP2108", "AG_ReID_v2"])
    with pytest.raises(InputError, match="the training sets give the attribute 'gender' different values"):
        get_schema(cfg)
    cfg.DATASETS.ATTRIBUTES = ["Pose", "bag"]
    assert get_schema(cfg).names == ("Pose", "bag")


def test_a_bad_value_is_one_line_of_the_command(fastreid_command, config_file, synth, tmp_path):
    rewrite_json(synth / LABELS, lambda told: next(iter(told.values())).update(Pose="Walkng"))
    outcome = fastreid_command(
        *("train", "--config", config_file, "--output", tmp_path / "run", "DATASETS.ROOT", synth),
        *("DATASETS.NAMES", "('CP2108',)", "DATASETS.TESTS", "('CP2108_ALL',)"),
    )
    assert_one_line(outcome, "attributes_labeled_qwen.json", "'Pose' 'Walkng' unknown (did you mean Walking?)")


def test_a_schema_in_yaml_by_hand(tmp_path):
    mine = tmp_path / "mine.yml"
    mine.write_text(yaml.safe_dump({"MODEL": {"SVPR": {"ATTRIBUTES": ROWS}}}))
    assert get_schema(load_config(mine)).groups == {"gender": ("male", "female"), "bag": ("nothing", "backpack")}
