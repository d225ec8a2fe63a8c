"""The same images, labels, pixels and batches in fast-reid and in mmengine."""

from itertools import islice

import numpy as np
import pytest
import torch
from fastreid.config import get_cfg
from fastreid.data.samplers import NaiveIdentitySampler
from fastreid.data.transforms import build_transforms as build_host_transforms
from fastreid.utils import comm
from mmengine.dataset import Compose
from mmengine.registry import DATASETS
from PIL import Image

from agreid_plugin.data.images import read_image
from agreid_plugin.data.samplers import EpochSampler, RandomIdentities
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.data import transforms
from agreid_plugin.hosts.fastreid.data.loaders import build_train_loader
from agreid_plugin.hosts.fastreid.engine.evaluator import test_sets
from agreid_plugin.synth import make_agsynth

test_sets.__test__ = False  # the function's name, not a test's

SIZE = [64, 32]
SIZES = [(64, 32), (100, 37), (31, 80)]


@pytest.fixture(scope="module")
def captioned(tmp_path_factory):
    """AG-Synth as TAG-PEDES: 12 people to train on, some of whose numbers have two digits."""
    root = tmp_path_factory.mktemp("captioned")
    make_agsynth(root, ids=24, images_per_id=4, size=(32, 16), layout="tag-pedes", workers=1, progress=False)
    return root


def pictures(folder) -> list[str]:
    """Images of noise in odd sizes, one of them with no colors."""
    rng, paths = np.random.default_rng(0), []
    for number, (height, width) in enumerate(SIZES):
        path = folder / f"{number}.png"
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
        paths.append(str(path))
    Image.fromarray(rng.integers(0, 256, (50, 20), dtype=np.uint8)).save(folder / "gray.jpg")
    return [*paths, str(folder / "gray.jpg")]


def ours(*entries) -> Compose:
    steps = [{"type": entry} if isinstance(entry, str) else entry for entry in ("ReadImage", *entries, "Pack")]
    return Compose([{**step, "type": f"agreid_plugin.{step['type']}"} for step in steps])


def host_config(**switches):
    cfg = get_cfg()
    cfg.INPUT.SIZE_TRAIN = cfg.INPUT.SIZE_TEST = SIZE
    for name, options in switches.items():
        cfg.INPUT[name].ENABLED = True
        for key, value in options.items():
            cfg.INPUT[name][key] = value
    return cfg


RESIZE = {"type": "Resize", "size": SIZE}


def test_a_test_image_has_the_same_pixels(tmp_path):
    host, pipeline = build_host_transforms(host_config(), is_train=False), ours(RESIZE)
    for path in pictures(tmp_path):
        assert torch.equal(pipeline({"img_path": path})["inputs"], host(read_image(path)))


def assert_same_draws(paths, host, pipeline) -> None:
    changed = set()
    for seed, path in enumerate(paths * 25):
        torch.manual_seed(seed)
        expected, state = host(read_image(path)), torch.get_rng_state()
        torch.manual_seed(seed)
        found = pipeline({"img_path": path, "pid": 0})["inputs"]
        assert torch.equal(found, expected)
        assert torch.equal(torch.get_rng_state(), state)  # as many draws: what follows is the same, too
        changed.add(found.sum().item())
    assert len(changed) > 25


def test_what_the_host_does_in_training_has_the_same_pixels(tmp_path):
    """Resizing, padding and cropping, flipping, erasing: all that recipes switch on."""
    host = build_host_transforms(host_config(PADDING={"SIZE": 4}, FLIP={}, REA={}), is_train=True)
    pipeline = ours(RESIZE, {"type": "PadCrop", "padding": 4}, "HorizontalFlip", "RandomErasing")
    assert_same_draws(pictures(tmp_path), host, pipeline)
    host = build_host_transforms(
        host_config(
            PADDING={"SIZE": 10, "MODE": "reflect"}, FLIP={"PROB": 0.2}, REA={"PROB": 0.9, "VALUE": [1.0, 2, 3]}
        ),
        is_train=True,
    )
    flip, erase = {"type": "HorizontalFlip", "prob": 0.2}, {"type": "RandomErasing", "prob": 0.9, "value": [1.0, 2, 3]}
    pipeline = ours(RESIZE, {"type": "PadCrop", "padding": 10, "mode": "reflect"}, flip, erase)
    assert_same_draws(pictures(tmp_path), host, pipeline)


@pytest.mark.parametrize(
    ("names", "entries"),
    [
        (
            ["Resize", "HorizontalFlip", "PadCrop", "ToTensor", "PLRM", "RandomErasing"],
            [RESIZE, "HorizontalFlip", "PadCrop", "PLRM", "RandomErasing"],
        ),
        (
            ["BilinearResize", "ToTensor", "AugmentationPool"],
            [{**RESIZE, "interpolation": "bilinear"}, "AugmentationPool"],
        ),
        (["Resize", "ToTensor", "RandomRotation", "PatchShuffle"], [RESIZE, "RandomRotation", "PatchShuffle"]),
    ],
    ids=["vif", "tag-clip", "rivals"],
)
def test_pipelines_by_name_have_the_same_pixels(tmp_path, config_file, names, entries):
    host = load_config(config_file, ["INPUT.SIZE_TRAIN", str(SIZE), "INPUT.PIPELINE", str(names)])
    assert_same_draws(pictures(tmp_path), transforms.build_transforms(host, is_train=True), ours(*entries))


