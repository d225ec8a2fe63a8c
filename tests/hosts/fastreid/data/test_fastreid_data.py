"""Our datasets, batches, samplers and transforms in the host's terms."""

import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import RESNET, assert_one_line
from fastreid.data.build import fast_batch_collator
from fastreid.data.common import CommDataset
from fastreid.data.datasets import DATASET_REGISTRY
from fastreid.data.transforms import ToTensor
from fastreid.data.transforms import build_transforms as build_host_transforms
from fastreid.engine import DefaultTrainer, default_setup
from PIL import Image

from agreid_plugin.data.datasets import DATASETS
from agreid_plugin.data.protocols import protocols
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import load_results, rank
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data import transforms
from agreid_plugin.hosts.fastreid.data.batches import from_host, host_collate, to_host
from agreid_plugin.hosts.fastreid.data.datasets import RecordItem, host_name
from agreid_plugin.hosts.fastreid.data.loaders import ReIDDataset, build_test_loader, build_train_loader
from agreid_plugin.synth import make_agsynth
from agreid_plugin.types import PLATFORMS, UNKNOWN, View

IDS, IMAGES = 40, 8


@pytest.fixture(scope="module")
def agsynth(tmp_path_factory):
    """A folder with a small AG-Synth as CARGO, half of its identities to train on, and a tiny one as AG-ReID.v2."""
    root = tmp_path_factory.mktemp("agsynth")
    for layout, ids in (("cargo", IDS), ("ag-reid-v2", 8)):
        make_agsynth(root, ids=ids, images_per_id=IMAGES, size=(64, 32), layout=layout, progress=False)
    return root


@pytest.fixture
def synth_config(config_file, agsynth):
    """The small configuration on AG-Synth; overrides come as KEY, VALUE, ..."""

    def load(*overrides):
        sizes = ["INPUT.SIZE_TRAIN", "[64, 32]", "INPUT.SIZE_TEST", "[64, 32]", "MODEL.DEVICE", "cpu"]
        names = ["DATASETS.NAMES", "('CARGO',)", "DATASETS.TESTS", "('CARGO_A2G',)", "DATASETS.ROOT", str(agsynth)]
        return load_config(config_file, [*sizes, *names, *map(str, overrides)])

    return load


def test_every_dataset_and_protocol_has_a_name_in_the_registry():
    for dataset in DATASETS:
        DATASET_REGISTRY.get(host_name(dataset))
        for protocol in protocols(dataset):
            assert DATASET_REGISTRY.get(host_name(dataset, protocol)).protocol.name == protocol
    assert host_name("AG-ReID.v2", "A2C") == "AG_ReID_v2_A2C"
    assert host_name("CARGO", "AG-both") == "CARGO_AG_both"


def test_items_are_three_fields_with_the_record_behind_them(agsynth):
    dataset = DATASET_REGISTRY.get("CARGO")(root=str(agsynth))
    item = dataset.train[0]
    path, pid, camera = item
    assert pid == f"CARGO_{item.record.pid}"
    assert camera == f"CARGO_{item.record.camera}"
    assert path == item.record.path
    for twin in (copy.deepcopy(item), pickle.loads(pickle.dumps(item))):
        assert twin == item
        assert twin.record == item.record
    assert all(isinstance(value, int) for value in dataset.query[0][1:])


def test_combining_all_splits_keeps_the_records(agsynth):
    plain = DATASET_REGISTRY.get("CARGO")(root=str(agsynth))
    combined = DATASET_REGISTRY.get("CARGO")(root=str(agsynth), combineall=True)
    assert len(combined.train) == len(plain.train) + len(plain.query) + len(plain.gallery) == IDS * IMAGES
    assert len({item[1] for item in combined.train}) == IDS
    assert all(isinstance(item, RecordItem) for item in combined.train)


def test_cameras_of_the_stock_loader_hide_what_a_protocol_does(agsynth):
    """Its evaluator hides images of the query's person and camera: none in A2G, those of one view in AG-both."""

    def cameras(name: str) -> list[set[int]]:
        dataset = DATASET_REGISTRY.get(name)(root=str(agsynth))
        return [{item[2] for item in side} for side in (dataset.query, dataset.gallery)]

    assert set.union(*cameras("CARGO_ALL")) == set(range(1, 14))
    assert not set.intersection(*cameras("CARGO_A2G"))
    assert cameras("CARGO_AG_both") == [{0, 1}] * 2


