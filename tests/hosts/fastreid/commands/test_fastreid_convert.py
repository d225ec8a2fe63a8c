"""`fastreid convert`: released checkpoints through the command, and what the converted files do in an evaluation."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import assert_one_line
from fastreid.modeling import build_model
from released_format import randomize, released_vdt, released_visa
from released_svpr import released_svpr
from released_tag_clip import released_tag_clip

from agreid_plugin.cli.main import build_parser
from agreid_plugin.data.attributes import AttributeSchema
from agreid_plugin.hosts.fastreid.config.loading import load_config

GROUPS = {"bag": ("none", "backpack"), "hat": ("no", "yes", "unknown")}
RELEASED = {
    "vdt": released_vdt,
    "visa": released_visa,
    "svpr": lambda state: released_svpr(state, AttributeSchema(GROUPS)),
    "tag-clip": released_tag_clip,
}
IDENTITIES = 7
OPTIONS = {
    "vdt": {"META_ARCHITECTURE": "VDT", "BACKBONE": {"NAME": "build_vdt_backbone"}},
    "visa": {
        "META_ARCHITECTURE": "ViSA",
        "BACKBONE": {"NAME": "build_visa_backbone"},
        "VISA": {"VARIANT": "released", "EXPERTS": 2, "TOKENS": 3, "NEIGHBORS": 4},
    },
    "svpr": {
        "META_ARCHITECTURE": "SVPR",
        "BACKBONE": {"NAME": "build_clip_backbone"},
        "CLIP": {
            "WIDTH": 16,
            "LAYERS": 2,
            "HEADS": 2,
            "PATCH_SIZE": 8,
            "TEXT_WIDTH": 8,
            "TEXT_LAYERS": 1,
            "TEXT_HEADS": 2,
            "EMBED_DIM": 8,
            "TEXT_LENGTH": 48,
        },
        "SVPR": {"VARIANT": "released", "ATTRIBUTES": [[name, list(values)] for name, values in GROUPS.items()]},
    },
}
OPTIONS["tag-clip"] = {
    "META_ARCHITECTURE": "TAGCLIP",
    "BACKBONE": {"NAME": "build_clip_backbone"},
    "CLIP": OPTIONS["svpr"]["CLIP"],
    "TAG_CLIP": {"AT": [1], "EXPERTS": 3, "TOP_K": 2, "TSE_WIDTH": 6},
    "LOSSES": {"NAME": []},
}
WIDTHS = {"vdt": 16, "visa": 32, "svpr": 64}


@pytest.fixture
def configured(tmp_path, agsynth):
    """Write a tiny configuration of a method, with keys changed."""

    def write(method: str, name: str = "tiny.yml", **changes) -> Path:
        content = {
            "MODEL": {
                "DEVICE": "cpu",
                "HEADS": {"NAME": "BNNeckHead"},
                "VIT": {"PATCH_SIZE": 8, "WIDTH": 16, "LAYERS": 3, "HEADS": 2},
                "PIXEL_MEAN": [127.5] * 3,
                "PIXEL_STD": [127.5] * 3,
                **OPTIONS[method],
            },
            "INPUT": {"SIZE_TRAIN": [32, 16], "SIZE_TEST": [32, 16]},
            "DATASETS": {"NAMES": ["CARGO"], "TESTS": ["CARGO"], "ROOT": str(agsynth)},
            "DATALOADER": {"NUM_WORKERS": 0},
            "OUTPUT_DIR": str(tmp_path / "run"),
        }
        content["MODEL"]["BACKBONE"] = {"DEPTH": "tiny", "STRIDE_SIZE": [8, 8], **content["MODEL"]["BACKBONE"]}
        for path, value in changes.items():
            *parents, key = path.split("__")
            node = content
            for parent in parents:
                node[parent] = dict(node.get(parent, {}))
                node = node[parent]
            node[key] = value
        (tmp_path / name).write_text(yaml.safe_dump(content))
        return tmp_path / name

    return write


@pytest.fixture
def trained(tmp_path):
    """Write a model's checkpoint as ours and as the released code would have it."""

    def write(method: str, config: Path, prefix: str = "", without: str = "nothing") -> tuple[Path, Path]:
        cfg = load_config(config)
        cfg.MODEL.BACKBONE.PRETRAIN, cfg.MODEL.HEADS.NUM_CLASSES = False, IDENTITIES
        model = build_model(cfg)
        randomize(model)
        ours, released = tmp_path / "ours.pth", tmp_path / "released.pth"
        torch.save({"model": model.state_dict()}, ours)
        state = {f"{prefix}{key}": value for key, value in RELEASED[method](model.state_dict()).items()}
        state = {key: value for key, value in state.items() if not key.endswith(without)}
        torch.save({"model": state, "optimizer": {"state": {}, "param_groups": []}, "epoch": 119}, released)
        return ours, released

    return write


