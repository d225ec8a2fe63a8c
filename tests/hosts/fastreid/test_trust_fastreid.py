"""Hostile files on every path by which fast-reid's commands read weights and configurations."""

import pytest
import torch
import yaml
from conftest import SMALL_CONFIG, assert_one_line, slow
from fastreid.config import CfgNode, get_cfg
from fastreid.modeling import build_model
from fuzz_configs import VDT
from malicious import ASKS, evil_checkpoint, evil_yaml, pointing_checkpoint, reading_commands, slipping_zip
from zygote import assert_refused

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config.loading import load_config

TAG_CLIP = {
    "META_ARCHITECTURE": "TAGCLIP",
    "BACKBONE": {"NAME": "build_clip_backbone", "STRIDE_SIZE": [8, 8]},
    "CLIP": {
        "WIDTH": 16,
        "LAYERS": 2,
        "HEADS": 2,
        "PATCH_SIZE": 8,
        "EMBED_DIM": 8,
        "TEXT_WIDTH": 8,
        "TEXT_LAYERS": 1,
        "TEXT_HEADS": 2,
    },
    "TAG_CLIP": {"AT": [1], "TSE_WIDTH": 6},
    "LOSSES": {"NAME": []},
}


@pytest.fixture
def config(tmp_path, agsynth):
    """A VDT that trains on AG-Synth in seconds."""
    datasets = {"NAMES": ["CARGO"], "TESTS": ["CARGO"], "ROOT": str(agsynth)}
    path = tmp_path / "vdt.yml"
    path.write_text(yaml.safe_dump({**VDT, "DATASETS": datasets, "TEST": {}, "OUTPUT_DIR": str(tmp_path / "run")}))
    return path


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "marker"


@pytest.fixture
def evil(tmp_path, marker, config):
    """A good checkpoint of the VDT that would make a file besides."""
    return evil_checkpoint(tmp_path / "evil.pth", marker, model=build_model(load_config(config)).state_dict())


def _resumed(tmp_path, evil):
    (tmp_path / "run").mkdir()
    evil.rename(tmp_path / "run" / "evil.pth")
    (tmp_path / "run" / "last_checkpoint").write_text("evil.pth")
    return ["--resume"]


TRAINING = {
    "MODEL.WEIGHTS": lambda _, evil: ["MODEL.WEIGHTS", evil],
    "PRETRAIN_PATH": lambda _, evil: ["MODEL.BACKBONE.PRETRAIN", True, "MODEL.BACKBONE.PRETRAIN_PATH", evil],
    "--resume": _resumed,
}
OTHERS = ("eval", "extract", "export", "index", "search", "visualize", "convert")


@pytest.mark.parametrize("overrides", TRAINING.values(), ids=TRAINING)
def test_training_refuses_a_checkpoint_that_runs_code(fastreid_command, config, evil, marker, tmp_path, overrides):
    outcome = fastreid_command("train", "--config", config, *overrides(tmp_path, evil))
    assert_one_line(outcome, *ASKS)
    assert not marker.exists()


@pytest.mark.parametrize("name", [*list(TRAINING)[:2], "eval", *slow("--resume", *OTHERS[1:])])
def test_no_command_goes_where_a_checkpoint_points(forked_command, config, agsynth, tmp_path, name):
    """In a process of its own, which would die."""
    evil = pointing_checkpoint(tmp_path / "evil.pth", "array", state_dict={}, meta={})
    if name in TRAINING:
        argv = ["train", "--config", config, *TRAINING[name](tmp_path, evil)]
    elif name == "convert":
        argv = ["convert", "vdt", evil, "--config", config, "--out", tmp_path / "out.pth"]
    else:
        argv = reading_commands(evil, config, agsynth, tmp_path)[name]
    assert_refused(forked_command(*argv), "evil.pth was not loaded", "asks for tuple;")


@pytest.mark.parametrize(
    ("name", "depth"),
    [
        *(("resnet", "18x"), ("vit", "small")),
        *slow(("resnest", "50x"), ("resnext", "50x"), ("osnet", "x1_0"), ("shufflenetv2", "1.0x")),
        *slow(("mobilenetv2", "1.0x"), ("mobilenetv3", "Small"), ("repvgg", "A0")),
    ],
)
def test_pretrained_backbones_of_the_host(tmp_path, marker, name, depth):
    cfg = get_cfg()
    cfg.MODEL.DEVICE, cfg.MODEL.BACKBONE.NAME, cfg.MODEL.BACKBONE.DEPTH = "cpu", f"build_{name}_backbone", depth
    cfg.MODEL.BACKBONE.PRETRAIN, cfg.MODEL.BACKBONE.PRETRAIN_PATH = True, str(tmp_path / "evil.pth")
    evil_checkpoint(tmp_path / "evil.pth", marker)
    with pytest.raises(InputError, match=r"evil\.pth was not loaded: .* asks for io\.open;"):
        build_model(cfg)
    assert not marker.exists()
    slipping_zip(tmp_path / "evil.pth")
    with pytest.raises(InputError, match=r"evil\.pth cannot be read"):
        build_model(cfg)