def test_what_the_stock_evaluator_cannot_do_is_refused(agsynth):
    dataset = DATASET_REGISTRY.get("CARGO_AG_cross")(root=str(agsynth))
    with pytest.raises(InputError, match="CARGO/AG-cross cannot be computed by fast-reid's own evaluator"):
        _ = dataset.query


def test_the_hosts_own_dataset_reads_our_items(agsynth):
    dataset = DATASET_REGISTRY.get("CARGO_A2G")(root=str(agsynth))
    stock = CommDataset(dataset.query, ToTensor(), relabel=False)
    batch = fast_batch_collator([stock[0], stock[1]])
    assert batch["images"].shape == (2, 3, 64, 32)
    assert batch["targets"].tolist() == [item[1] for item in dataset.query[:2]]


def test_views_cameras_and_paths_reach_the_model(synth_config):
    loader = build_train_loader(synth_config())
    batch = next(iter(loader))
    by_path = {item[0]: item.record for item in loader.dataset.img_items}
    assert batch["images"].shape == (16, 3, 64, 32)
    assert [View(view) for view in batch["views"].tolist()] == [by_path[path].view for path in batch["img_paths"]]
    carriers = [PLATFORMS[place] for place in batch["platforms"].tolist()]
    assert carriers == [by_path[path].platform for path in batch["img_paths"]]
    assert set(carriers) == {"uav", "cctv"}
    cameras = {loader.dataset.cam_dict[f"CARGO_{by_path[p].camera}"] for p in batch["img_paths"]}
    assert cameras == set(batch["camids"].tolist())
    assert "attributes" not in batch  # CARGO's layout has none


def test_attributes_are_there_in_training_and_not_at_test(synth_config):
    cfg = synth_config("DATASETS.NAMES", "('AG_ReID_v2',)")
    loader = build_train_loader(cfg)
    batch = next(iter(loader))
    records = {item[0]: item.record for item in loader.dataset.img_items}
    schema = loader.dataset.schema
    assert batch["attributes"].shape == (16, 15)
    for path, labels in zip(batch["img_paths"], batch["attributes"].tolist(), strict=True):
        assert schema.encode(records[path].attributes) == tuple(labels)
    test_loader = build_test_loader(cfg, [item.record for item in loader.dataset.img_items])
    assert set(next(iter(test_loader))) == {"images", "targets", "camids", "views", "platforms", "img_paths"}


def test_tokens_of_captions_flow_through(agsynth):
    items = DATASET_REGISTRY.get("CARGO_A2G")(root=str(agsynth)).query
    dataset = ReIDDataset(items, ToTensor(), relabel=False, tokenize=lambda record: torch.tensor([record.pid, 1]))
    batch = host_collate([dataset[0], dataset[1]])
    assert batch["tokens"].tolist() == [[items[0].record.pid, 1], [items[1].record.pid, 1]]


def test_batches_go_to_the_host_and_back(synth_config):
    batch = next(iter(build_train_loader(synth_config())))
    again = to_host(from_host(batch))
    assert {name: again[name] is value for name, value in batch.items()} == dict.fromkeys(again, True)
    assert from_host(batch).pids is batch["targets"]


def test_training_on_ours_and_the_hosts_together(synth_config, agsynth, market, tmp_path):
    both = tmp_path / "both"
    both.mkdir()
    for folder in (*agsynth.iterdir(), *market.iterdir()):
        (both / folder.name).symlink_to(folder)
    loader = build_train_loader(synth_config("DATASETS.NAMES", "('CARGO', 'Market1501')", "DATASETS.ROOT", both))
    assert loader.dataset.num_classes == IDS // 2 + 8
    views = {(item[1].split("_")[0], loader.dataset[index].view) for index, item in enumerate(loader.dataset.img_items)}
    assert views == {("CARGO", View.AERIAL), ("CARGO", View.GROUND), ("market1501", UNKNOWN)}
    assert loader.dataset[len(loader.dataset) - 1].platform == UNKNOWN
    assert len(next(iter(loader))["views"]) == 16


