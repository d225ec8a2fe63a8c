"""Keys without an effect: refused where a run would begin, for every part; all of our recipes pass."""

import copy

import pytest
from conftest import ROOT, assert_one_line, recipes
from small_fastreid import VISA, write_tiny

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config.loading import load_config, with_value
from agreid_plugin.hosts.fastreid.config.unread_keys import READ_LATER, RecordingNode, record_reads, refuse_unread
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer
from agreid_plugin.hosts.fastreid.host import make_missing, resolve_files

BASELINE = {
    **VISA,
    "MODEL": {"BACKBONE": {"DEPTH": "18x", "FEAT_DIM": 512}, "LOSSES": {"NAME": ["CrossEntropyLoss"]}, "DEVICE": "cpu"},
}


@pytest.fixture
def visa(tmp_path, agsynth):
    return write_tiny(tmp_path, VISA, agsynth)


@pytest.fixture
def baseline(tmp_path, agsynth):
    return write_tiny(tmp_path, BASELINE, agsynth)


def build(path, *overrides: object) -> Trainer:
    cfg = load_config(path, ["MODEL.DEVICE", "cpu", *map(str, overrides)])
    (path.parent / "run").mkdir(exist_ok=True)
    return Trainer(cfg)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("MODEL.HEADS.CLS_LAYER", "ArcSoftmax", "fastreid.modeling.heads.embedding_head would"),
        ("MODEL.HEADS.SCALE", 64, "fastreid.modeling.heads.embedding_head would"),
        ("MODEL.HEADS.MARGIN", 0.35, "fastreid.modeling.heads.embedding_head would"),
        ("MODEL.HEADS.NECK_FEAT", "after", "no part that this configuration builds reads it"),
        ("MODEL.LOSSES.CIRCLE.MARGIN", 0.5, "no part that this configuration builds reads it"),
        ("MODEL.VDT.VIEW_WEIGHT", 0.5, "(VDT: factor of the view"),
        ("MODEL.QUEUE_SIZE", 64, "fastreid.modeling.meta_arch.moco would"),
        ("KD.EMA.MOMENTUM", 0.9, "fastreid.modeling.meta_arch.distiller would"),
        ("SOLVER.MOMENTUM", 0.8, "fastreid.solver.build would"),
        ("INPUT.CAPTIONS", "one", "no part"),
        ("DATASETS.OWN.AERIAL_CAMERAS", "[1]", "no part"),
        ("DATASETS.ATTRIBUTE_LEVEL", "image", "no part"),
    ],
)
def test_a_key_that_no_part_reads_is_refused(visa, key, value, reason):
    with pytest.raises(InputError) as error:
        build(visa, key, value)
    assert str(error.value).startswith(f"command line: {key} has no effect, ")
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["MODEL.HEADS.MARGIN", 0.5], "MODEL.HEADS.CLS_LAYER is Linear"),
        (["MODEL.LOSSES.CIRCLE.MARGIN", 0.5], "MODEL.LOSSES.NAME has no CircleLoss"),
        (["SOLVER.ETA_MIN_LR", 0.1], "SOLVER.SCHED is MultiStepLR"),
        (["SOLVER.FREEZE_ITERS", 5], "MODEL.FREEZE_LAYERS is []"),
        (["DATALOADER.NUM_INSTANCE", 2, "DATALOADER.SAMPLER_TRAIN", "TrainingSampler"], "is TrainingSampler"),
        (["TEST.AQE.QE_K", 9], "TEST.AQE.ENABLED is False"),
        (["INPUT.REA.PROB", 0.9], "INPUT.REA.ENABLED is False"),
        (["INPUT.PIPELINE", "[Resize, ToTensor]", "INPUT.REA.ENABLED", True], "INPUT.PIPELINE has no RandomErasing"),
    ],
)
def test_a_key_that_the_host_reads_and_does_not_use_is_refused(baseline, overrides, reason):
    with pytest.raises(InputError, match=r"command line: .* has no effect, ") as error:
        build(baseline, *overrides)
    assert reason in str(error.value)


def test_the_same_keys_are_taken_where_they_are_used(baseline, visa):
    build(visa, "MODEL.HEADS.NAME", "EmbeddingHead", "MODEL.HEADS.CLS_LAYER", "ArcSoftmax", "MODEL.HEADS.MARGIN", 0.35)
    build(baseline, "MODEL.LOSSES.NAME", "[CircleLoss]", "MODEL.LOSSES.CIRCLE.MARGIN", 0.5, "TEST.RERANK.K1", 9)
    build(baseline, "INPUT.PIPELINE", "[Resize, ToTensor, RandomErasing]", "INPUT.REA.PROB", 0.9)
    build(baseline, "SOLVER.CLIP_GRADIENTS.ENABLED", True, "SOLVER.CLIP_GRADIENTS.CLIP_VALUE", 1.0)
    build(baseline, "INPUT.REA.PROB", 0.9, "INPUT.REA.ENABLED", False)  # switched off for once