def dataset(name, root, **options):
    return DATASETS.build(
        {"type": "agreid_plugin.ReIDDataset", "name": name, "data_root": str(root), "serialize_data": False, **options}
    )


@pytest.mark.parametrize("name", ["CARGO", "CP2108", "AG-ReID.v2"])
def test_training_items_are_the_same_in_the_same_order(config_file, described, name):
    host_name = name.replace("-", "_").replace(".", "_")
    names = ["DATASETS.NAMES", f"('{host_name}',)", "DATASETS.ROOT", str(described), "MODEL.DEVICE", "cpu"]
    host = build_train_loader(load_config(config_file, names)).dataset
    found = dataset(name, described, attributes=[])
    assert found.metainfo["num_ids"] == host.num_classes
    rows = found.metainfo["attributes"]
    assert (host.schema is None) == (rows is None)
    assert rows is None or {key: tuple(values) for key, values in rows} == dict(host.schema.groups)
    for index in range(len(host)):
        expected, info = host[index], found.get_data_info(index)
        assert info["img_path"] == expected.path
        assert (info["gt_label"], info["view"], info["platform"]) == (expected.pid, expected.view, expected.platform)
        assert info["attributes"] == (None if expected.attributes is None else list(expected.attributes))
    assert len(found) == len(host)


def test_two_datasets_are_joined_alike(config_file, described):
    names = ["DATASETS.NAMES", "('CP2108', 'CARGO')", "DATASETS.ROOT", str(described), "MODEL.DEVICE", "cpu"]
    host = build_train_loader(load_config(config_file, names)).dataset
    found = dataset(["CP2108", "CARGO"], described, attributes=[])
    assert found.metainfo["num_ids"] == host.num_classes == 8
    for index in range(len(host)):
        info = found.get_data_info(index)
        assert (info["img_path"], info["gt_label"]) == (host[index].path, host[index].pid)
        assert info["attributes"] == list(host[index].attributes)


TEXT = ["MODEL.META_ARCHITECTURE", "TAGCLIP", "MODEL.BACKBONE.NAME", "build_clip_backbone", "MODEL.DEVICE", "cpu"]


def text_config(config_file, root, *overrides):
    names = ["DATASETS.NAMES", "('TAG_PEDES',)", "DATASETS.TESTS", "('TAG_PEDES',)", "DATASETS.ROOT", str(root)]
    losses = ["MODEL.LOSSES.NAME", "[]", "INPUT.PIPELINE", "['Resize', 'ToTensor', 'AugmentationPool']"]
    return load_config(config_file, [*TEXT, *names, *losses, *map(str, overrides)])


@pytest.mark.parametrize("which", ["all", "one"])
def test_images_and_captions_draw_the_same_tokens(config_file, captioned, which):
    cfg = text_config(config_file, captioned, "INPUT.CAPTIONS", which, "INPUT.TEXT.WORD_DELETION", 0.3)
    host = build_train_loader(cfg).dataset
    captions = {"which": which, "length": cfg.MODEL.CLIP.TEXT_LENGTH, "word_deletion": 0.3}
    pipeline = [
        *({"type": "agreid_plugin.ReadImage"}, {"type": "agreid_plugin.Resize", "size": list(cfg.INPUT.SIZE_TRAIN)}),
        *({"type": "agreid_plugin.AugmentationPool"}, {"type": "agreid_plugin.Pack"}),
    ]
    found = dataset("TAG-PEDES", captioned, captions=captions, pipeline=pipeline)
    assert len(found) == len(host)
    assert found.metainfo["num_ids"] == host.num_classes
    for index in range(len(host)):
        torch.manual_seed(index)
        expected = host[index]
        torch.manual_seed(index)
        item = found[index]
        assert torch.equal(item["inputs"], expected.image)
        assert torch.equal(item["data_samples"].tokens, expected.tokens)
        assert item["data_samples"].gt_label == expected.pid


def test_test_sets_ask_for_the_same(config_file, captioned, described):
    (host,) = test_sets(text_config(config_file, captioned))
    found = dataset("TAG-PEDES", captioned, split="test", captions={}).metainfo["test_set"]
    assert found.protocols == host.protocols
    assert found.records == host.records
    names = ["DATASETS.TESTS", "('CARGO_A2G', 'CARGO_ALL')", "DATASETS.ROOT", str(described)]
    (host,) = test_sets(load_config(config_file, names))
    found = dataset("CARGO", described, split="test", protocols=["A2G", "ALL"]).metainfo["test_set"]
    assert list(found.protocols) == list(host.protocols) == ["A2G", "ALL"]
    assert found.records == host.records


@pytest.mark.parametrize("world_size", [1, 2])
def test_random_identities_are_the_hosts_number_for_number(world_size, monkeypatch):
    counts = np.random.default_rng(0).integers(1, 15, 30)
    pids = [f"CARGO_{pid}" for pid, images in enumerate(counts) for _ in range(images)]
    items = [("", pid, 0) for pid in pids]
    monkeypatch.setattr(comm, "get_world_size", lambda: world_size)
    plan = RandomIdentities(pids, 32 * world_size, 4, world_size)
    for rank in range(world_size):
        monkeypatch.setattr(comm, "get_rank", lambda rank=rank: rank)
        state = np.random.get_state()
        expected = list(islice(NaiveIdentitySampler(items, 32, 4, seed=11), 32 * 60))
        np.random.set_state(state)
        sampler = EpochSampler(plan, 60, 32, seed=11, rank=rank, world_size=world_size)
        assert list(sampler) == expected
