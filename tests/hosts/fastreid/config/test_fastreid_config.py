"""Configurations: what is taken, and the one line for what is not."""

import pytest
from fastreid.config import get_cfg
from small_fastreid import forget_keys

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid import components  # noqa: F401 - importing it declares the keys of all parts
from agreid_plugin.hosts.fastreid.config.loading import (
    KEYS,
    Key,
    declare,
    describe_keys,
    key_error_context,
    key_paths,
    load_config,
)


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "a.yml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_every_key_of_ours_is_in_the_hosts_defaults_with_a_sentence():
    assert {key.path for key in KEYS} < set(describe_keys()) <= set(key_paths(get_cfg()))
    assert not [path for path, sentence in describe_keys().items() if not sentence.endswith(".")]


def test_declare_makes_nodes_as_needed(monkeypatch):
    forget_keys(monkeypatch)
    declare([Key("MODEL.SOMETHING_NEW.WIDTH", 3, "A width.")])
    assert get_cfg().MODEL.SOMETHING_NEW.WIDTH == 3


def test_base_is_relative_to_the_file_and_overridden(write, monkeypatch, tmp_path):
    write("SOLVER: {MAX_EPOCH: 7, BASE_LR: 0.1}\nSEED: 5", "bases/deep/base.yml")
    write("_BASE_: deep/base.yml\nSOLVER: {BASE_LR: 0.2}", "bases/middle.yml")
    path = write("_BASE_: ../bases/middle.yml\nSEED: 6", "project/a.yml")
    monkeypatch.chdir(tmp_path.parent)
    cfg = load_config(path, ["SOLVER.IMS_PER_BATCH", "12"])
    assert (cfg.SOLVER.MAX_EPOCH, cfg.SOLVER.BASE_LR, cfg.SEED, cfg.SOLVER.IMS_PER_BATCH) == (7, 0.2, 6, 12)


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("MODEL: {HEADS: {MARGIN: 0}}", "MODEL.HEADS.MARGIN", 0.0),
        ("MODEL: {HEADS: {SCALE: 64.0}}", "MODEL.HEADS.SCALE", 64),
        ("SOLVER: {BASE_LR: 1}", "SOLVER.BASE_LR", 1.0),
        ("SOLVER: {BASE_LR: 3e-4}", "SOLVER.BASE_LR", 3e-4),
        ("DATASETS: {NAMES: [A, B]}", "DATASETS.NAMES", ("A", "B")),
        ("INPUT: {SIZE_TRAIN: [32, 16]}", "INPUT.SIZE_TRAIN", [32, 16]),
        ("SOLVER.MAX_EPOCH: 3", "SOLVER.MAX_EPOCH", 3),
        ("", "SEED", 0),
    ],
)
def test_values_are_taken_as_the_keys_type(write, text, path, value):
    node = load_config(write(text))
    for name in path.split("."):
        node = node[name]
    assert node == value
    assert type(node) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SOLVER: {MAX_ITER: 3}", ["a.yml", "key SOLVER.MAX_ITER unknown", "did you mean SOLVER.MAX_EPOCH?"]),
        ("MODEL: {DEPTH: 50x}", ["key MODEL.DEPTH unknown", "did you mean MODEL.BACKBONE.DEPTH?"]),
        ("SLOVER: {BASE_LR: 1}", ["key SLOVER unknown", "did you mean SOLVER?"]),
        ("SOLVER: 3", ["SOLVER is a group of keys", "MAX_EPOCH"]),
        ("SOLVER: {MAX_EPOCH: many}", ["key SOLVER.MAX_EPOCH takes a whole number, for example 120, got 'many'"]),
        ("SOLVER: {MAX_EPOCH: 2.5}", ["takes a whole number"]),
        ("SOLVER: {AMP: {ENABLED: 1}}", ["key SOLVER.AMP.ENABLED takes True or False, got 1"]),
        ("SOLVER: {MAX_EPOCH: True}", ["takes a whole number"]),
        ("DATASETS: {NAMES: Market1501}", ["key DATASETS.NAMES takes a list", "got 'Market1501'"]),
        ("MODEL: {WEIGHTS: null}", ["key MODEL.WEIGHTS takes text, got None"]),
        ("SOLVER: {MAX_EPOCH: 3", ["a.yml, line", "not valid YAML"]),
        ("- a\n- b", ["expected keys and values, found a list"]),
        ("_BASE_: nowhere.yml", ["_BASE_ nowhere.yml does not exist"]),
        ("_BASE_: a.yml", ["_BASE_ leads back"]),
        ("_BASE_: [a.yml]", ["_BASE_ takes one file name"]),
        ("SEED: !!python/object/apply:os.system ['echo harm']", ["not valid YAML"]),
    ],
)
def test_a_mistake_is_one_line_with_its_place(write, text, words):
    with pytest.raises(InputError) as error:
        load_config(write(text))
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["SOLVER.BASE_LR"], "'SOLVER.BASE_LR' has no value"),
        (["SOLVER.BASE_LR=0.1", "x"], "write 'SOLVER.BASE_LR 0.1' instead"),
        (["SOLVER.LR", "1"], "did you mean SOLVER.BASE_LR?"),
        (
            ["model.pth"],
            "--resume takes no file, it continues the run in OUTPUT_DIR; to start from weights write MODEL.",
        ),
        (["SOLVER.BASE_LR", "{[1]: 2}"], "SOLVER.BASE_LR"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(write, overrides, words):
    with pytest.raises(InputError) as error:
        load_config(write(""), overrides)
    assert words in str(error.value)


def test_a_missing_file_suggests_its_neighbor(write, tmp_path):
    write("", "cargo.yml")
    with pytest.raises(InputError, match=r"crago\.yml does not exist \(did you mean cargo\.yml\?\)"):
        load_config(tmp_path / "crago.yml")


def test_a_binary_file_is_one_line(tmp_path):
    (tmp_path / "a.yml").write_bytes(b"\xff\xfe\x00binary\x80")
    with pytest.raises(InputError, match="not UTF-8 text"):
        load_config(tmp_path / "a.yml")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("top_k=4 should be less", "MODEL.SVPR: top_k=4 should be less"),
        ("MODEL.VIEW 'x' unknown", "MODEL.VIEW 'x' unknown"),
        ("DATASETS.ATTRIBUTES asks for hat", "DATASETS.ATTRIBUTES asks for hat"),
        ("SVPR. It", "MODEL.SVPR: SVPR. It"),
    ],
)
def test_what_names_its_key_is_not_said_of_another(message, told):
    with pytest.raises(InputError) as error, key_error_context("MODEL.SVPR"):
        raise InputError(message)
    assert str(error.value) == told