@pytest.fixture
def convert(fastreid_command, tmp_path):
    def run(method: str, released: Path, config: Path, out: Path | None = None):
        return fastreid_command("convert", method, released, "--config", config, "--out", out or tmp_path / "out.pth")

    return run


@pytest.mark.parametrize("method", ["vdt", "visa", "svpr"])
def test_a_converted_file_evaluates_as_the_original(fastreid_command, configured, trained, convert, tmp_path, method):
    config = configured(method)
    ours, released = trained(method, config)
    outcome = convert(method, released, config)
    assert outcome.code == 0, outcome.err
    found = {}
    for name, weights in (("ours", ours), ("converted", tmp_path / "out.pth")):
        run = ["eval", "--config", config, "--weights", weights, "--output", tmp_path / name]
        outcome = fastreid_command(*run, "--save-features", tmp_path / f"{name}.npz")
        assert outcome.code == 0, outcome.err
        with np.load(tmp_path / f"{name}.npz") as archive:
            features = next(archive[key] for key in archive.files if archive[key].ndim == 2)
        found[name] = (json.loads((tmp_path / name / "results.json").read_text()), features)
    assert found["ours"][0] == found["converted"][0]
    assert found["ours"][1].shape[1] == WIDTHS[method]
    assert np.array_equal(found["ours"][1], found["converted"][1])


def test_what_the_command_tells(configured, trained, convert, tmp_path):
    config = configured("visa")
    _, released = trained("visa", config)
    lines = convert("visa", released, config).out.splitlines()
    content = torch.load(tmp_path / "out.pth", weights_only=True)
    source = torch.load(released, weights_only=True)["model"]
    assert content["source"] == {"file": "released.pth", "method": "visa"}
    assert lines[0].startswith(f"{tmp_path / 'out.pth'}: {len(content['model'])} tensors, ")
    assert lines[0].endswith(f"made of {len(source) - 40} of the {len(source)} tensors in released.pth")
    assert lines[1].startswith("dropped, as it reaches no output: 40 tensors, ")
    block = 12 * 16 * 16 + 13 * 16
    assert lines[2] == f"  last block of `base`: its copy in `b1` is what runs (12 tensors, {block:,} parameters)"
    assert lines[4].endswith("(1 tensor, 256 parameters)")  # the graph layer
    assert "query and key projections of the experts" in lines[6]
    assert lines[6].endswith(f"(24 tensors, {12 * 16 * 17:,} parameters)")
    assert lines[7].startswith("left at its initial value: the view predictor (6 tensors, ")
    assert lines[8].startswith(f"not in the file, so as {config} has it: MODEL.VISA.TOP_K 2, MODEL.VISA.NEIGHBORS 4, ")
    assert len(lines) == 9
    assert not list(tmp_path.glob(".*"))


def test_nothing_of_vdt_is_dropped(configured, trained, convert):
    config = configured("vdt")
    _, released = trained("vdt", config)
    first, *others = convert("vdt", released, config).out.splitlines()
    assert first.endswith("made of 55 of the 55 tensors in released.pth")
    assert [line.split(",")[0] for line in others] == ["not in the file"]


