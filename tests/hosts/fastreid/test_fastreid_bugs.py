"""The faults of fast-reid 1.4.0 that a user of our command would meet, each prevented or told in one line.

`BUGS` maps a fault to the test that shows it gone; the numbers are those of the list in its comments.
"""

import json
import shutil
import sys
from itertools import islice

import numpy as np
import pytest
import torch
from conftest import RESNET, ROOT, assert_one_line
from market import make_market
from PIL import Image

from agreid_plugin.data.images import read_image
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data.batches import host_collate
from agreid_plugin.hosts.fastreid.data.datasets import load_dataset
from agreid_plugin.hosts.fastreid.data.loaders import ReIDDataset, build_sampler, build_test_loader
from agreid_plugin.types import Record

ELSEWHERE = "tests/hosts/fastreid"
TRAINING = f"{ELSEWHERE}/engine/test_fastreid_train.py"
VIT = ["MODEL.BACKBONE.NAME", "build_vit_backbone"]
BUGS = {
    1: "test_unreadable_image_is_named",  # hangs for ever on a corrupt image
    2: "test_batches_that_cannot_be_filled",  # hangs: fewer identities than a batch takes (Naive)
    3: "test_batches_that_cannot_be_filled",  # hangs: batch not divisible by the images an identity
    4: "test_batches_that_cannot_be_filled",  # hangs: fewer identities than a batch takes (Balanced)
    5: "test_batches_that_cannot_be_filled",  # divides by zero: more images an identity than the batch
    6: "test_samplers_take_items_with_more_fields",  # Balanced unpacks exactly three fields
    7: "test_samplers_take_items_with_more_fields",  # fields are taken by position
    8: "test_identities_of_each_camera",  # SetReWeightSampler never yields
    9: "test_batches_that_cannot_be_filled",  # divides by zero: set smaller than a batch
    10: "test_periods_of_zero_mean_the_end",  # divides by zero: EVAL_PERIOD 0
    11: "test_periods_of_zero_mean_the_end",  # divides by zero: CHECKPOINT_PERIOD 0
    12: "test_resuming_a_finished_run_says_so",  # AttributeError 'epoch'
    13: "tests/engine/test_warmup.py::test_fastreid_trains_for_an_epoch_and_resumes_to_the_same_length_in_silence",
    14: "test_unknown_names_are_suggested",  # 'int' object has no attribute 'backward'
    15: "test_the_final_evaluation_is_in_metrics_json",
    16: f"{TRAINING}::test_progress_lines_tell_loss_accuracy_rate_speed_and_time",  # a line in 200 iterations
    17: f"{ELSEWHERE}/engine/test_fastreid_resume.py::test_the_best_model_stays_the_best",  # after a resume
    18: "test_frozen_layers_stay_frozen_through_an_evaluation",
    19: f"{ELSEWHERE}/test_fastreid_compat.py::test_modes_come_back_after_an_error_and_frozen_layers_stay_frozen",
    20: f"{ELSEWHERE}/test_fastreid_compat.py::test_short_galleries_are_ranked",
    21: "test_queries_without_an_answer_are_found_before_training",
    22: "test_query_expansion_beyond_the_set",
    23: "test_test_loader_takes_the_configured_workers",
    24: "test_images_of_any_mode_become_rgb",
    25: "test_labels_of_numpy_integers_pass",
    26: "test_host_datasets_that_cannot_be_read",  # bare AssertionErrors
    27: "test_host_datasets_that_cannot_be_read",  # 'NoneType' object has no attribute 'groups'
    28: "test_items_are_sorted_and_the_root_is_read_when_needed",
    29: "test_models_that_cannot_be_built",  # ViT: depth, sizes, pretrained file
    30: "test_models_that_cannot_be_built",  # PRETRAIN without a path wants to download
    31: "test_models_that_cannot_be_built",  # FEAT_DIM is taken on trust
    32: "test_unknown_names_are_suggested",  # optimizers and schedules
    33: f"{TRAINING}::test_training_through_the_command",  # OUTPUT_DIR must exist
    34: f"{TRAINING}::test_one_seed_one_result",  # no seed in the configuration
    35: f"{ELSEWHERE}/config/test_fastreid_config.py::test_values_are_taken_as_the_keys_type",
    36: "test_batches_that_cannot_be_filled",  # one identity; a Distiller without a teacher
    37: f"{TRAINING}::test_run_card_tells_what_the_run_was_made_of",  # __version__ says 1.3
    38: f"{TRAINING}::test_samplers_of_the_host",  # an epoch is len(set) // batch
    39: "test_processes_draw_from_one_stream",
    40: f"{ELSEWHERE}/test_fastreid_compat.py::test_roc_calls_pairs_of_one_person_positive",
    41: "test_unknown_names_are_suggested",  # one test set named twice collapses
}