@pytest.mark.parametrize("name", ["NaiveIdentitySampler", "BalancedIdentitySampler", "ViewBalancedIdentitySampler"])
def test_identity_samplers_on_our_records(synth_config, name):
    loader = build_train_loader(synth_config("DATALOADER.SAMPLER_TRAIN", name))
    batch = next(iter(loader))
    pids, counts = batch["targets"].unique(return_counts=True)
    assert counts.tolist() == [4] * 4
    if name == "ViewBalancedIdentitySampler":
        for pid in pids:
            assert batch["views"][batch["targets"] == pid].sort().values.tolist() == [0, 0, 1, 1]


def test_own_images_in_a_csv_train_without_a_class(fastreid_command, config_file, agsynth, tmp_path):
    dataset = DATASET_REGISTRY.get("CARGO_A2G")(root=str(agsynth))
    rows = ["path,pid,split,view"]
    rows += [f"{r.path},{r.pid},train,{r.view.name.lower()}" for r in (item.record for item in dataset.train)]
    for split, items in (("query", dataset.query), ("gallery", dataset.gallery)):
        rows += [f"{item[0]},{item[1]},{split},{item.record.view.name.lower()}" for item in items]
    table = tmp_path / "mine.csv"
    table.write_text("\n".join(rows))
    own = ("DATASETS.ROOT", table, "DATASETS.NAMES", "('csv',)", "DATASETS.TESTS", "('csv_A2G',)")
    outcome = fastreid_command(
        "train", "--config", config_file, "--output", tmp_path / "run", *own, "SOLVER.MAX_EPOCH", 1
    )
    assert outcome.code == 0, outcome.err
    (entry,) = load_results(tmp_path / "run")["csv"].values()
    assert (entry.protocol, entry.queries, entry.gallery) == ("csv/A2G", len(dataset.query), len(dataset.gallery))
    table.write_text("file,pid\na.jpg,1\n")
    outcome = fastreid_command("train", "--config", config_file, "--output", tmp_path / "run2", *own)
    assert_one_line(outcome, "mine.csv", "path")


def test_run_card_keeps_the_datasets_fingerprints(fastreid_command, config_file, agsynth, tmp_path):
    outcome = fastreid_command(
        *("train", "--config", config_file, "--output", tmp_path / "run", "DATASETS.ROOT", agsynth),
        *("DATASETS.NAMES", "('CARGO',)", "DATASETS.TESTS", "('CARGO_A2G',)", "SOLVER.MAX_EPOCH", 1),
    )
    assert outcome.code == 0, outcome.err
    fingerprints = json.loads((tmp_path / "run" / "run_card.json").read_text())["datasets"]
    expected = DATASET_REGISTRY.get("CARGO")(root=str(agsynth)).fingerprint
    assert fingerprints == {"CARGO": expected}


def chance(name: str, root: Path) -> float:
    """The mAP in percent that random features get."""
    dataset = DATASET_REGISTRY.get(name)(root=str(root))
    same = np.array([item[1] for item in dataset.query])[:, None] == np.array([item[1] for item in dataset.gallery])
    rng = np.random.default_rng(0)
    return 100 * np.mean([rank(rng.random(same.shape), same, np.zeros_like(same)).precision for _ in range(20)])


@pytest.mark.slow
def test_the_stock_trainer_and_evaluator_on_agsynth(synth_config, agsynth, tmp_path, monkeypatch):
    monkeypatch.setattr("fastreid.data.build._root", str(agsynth))
    epochs = ["SOLVER.MAX_EPOCH", 6, "TEST.EVAL_PERIOD", 6, "SOLVER.CHECKPOINT_PERIOD", 6]
    cfg = synth_config("OUTPUT_DIR", tmp_path / "run", *RESNET, *epochs)
    default_setup(cfg, None)
    assert DefaultTrainer(cfg).train()["CARGO"]["A2G/mAP"] > 1.4 * chance("CARGO_A2G", agsynth)