def test_the_file_tells_the_attributes_of_svpr(configured, trained, convert, tmp_path):
    written = configured("svpr")
    _, released = trained("svpr", written)
    assert convert("svpr", released, written, tmp_path / "written.pth").code == 0
    nowhere = {"DATASETS__ROOT": str(tmp_path / "nowhere")}
    outcome = convert("svpr", released, configured("svpr", "empty.yml", MODEL__SVPR={"VARIANT": "released"}, **nowhere))
    assert outcome.code == 0, outcome.err
    with_rows, without = (
        torch.load(tmp_path / f"{name}.pth", weights_only=True)["model"] for name in ("written", "out")
    )
    assert with_rows.keys() == without.keys()
    assert all(torch.equal(with_rows[name], without[name]) for name in with_rows)

    other = {"VARIANT": "released", "ATTRIBUTES": [["bag", ["none", "backpack"]]]}
    outcome = convert("svpr", released, configured("svpr", "other.yml", MODEL__SVPR=other), tmp_path / "no.pth")
    assert_one_line(outcome, "other.yml", "classifiers.1.weight")


def test_what_the_command_tells_of_svpr(configured, trained, convert):
    config = configured("svpr")
    _, released = trained("svpr", config)
    outcome = convert("svpr", released, config)
    assert outcome.code == 0, outcome.err
    first, told, second, *_, last = outcome.out.splitlines()
    assert " tensors in released.pth" in first
    assert told == "attributes and how many values each has: bag 2, hat 3"
    assert second.startswith("dropped, as it reaches no output: ")
    assert "MODEL.CLIP.QUICK_GELU auto" in last
    assert "MODEL.SVPR.VIEW_WORDS.UAV aerial" in last


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("SVPR__VARIANT", "paper", ["MODEL.SVPR.VARIANT is paper", "set MODEL.SVPR.VARIANT released"]),
        ("SVPR__ASMOE", False, ["MODEL.SVPR.ASMOE is False"]),
        ("CLIP__TEXT_LENGTH", 60, ["positional_embedding", "check MODEL.CLIP.TEXT_LENGTH"]),
        ("CLIP__WIDTH", 24, ["check MODEL.BACKBONE.DEPTH, or the keys of MODEL.VIT and MODEL.CLIP"]),
        ("BACKBONE__STRIDE_SIZE", [4, 4], ["(21, 16)", "check MODEL.BACKBONE.STRIDE_SIZE"]),
    ],
)
def test_a_configuration_of_another_svpr_is_refused(configured, trained, convert, tmp_path, key, value, words):
    _, released = trained("svpr", configured("svpr"))
    other = configured("svpr", "other.yml", **{f"MODEL__{key}": value})
    assert_one_line(convert("svpr", released, other), *words)
    assert not (tmp_path / "out.pth").exists()


def test_tag_clip_in_our_names(configured, trained, convert, tmp_path):
    config = configured("tag-clip")
    ours, released = trained("tag-clip", config)
    outcome = convert("tag-clip", released, config)
    assert outcome.code == 0, outcome.err
    assert "dropped, as it reaches no output" in outcome.out
    assert "MODEL.TAG_CLIP.TOP_K 2" in outcome.out
    expected, found = (torch.load(path, weights_only=True)["model"] for path in (ours, tmp_path / "out.pth"))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    other = configured("tag-clip", "other.yml", MODEL__TAG_CLIP__EXPERTS=4)
    assert_one_line(convert("tag-clip", released, other, tmp_path / "new.pth"), "check MODEL.TAG_CLIP.EXPERTS")


def test_prefix_of_data_parallel_training(configured, trained, convert, tmp_path):
    config = configured("visa")
    _, released = trained("visa", config, prefix="module.")
    assert convert("visa", released, config).code == 0
    assert all(name.split(".")[0] != "module" for name in torch.load(tmp_path / "out.pth")["model"])


def test_views_of_one_large_storage_take_their_own_room_alone(configured, trained, convert, tmp_path):
    config = configured("visa")
    _, released = trained("visa", config)
    state = torch.load(released)["model"]
    flat = torch.cat([torch.zeros(10**6), *(value.flatten().float() for value in state.values())])
    views, start = {}, 10**6
    for key, value in state.items():  # as the host's optimizer lays parameters out
        views[key] = flat[start : start + value.numel()].view(value.shape)
        start += value.numel()
    torch.save({"model": views}, released)
    assert convert("visa", released, config).code == 0
    assert (tmp_path / "out.pth").stat().st_size < 4 * 10**5