def test_every_fault_has_a_test():
    assert list(BUGS) == list(range(1, 42))
    here = sys.modules[__name__]
    for test in BUGS.values():
        if "::" in test:
            path, name = test.split("::")
            assert f"def {name}(" in (ROOT / path).read_text(), test
        else:
            assert callable(getattr(here, test)), test


@pytest.fixture
def train(fastreid_command, config_file, tmp_path):
    """Run `fastreid train` on the small configuration with some keys changed."""

    def run(*overrides: object, output: str = "run", arguments: tuple = ()):
        return fastreid_command("train", "--config", config_file, "--output", tmp_path / output, *arguments, *overrides)

    return run


@pytest.fixture
def market_copy(market, tmp_path):
    return shutil.copytree(market, tmp_path / "data")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("damage", ["truncated", "empty", "text"])
def test_unreadable_image_is_named(train, market_copy, workers, damage):
    image = sorted(market_copy.rglob("bounding_box_train/*.jpg"))[5]
    content = {"truncated": image.read_bytes()[:300], "empty": b"", "text": b"no image"}[damage]
    image.write_bytes(content)
    outcome = train("DATASETS.ROOT", market_copy, "DATALOADER.NUM_WORKERS", workers)
    assert_one_line(outcome, image.name, "cannot be read", "replace or remove it")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["DATALOADER.NUM_INSTANCE", 1], ["NaiveIdentitySampler", "takes 16 identities", "has 8"]),
        (
            ["SOLVER.IMS_PER_BATCH", 18],
            ["batch of 18", "does not divide by DATALOADER.NUM_INSTANCE 4; make the batch a multiple of 4"],
        ),
        (
            ["DATALOADER.SAMPLER_TRAIN", "BalancedIdentitySampler", "DATALOADER.NUM_INSTANCE", 1],
            ["BalancedIdentitySampler", "takes 16 identities", "has 8"],
        ),
        (["DATALOADER.NUM_INSTANCE", 32], ["does not divide by DATALOADER.NUM_INSTANCE 32"]),
        (["SOLVER.IMS_PER_BATCH", 200], ["has 48 images, less than one batch", "200; lower it"]),
        (
            ["SOLVER.SCHED", "CosineAnnealingLR", "SOLVER.DELAY_EPOCHS", 6],
            ["SOLVER.DELAY_EPOCHS is 6", "SOLVER.MAX_EPOCH 2", "cosine"],
        ),
        (["SOLVER.IMS_PER_BATCH", 0], ["SOLVER.IMS_PER_BATCH is 0"]),
        (["MODEL.META_ARCHITECTURE", "Distiller"], ["Distiller has no teacher"]),
        (["MODEL.META_ARCHITECTURE", "MoCo", "MODEL.QUEUE_SIZE", 100], ["MODEL.QUEUE_SIZE (100)", "(16)"]),
    ],
)
def test_batches_that_cannot_be_filled(train, overrides, words):
    assert_one_line(train(*overrides), *words)


def test_one_identity_is_not_enough(train, tmp_path):
    make_market(tmp_path / "one", ids=1, images=20)
    outcome = train("DATASETS.ROOT", tmp_path / "one", "DATALOADER.SAMPLER_TRAIN", "TrainingSampler")
    assert_one_line(outcome, "has 1 identity; training needs two or more; see DATASETS.NAMES")