def test_a_teacher(fastreid_command, config_file, tmp_path, marker):
    teacher = {**SMALL_CONFIG, "MODEL": {**SMALL_CONFIG["MODEL"], "DEVICE": "cpu"}}
    (tmp_path / "teacher.yml").write_text(yaml.safe_dump(teacher))
    evil_checkpoint(tmp_path / "evil.pth", marker, model={})
    distiller = ["train", "--config", config_file, "--output", tmp_path / "run", "MODEL.META_ARCHITECTURE", "Distiller"]
    teacher = ["KD.MODEL_CONFIG", [str(tmp_path / "teacher.yml")], "KD.MODEL_WEIGHTS", [str(tmp_path / "evil.pth")]]
    assert_one_line(fastreid_command(*distiller, *teacher), *ASKS)
    (tmp_path / "teacher.yml").write_text(f"SEED: {evil_yaml(marker)}")
    assert_one_line(fastreid_command(*distiller, *teacher), "teacher.yml, line 1", "would run code")
    assert not marker.exists()


def test_convert(fastreid_command, config, evil, marker, tmp_path):
    argv = ["convert", "vdt", evil, "--config", config, "--out", tmp_path / "out.pth"]
    assert_one_line(fastreid_command(*argv), *ASKS)
    assert not marker.exists()
    assert not (tmp_path / "out.pth").exists()
    fastreid_command(*argv, "--trust-checkpoint")
    assert marker.exists()


def test_search(fastreid_command, config, evil, marker, agsynth):
    datasets = {"NAMES": ["TAG_PEDES"], "TESTS": ["TAG_PEDES"]}
    content = {"MODEL": {"DEVICE": "cpu", **TAG_CLIP}, "INPUT": VDT["INPUT"], "DATASETS": datasets}
    config.write_text(yaml.safe_dump(content))
    argv = ["search", "--config", config, "--weights", evil, "--gallery", agsynth, "--text", "a man"]
    assert_one_line(fastreid_command(*argv), *ASKS)
    assert not marker.exists()


def test_evaluation_of_a_trusted_file(fastreid_command, config, evil, marker):
    argv = ["eval", "--config", config, "--weights", evil]
    assert_one_line(fastreid_command(*argv), *ASKS)
    assert not marker.exists()
    outcome = fastreid_command(*argv, "--trust-checkpoint")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count(f"{evil} is loaded with the code that it holds") == 1
    assert marker.exists()
    marker.unlink()
    assert_one_line(fastreid_command(*argv), *ASKS)  # trust ends with the command
    assert not marker.exists()


def test_trust_reaches_other_processes(fastreid_command, config, evil, marker):
    outcome = fastreid_command(
        "eval", "--config", config, "--weights", evil, "--num-processes", 2, "--trust-checkpoint"
    )
    assert outcome.code == 0, outcome.err
    assert marker.exists()


@pytest.mark.parametrize("where", ["", "_BASE_: base.yml", "_BASE_: base.yml\n_BASE_: base.yml"])
def test_tags_in_configurations(fastreid_command, tmp_path, marker, where):
    text = f"MODEL: {{WEIGHTS: {evil_yaml(marker)}}}"
    (tmp_path / "base.yml").write_text(text)
    (tmp_path / "a.yml").write_text(where or text)
    for command in (["train"], ["eval"], ["explain"]):
        outcome = fastreid_command(*command, "--config", tmp_path / "a.yml")
        assert_one_line(outcome, "line ", "is there twice" if where.count("\n") else "would run code, so it is refused")
    assert not marker.exists()


def test_tags_in_grids(fastreid_command, tmp_path, marker):
    (tmp_path / "grid.yml").write_text(f"config: {evil_yaml(marker)}")
    assert_one_line(fastreid_command("ablate", tmp_path / "grid.yml"), "grid.yml, line 1", "would run code")
    assert not marker.exists()


def test_the_hosts_own_reader_makes_no_objects(tmp_path, marker):
    (tmp_path / "a.yml").write_text(f"SEED: {evil_yaml(marker)}")
    for allowed in (False, True):
        with pytest.raises(InputError, match=r"a\.yml, line 1: .* would run code, so it is refused"):
            CfgNode.load_yaml_with_base(str(tmp_path / "a.yml"), allow_unsafe=allowed)
    assert not marker.exists()


def test_the_hosts_own_reader_merges_bases(tmp_path):
    (tmp_path / "base.yml").write_text("SEED: 1\nMODEL: {DEVICE: cpu, WEIGHTS: a.pth}")
    (tmp_path / "a.yml").write_text("_BASE_: base.yml\nMODEL: {WEIGHTS: b.pth}")
    cfg = get_cfg()
    cfg.merge_from_file(str(tmp_path / "a.yml"))
    assert (cfg.SEED, cfg.MODEL.DEVICE, cfg.MODEL.WEIGHTS) == (1, "cpu", "b.pth")


@pytest.mark.parametrize("option", ["--weights", "--features"])
def test_archives_with_names_that_lead_out(fastreid_command, config, tmp_path, option):
    folder = tmp_path / "deep" / "down"
    folder.mkdir(parents=True)
    path = slipping_zip(folder / ("a.npz" if option == "--features" else "a.pth"))
    assert_one_line(fastreid_command("eval", "--config", config, option, path), path.name)
    assert not list(tmp_path.rglob("slipped*"))


def test_weights_for_another_backbone_are_one_line(tmp_path):
    cfg = get_cfg()
    cfg.MODEL.DEVICE, cfg.MODEL.BACKBONE.DEPTH = "cpu", "18x"
    for content, words in (
        ({"conv1.weight": torch.ones(3)}, "is not for build_resnet_backbone: size mismatch for conv1.weight"),
        ([1], "is not for build_resnet_backbone: "),
    ):
        torch.save(content, tmp_path / "a.pth")
        cfg.MODEL.BACKBONE.PRETRAIN, cfg.MODEL.BACKBONE.PRETRAIN_PATH = True, str(tmp_path / "a.pth")
        with pytest.raises(InputError, match=words):
            build_model(cfg)