@pytest.mark.parametrize("method", ["vdt", "visa"])
def test_classifiers_may_be_missing(fastreid_command, configured, trained, convert, tmp_path, method):
    config = configured(method)
    _, released = trained(method, config, without="heads.weight")
    outcome = convert(method, released, config)
    assert outcome.code == 0, outcome.err
    line = next(line for line in outcome.out.splitlines() if "only training reads them" in line)
    assert "head.classifier.weight" in line
    assert "view_head.classifier.weight" in line
    evaluation = ["eval", "--config", config, "--weights", tmp_path / "out.pth", "--output", tmp_path / "eval"]
    assert fastreid_command(*evaluation).code == 0


def test_classifiers_of_two_numbers_of_identities(configured, trained, convert):
    config = configured("visa")
    _, released = trained("visa", config)
    content = torch.load(released)
    content["model"]["local_heads.weight"] = torch.zeros(3, 16)
    torch.save(content, released)
    outcome = convert("visa", released, config)
    assert outcome.code == 0, outcome.err
    assert "left at their initial values: local_head.classifier.weight (1 tensor, 112 parameters)" in outcome.out


def test_the_other_method(configured, trained, convert, tmp_path):
    vdt, visa = configured("vdt", "vdt.yml"), configured("visa", "visa.yml")
    _, released = trained("vdt", vdt)
    assert_one_line(convert("visa", released, visa), "released.pth", "it is a released vdt checkpoint")
    ours, released = trained("visa", visa)
    assert_one_line(convert("vdt", released, vdt), "released.pth", "it is a released visa checkpoint")
    assert_one_line(convert("visa", ours, visa), "ours.pth", "names of this package already")
    assert_one_line(convert("visa", released, vdt), "META_ARCHITECTURE is VDT", "set MODEL.META_ARCHITECTURE ViSA")
    assert not (tmp_path / "out.pth").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"MODEL__BACKBONE__STRIDE_SIZE": [4, 8]},
            ("vit.pos_embed is (1, 10, 16) in the file, but (1, 16, 16)", "STRIDE_SIZE", "INPUT.SIZE_TRAIN"),
        ),
        ({"MODEL__VISA__TOKENS": 5}, ("queries.experts.tokens is (6, 3, 16)", "(6, 5, 16)", "MODEL.VISA.TOKENS")),
        ({"MODEL__VISA__EXPERTS": 4}, ("(6, 3, 16) in the file, but (12, 3, 16)", "MODEL.VISA.EXPERTS")),
        ({"MODEL__VIT__LAYERS": 2}, ("12 tensors have no place", "blocks.2.", "MODEL.VIT")),
        ({"MODEL__VIT__LAYERS": 4}, ("nothing fills 12 of", "blocks.3.", "MODEL.VIT")),
        ({"MODEL__VIT__WIDTH": 32}, ("is (1, 2, 16) in the file, but (1, 2, 32)", "MODEL.BACKBONE.DEPTH")),
        ({"MODEL__VISA__VARIANT": "paper"}, ("MODEL.VISA.VARIANT is paper", "set MODEL.VISA.VARIANT released")),
        ({"MODEL__VISA__ETGM": False}, ("MODEL.VISA.ETGM is False", "set MODEL.VISA.ETGM True")),
        ({"MODEL__HEADS__NAME": "EmbeddingHead"}, ("set MODEL.HEADS.NAME BNNeckHead",)),
        ({"MODEL__BACKBONE__NAME": "build_vdt_backbone"}, ("use build_visa_backbone",)),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else next(iter(value)),
)
def test_a_configuration_of_another_model(configured, trained, convert, tmp_path, change, words):
    _, released = trained("visa", configured("visa"))
    assert_one_line(convert("visa", released, configured("visa", "other.yml", **change)), *words)
    assert not (tmp_path / "out.pth").exists()