@pytest.mark.parametrize("name", ["NaiveIdentitySampler", "BalancedIdentitySampler", "ImbalancedDatasetSampler"])
def test_samplers_take_items_with_more_fields(config_file, name):
    cfg = load_config(config_file, ["DATALOADER.SAMPLER_TRAIN", name])
    items = [(f"{i}.jpg", f"p{i // 4}", f"c{i % 2}", "aerial") for i in range(32)]
    sampler = iter(build_sampler(cfg, items))
    people = [items[next(sampler)][1] for _ in range(16)]
    if name != "ImbalancedDatasetSampler":  # which draws images one by one
        assert [people.count(person) for person in people] == [4] * 16


def test_identities_of_each_camera(config_file):
    items = [(f"{i}.jpg", f"p{i // 6}", f"c{i % 3 if i < 36 else 2}") for i in range(48)]  # p6 and p7 by c2 only
    given = ("DATALOADER.SAMPLER_TRAIN", "SetReWeightSampler", "DATALOADER.SET_WEIGHT")
    cfg = load_config(config_file, [*given, "[1, 0, 1]", "SOLVER.IMS_PER_BATCH", "16"])
    sampler = build_sampler(cfg, items)
    indices = list(islice(sampler, 16 * 40))
    assert indices == list(islice(sampler, 16 * 40))
    groups = [[items[i][1] for i in indices[start : start + 4]] for start in range(0, len(indices), 4)]
    assert all(len(set(group)) == 1 for group in groups)
    assert {group[0] for group in groups[0::2]} == {f"p{i}" for i in range(6)}, "the people that c0 has seen"
    assert {group[0] for group in groups[1::2]} == {f"p{i}" for i in range(8)}
    for weights, words in (
        ("[1, 1]", r"SET_WEIGHT has 2 numbers; .* each of the 3 training cameras, in this order: c0, c1, c2"),
        ("[7, 0, 1]", "asks for 7 identities of c0, which has seen 6"),
        ("[1, 1, 1]", "IMS_PER_BATCH 16 does not divide by 12"),
        ("[0, 0, 0]", "0 for every camera"),
    ):
        with pytest.raises(InputError, match=words):
            build_sampler(load_config(config_file, [*given, weights]), items)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["MODEL.LOSSES.NAME", "('TripleLoss',)"],
            ["MODEL.LOSSES.NAME 'TripleLoss' unknown (did you mean TripletLoss?)"],
        ),
        (["DATALOADER.SAMPLER_TRAIN", "SetReWeight"], ["'SetReWeight' unknown (did you mean SetReWeightSampler?)"]),
        (["SOLVER.OPT", "Adan"], ["SOLVER.OPT 'Adan' unknown (did you mean Adam?)"]),
        (["SOLVER.SCHED", "CosineLR"], ["SOLVER.SCHED 'CosineLR' unknown", "CosineAnnealingLR"]),
        (["MODEL.META_ARCHITECTURE", "baseline"], ["did you mean Baseline?"]),
        (["MODEL.BACKBONE.NAME", "build_resnet"], ["did you mean build_resnet_backbone?"]),
        (["MODEL.BACKBONE.NAME", "build_my_own"], ["CUSTOM_IMPORTS names the file that registers one of your own"]),
        (
            ["MODEL.HEADS.POOL_LAYER", "GlobalAvgPol"],
            ["POOL_LAYER 'GlobalAvgPol' unknown (did you mean GlobalAvgPool?)"],
        ),
        (["TEST.METRIC", "cosin"], ["did you mean cosine?"]),
        (["DATASETS.TESTS", "('Market1501', 'Market1501')"], ["DATASETS.TESTS names Market1501 twice"]),
        (["DATASETS.TESTS", "()"], ["DATASETS.TESTS is empty"]),
        (["DATASETS.NAMES", "('Markt1501',)"], ["did you mean Market1501?"]),
    ],
)
def test_unknown_names_are_suggested(train, overrides, words):
    assert_one_line(train(*overrides), *words)


def test_periods_of_zero_mean_the_end(train, tmp_path):
    outcome = train("TEST.EVAL_PERIOD", 0, "SOLVER.CHECKPOINT_PERIOD", 0)
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("Start inference") == 1
    assert sorted(path.name for path in (tmp_path / "run").glob("*.pth")) == ["model_best.pth", "model_final.pth"]