def test_keys_that_are_read_later_are_no_keys_without_an_effect(visa):
    given = {"CUDNN_BENCHMARK": True, "MODEL.WEIGHTS": "some.pth", "TEST.IMS_PER_BATCH": 3, "TEST.MEMORY": 2.0}
    given |= {"SOLVER.CLIP_GRADIENTS.ENABLED": True, "SOLVER.CLIP_GRADIENTS.CLIP_VALUE": 2.0}
    given |= {"SOLVER.CHECKPOINT_ITERS": 2, "SOLVER.KEEP_CHECKPOINTS": 1, "SOLVER.LOG_PERIOD": 3}
    build(visa, *(part for row in given.items() for part in row))
    for group in READ_LATER:
        assert any(each.startswith(group) for each in (*given, "CUSTOM_IMPORTS", "DATASETS.AGSYNTH", "INPUT.SIZE_TEST"))


def test_a_base_may_have_keys_for_other_parts_than_the_recipe_chooses(visa, caplog):
    child = visa.with_name("child.yml")
    child.write_text("_BASE_: tiny.yml\nMODEL: {META_ARCHITECTURE: VDT, BACKBONE: {NAME: build_vdt_backbone}}\n")
    with caplog.at_level("INFO", "fastreid.train"):
        build(child)
    assert "without an effect on what this configuration builds: MODEL.VISA.EXPERTS, MODEL.VISA.TOKENS" in caplog.text
    child.write_text("_BASE_: tiny.yml\nSEED: 3\nMODEL: {VDT: {VIEW_WEIGHT: 0.5}}\n")
    with pytest.raises(InputError, match=f"{child}: MODEL.VDT.VIEW_WEIGHT has no effect"):
        build(child)


def test_a_command_says_so_in_one_line_and_leaves_nothing(visa, fastreid_command):
    outcome = fastreid_command("train", "--config", visa, "MODEL.HEADS.MARGIN", 0.5, "MODEL.HEADS.SCALE", 3)
    assert_one_line(outcome, "command line: MODEL.HEADS.MARGIN, MODEL.HEADS.SCALE have no effect", "set them to 0.0, 1")
    assert not (visa.parent / "run").exists()


def test_copies_record_in_the_same_place_and_dumping_reads_nothing(visa):
    cfg = record_reads(load_config(visa))
    assert record_reads(cfg) is cfg
    for each in (cfg.clone(), copy.deepcopy(cfg), with_value(cfg, "SEED", 3)):
        assert isinstance(each.MODEL.VISA, RecordingNode)
        each.freeze()
        assert each.dump()
        assert str(each)
        assert each == each.clone()
    assert not any("." in each for each in cfg.reads - {"MODEL.VISA"})
    node = cfg.clone().MODEL.VISA
    assert "MODEL.VISA.EXPERTS" not in cfg.reads
    assert node.EXPERTS == 3 == node["EXPERTS"] == node.get("EXPERTS")
    assert "MODEL.VISA.EXPERTS" in cfg.reads
    assert "MODEL.VISA.TOKENS" not in cfg.reads
    dict(node.items())
    assert "MODEL.VISA.TOKENS" in cfg.reads
    with pytest.raises(AttributeError):
        _ = node.NOTHING


def test_a_script_that_merges_files_by_itself_is_only_warned(visa, caplog):
    cfg = record_reads(load_config(visa))
    del cfg.__dict__["origins"]
    refuse_unread(cfg)
    assert "keys without an effect on what this configuration builds: MODEL.META_ARCHITECTURE" in caplog.text


DATASETS = ("CARGO", "AG_ReID_v2", "CP2108", "TAG_PEDES")
SMALL = ("agsynth.yml", "Mixed")
TRAINABLE = [path for path in recipes("*") if path.parent.name not in ("Example", "Leaderboard")]


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    return tmp_path_factory.mktemp("layouts")


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(
            path,
            id=str(path.relative_to(ROOT).with_suffix("")),
            marks=[] if path.name in SMALL or path.parent.name in SMALL else [pytest.mark.slow],
        )
        for path in TRAINABLE
    ],
)
def test_no_key_of_a_recipe_is_without_an_effect(recipe, layouts, tmp_path):
    """On small sets in the layout of its own, or of one that is read alike, in place of what cannot be had."""
    cfg = load_config(recipe)
    has_text = cfg.MODEL.META_ARCHITECTURE == "TAGCLIP"
    wanted = "TAG_PEDES" if has_text else "AG_ReID_v2" if "AG_ReID" in cfg.DATASETS.NAMES[0] else cfg.DATASETS.NAMES[0]
    cfg.DATASETS.NAMES = cfg.DATASETS.TESTS = (wanted if wanted in DATASETS else "CARGO",)
    cfg.DATASETS.ROOT, cfg.DATASETS.AGSYNTH.IDS, cfg.DATASETS.AGSYNTH.IMAGES_PER_ID = str(layouts), 8, 8
    cfg.DATASETS.AGSYNTH.SIZE, cfg.SOLVER.IMS_PER_BATCH = [32, 16], 8
    cfg.TEST.PROTOCOLS = ["ALL"] if wanted == "CP2108" else []  # others need more people
    cfg.MODEL.BACKBONE.PRETRAIN, cfg.MODEL.BACKBONE.PRETRAIN_PATH, cfg.MODEL.DEVICE = False, "", "cpu"
    cfg.MODEL.CLIP.QUICK_GELU = "yes"  # which pretrained weights would tell
    cfg.DATALOADER.NUM_WORKERS, cfg.OUTPUT_DIR = 0, str(tmp_path)
    make_missing(cfg)
    Trainer(resolve_files(record_reads(cfg)))