def test_a_stride_that_does_not_suit_is_refused_at_evaluation_too(fastreid_command, configured, trained, tmp_path):
    ours, _ = trained("visa", configured("visa"))
    other = configured("visa", "other.yml", MODEL__BACKBONE__STRIDE_SIZE=[4, 8])
    outcome = fastreid_command("eval", "--config", other, "--weights", ours, "--output", tmp_path / "eval")
    assert_one_line(outcome, "pos_embed is (1, 10, 16), but the model's is (1, 16, 16)", "another configuration")


def test_an_incomplete_file(configured, trained, convert):
    config = configured("visa")
    _, released = trained("visa", config, without="blocks.1.norm1.weight")
    assert_one_line(
        convert("visa", released, config), "nothing fills 1 of", "vit.blocks.1.norm1.weight", "the file is incomplete"
    )
    _, released = trained("visa", config, without="ground_experts.1.prompt")
    assert_one_line(convert("visa", released, config), "incomplete", "ground_experts.1.prompt is missing")


def test_files_that_are_no_checkpoints(configured, convert, tmp_path):
    config, path = configured("vdt"), tmp_path / "bad.pth"
    assert_one_line(convert("vdt", path, config), "weight file", "bad.pth does not exist")
    path.write_text("not a checkpoint")
    assert_one_line(convert("vdt", path, config), "bad.pth")
    torch.save([1, 2], path)
    assert_one_line(convert("vdt", path, config), "bad.pth holds a list, not a checkpoint")
    torch.save({"model": {"epoch": 3}}, path)
    assert_one_line(convert("vdt", path, config), "bad.pth is no checkpoint")
    torch.save({"model": torch.zeros(3)}, path)
    assert_one_line(convert("vdt", path, config), "bad.pth is no checkpoint")
    torch.save({"model": {}}, path)
    assert_one_line(convert("vdt", path, config), "bad.pth", "it is empty")


def test_what_cannot_be_written(configured, trained, convert, tmp_path):
    config = configured("vdt")
    _, released = trained("vdt", config)
    kept = tmp_path / "kept.pth"
    kept.write_text("kept")
    assert_one_line(convert("vdt", released, config, kept), "kept.pth exists already")
    assert kept.read_text() == "kept"
    assert_one_line(convert("vdt", released, config, released), "released.pth exists already")
    assert_one_line(convert("vdt", released, config, tmp_path / "no" / "out.pth"), "folder does not exist")
    assert_one_line(convert("vdt", released, config, tmp_path / "out.safetensors"), "should end in .pth or .pt")
    assert_one_line(convert("vdt", released, tmp_path / "none.yml"), "none.yml does not exist")
    assert_one_line(convert("vtd", released, config), "'vtd' unknown (did you mean vdt?)")


def test_a_writer_that_fails_leaves_nothing(configured, trained, convert, tmp_path, monkeypatch):
    config = configured("vdt")
    _, released = trained("vdt", config)

    def full(content, path):
        Path(path).write_bytes(b"half")
        raise RuntimeError("unexpected pos 64 vs 0\nmore")

    monkeypatch.setattr("agreid_plugin.hosts.fastreid.commands.convert.torch.save", full)
    before = sorted(tmp_path.iterdir())
    assert_one_line(convert("vdt", released, config), "out.pth cannot be written")
    assert sorted(tmp_path.iterdir()) == before


def test_predicted_views_need_a_trained_predictor(fastreid_command, configured, trained, convert, tmp_path):
    config = configured("visa")
    ours, released = trained("visa", config)
    assert convert("visa", released, config).code == 0
    predicted = configured("visa", "predicted.yml", MODEL__VIEW="predicted")
    run = ["eval", "--config", predicted, "--output", tmp_path / "eval", "--weights"]
    outcome = fastreid_command(*run, tmp_path / "out.pth")
    assert_one_line(outcome, "MODEL.VIEW is predicted, but", "out.pth has no weights of a view predictor", "VIEW given")
    assert fastreid_command(*run, ours).code == 0


def test_help_has_examples():
    commands = next(iter(build_parser()._subparsers._group_actions)).choices
    text = commands["convert"].format_help()
    assert "fastreid convert visa model_best.pth --config projects/ViSA/cargo_released.yml --out visa_cargo.pth" in text