def test_resuming_a_finished_run_says_so(train, tmp_path):
    assert train("SOLVER.MAX_EPOCH", 1).code == 0
    before = (tmp_path / "run" / "metrics.json").read_text()
    outcome = train("SOLVER.MAX_EPOCH", 1, arguments=("--resume",))
    assert outcome.code == 0, outcome.err
    assert "nothing left to train: epoch 1 of 1 is done; raise SOLVER.MAX_EPOCH" in outcome.out
    assert (tmp_path / "run" / "metrics.json").read_text() == before


@pytest.mark.parametrize("period", [1, 2, 5])
def test_the_final_evaluation_is_in_metrics_json(train, tmp_path, period):
    assert train("TEST.EVAL_PERIOD", period, "SOLVER.MAX_EPOCH", 2).code == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.json").read_text().splitlines()]
    assert [line["iteration"] for line in lines if "Market1501/ALL/mAP" in line][-1] == 5  # the last of 6 iterations


def test_frozen_layers_stay_frozen_through_an_evaluation(train, tmp_path):
    frozen = ["MODEL.FREEZE_LAYERS", "['backbone']", "SOLVER.FREEZE_ITERS", 100, "SOLVER.MAX_EPOCH", 3]
    assert train(*frozen).code == 0
    first, last = (
        torch.load(tmp_path / "run" / f"model_{n}.pth", weights_only=True)["model"] for n in ("0000", "final")
    )
    for name in first:
        if name.startswith("backbone"):
            assert torch.equal(first[name], last[name]), name
    assert not torch.equal(first["heads.weight"], last["heads.weight"])


def test_queries_without_an_answer_are_found_before_training(train, tmp_path):
    make_market(tmp_path / "one", cameras=1, images=6)
    outcome = train("DATASETS.ROOT", tmp_path / "one")
    assert_one_line(outcome, "Market1501/ALL: none of its 8 queries has a match among 40 gallery images", "same_camera")
    assert "Starting training" not in outcome.out


def test_query_expansion_beyond_the_set(train, tmp_path):
    assert train("TEST.AQE.ENABLED", True, "TEST.AQE.QE_K", 100, "SOLVER.MAX_EPOCH", 1).code == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())["Market1501"]["ALL"]
    assert 0 < results["mAP"] <= 100
    assert (results["queries"], results["gallery"]) == (16, 32)


@pytest.mark.parametrize("workers", [0, 3])
def test_test_loader_takes_the_configured_workers(config_file, workers):
    cfg = load_config(config_file, ["DATALOADER.NUM_WORKERS", str(workers)])
    loader = build_test_loader(cfg, [Record("a.jpg", 0)])
    assert (loader.num_workers, len(loader.dataset)) == (workers, 1)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "L", "P", "1", "CMYK", "I;16"])
def test_images_of_any_mode_become_rgb(tmp_path, mode):
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    source = Image.new("RGB", (2, 3), (200, 30, 30))
    (Image.new("I;16", (2, 3), 40000) if mode == "I;16" else source.convert(mode)).save(path)
    image = read_image(str(path))
    assert (image.mode, image.size) == ("RGB", (2, 3))
    wanted = {"L": (81, 81, 81), "LA": (81, 81, 81)}.get(mode, (200, 30, 30))  # 0.299 R + 0.587 G + 0.114 B
    if mode not in ("1", "I;16"):  # a palette holds the nearest of its colors
        assert np.abs(np.asarray(image)[0, 0].astype(int) - wanted).max() <= (30 if mode == "P" else 0)


def test_labels_of_numpy_integers_pass(tmp_path):
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    items = [(str(tmp_path / "a.png"), np.int64(5), np.int32(2))]
    dataset = ReIDDataset(items, lambda image: torch.tensor(np.asarray(image)), relabel=False)
    batch = host_collate([dataset[0], dataset[0]])
    assert batch["targets"].tolist() == [5, 5]
    assert batch["camids"].tolist() == [2, 2]