def host_pipeline_config(synth_config, *overrides):
    switches = [f"INPUT.{node}.ENABLED" for node in transforms.HOST_SWITCHES.values()]
    return synth_config(*(part for switch in switches for part in (switch, True)), *overrides)


def kinds(compose) -> list[str]:
    return [type(transform).__name__ for transform in compose.transforms]


def test_host_in_a_pipeline_is_the_hosts_own(synth_config):
    cfg = host_pipeline_config(synth_config)
    host = kinds(build_host_transforms(cfg, is_train=True))
    assert len(host) > 10
    cfg.INPUT.PIPELINE = ["host"]
    assert kinds(transforms.build_transforms(cfg, is_train=True)) == host


def test_the_hosts_transforms_by_name_are_the_hosts_own_in_any_order(synth_config):
    cfg = host_pipeline_config(synth_config)
    names = ["AutoAugment", "Resize", "RandomResizedCrop", "PadCrop", "HorizontalFlip", "ColorJitter", "Affine"]
    names += ["AugMix", "ToTensor", "RandomErasing", "RandomPatch"]
    cfg.INPUT.PIPELINE = names
    assert kinds(transforms.build_transforms(cfg, is_train=True)) == kinds(build_host_transforms(cfg, is_train=True))
    cfg.INPUT.PIPELINE = ["HorizontalFlip", "Resize", "ToTensor"]
    assert kinds(transforms.build_transforms(cfg, is_train=True)) == ["RandomHorizontalFlip", "Resize", "ToTensor"]


@pytest.fixture
def registered():
    """A transform of ours, gone after the test."""

    @transforms.register("Darken")
    class Darken:
        def __init__(self, by: float = 1.0):
            self.by = by

        def __call__(self, image):
            return image - self.by

    yield Darken
    del transforms.TRANSFORMS["Darken"]


def test_a_registered_transform_is_inserted_by_config(synth_config, registered):
    cfg = synth_config("INPUT.PIPELINE", "['Resize', 'ToTensor', {'Darken': {'by': 7}}]")
    pipeline = transforms.build_transforms(cfg, is_train=True)
    assert isinstance(pipeline.transforms[-1], registered)
    assert pipeline(Image.new("RGB", (5, 5), (10, 10, 10))).unique().tolist() == [3.0]
    assert kinds(transforms.build_transforms(cfg, is_train=False)) == ["Resize", "ToTensor"]


def test_plrm_is_inserted_by_config(synth_config):
    cfg = synth_config("INPUT.PIPELINE", "['host', {'PLRM': {'p_img': 1.0, 'p_0': 1.0, 'fill': 'self'}}]")
    pipeline = transforms.build_transforms(cfg, is_train=True)
    image = Image.effect_noise((32, 64), 60).convert("RGB")
    plain = transforms.build_transforms(cfg, is_train=False)(image)
    changed = pipeline(image)
    assert kinds(pipeline) == ["Resize", "ToTensor", "PLRM"]
    assert changed.shape == plain.shape
    assert not torch.equal(changed, plain)


@pytest.mark.parametrize(
    ("pipeline", "words"),
    [
        ("['Resise', 'ToTensor']", "INPUT.PIPELINE 'Resise' unknown (did you mean Resize?)"),
        ("['Resize']", "never makes a tensor"),
        ("['Resize', 'RandomErasing', 'ToTensor']", "RandomErasing cannot take a"),
        ("['ToTensor', {'Darken': {'much': 1}}]", "INPUT.PIPELINE Darken: "),
        ("[3]", "INPUT.PIPELINE takes names or"),
        ("['host', {'PLRM': {'p_img': 7}}]", "p_img"),
    ],
)
@pytest.mark.usefixtures("registered")
def test_a_pipeline_that_cannot_work_is_one_line(fastreid_command, config_file, tmp_path, pipeline, words):
    chosen = ["INPUT.PIPELINE", pipeline, "INPUT.REA.PROB", 1.0]
    assert_one_line(fastreid_command("train", "--config", config_file, "--output", tmp_path / "run", *chosen), words)