@pytest.mark.parametrize("name", ["notes.jpg", "9999_c1s1_000000_00.jpg"])
def test_host_datasets_that_cannot_be_read(train, market_copy, name):
    folder = next(market_copy.rglob("bounding_box_train"))
    Image.new("RGB", (2, 2)).save(folder / name)
    assert_one_line(train("DATASETS.ROOT", market_copy), "dataset Market1501 cannot be read under", str(market_copy))


def test_items_are_sorted_and_the_root_is_read_when_needed(train, market, tmp_path, monkeypatch):
    dataset = load_dataset("Market1501", str(market), ["train"])
    paths = [item[0] for item in dataset.train]
    assert paths == sorted(paths)
    monkeypatch.setenv("FASTREID_DATASETS", str(tmp_path / "elsewhere"))
    assert_one_line(train("DATASETS.ROOT", ""), "cannot be read under", "elsewhere")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([*VIT, "MODEL.BACKBONE.DEPTH", "18x"], ["MODEL.BACKBONE.DEPTH of build_vit_backbone '18x' unknown"]),
        (
            [*VIT, "MODEL.BACKBONE.DEPTH", "base", "INPUT.SIZE_TEST", "[64, 32]"],
            ["one image size", "[32, 16]", "[64, 32]"],
        ),
        (["MODEL.BACKBONE.PRETRAIN", True], ["PRETRAIN_PATH is empty", "nothing is downloaded"]),
        (["MODEL.BACKBONE.FEAT_DIM", 2048], ["FEAT_DIM is 2048", "gives 16: set it to 16"]),
        (["MODEL.BACKBONE.FEAT_DIM", 2048, "MODEL.META_ARCHITECTURE", "MoCo"], ["FEAT_DIM is 2048", "set it to 16"]),
        (["MODEL.META_ARCHITECTURE", "MGN"], ["MGN takes a ResNet apart", "build_resnet_backbone with", "50x or 101x"]),
        (
            [*RESNET, "MODEL.META_ARCHITECTURE", "MGN", "MODEL.BACKBONE.DEPTH", "50x"],
            ["INPUT.SIZE_TRAIN is [32, 16]", "too few rows: take a height of 96 or more"],
        ),
        ([*RESNET, "MODEL.HEADS.POOL_LAYER", "Flatten"], ["FEAT_DIM is 512", "gives 1024: set it to 1024"]),
        ([*RESNET, "MODEL.HEADS.POOL_LAYER", "Identity"], ["POOL_LAYER Identity leaves the 2x1 map", "a corner"]),
        (["MODEL.HEADS.POOL_LAYER", "Flatten", "INPUT.SIZE_TEST", "[64, 32]"], ["Flatten needs one image size"]),
        (["SOLVER.SWA_EPOCH", 3], ["SOLVER.SWA_EPOCH is 3, but must be 0 to 2"]),
    ],
)
def test_models_that_cannot_be_built(train, overrides, words):
    assert_one_line(train(*overrides), *words)


def test_processes_draw_from_one_stream(config_file):
    cfg = load_config(config_file, ["DATALOADER.SAMPLER_TRAIN", "ImbalancedDatasetSampler"])
    items = [(f"{i}.jpg", f"p{i % 3}", "c0") for i in range(12)]
    streams = []
    for torch_seed in (1, 2):  # two ranks: own torch seeds, one shared sampler seed
        np.random.seed(0)
        sampler = build_sampler(cfg, items)
        torch.manual_seed(torch_seed)
        stream = iter(sampler)
        streams.append([next(stream) for _ in range(24)])
    assert streams[0] == streams[1]


def test_pretrained_file_that_does_not_exist(train, tmp_path):
    outcome = train("MODEL.BACKBONE.PRETRAIN", True, "MODEL.BACKBONE.PRETRAIN_PATH", tmp_path / "no.pth")
    assert_one_line(outcome, "no.pth", "does not exist")


def test_weights_for_another_model_are_refused(fastreid_command, config_file, tmp_path):
    torch.save({"model": {"w": torch.ones(1)}}, tmp_path / "other.pth")
    outcome = fastreid_command(
        "eval", "--config", config_file, "--weights", tmp_path / "other.pth", "--output", tmp_path / "e"
    )
    assert_one_line(outcome, "other.pth fits 0 of the model's", "another model")
