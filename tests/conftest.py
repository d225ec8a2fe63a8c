"""What the tests share: a tiny dataset, a small configuration, and the command run in this process."""

import logging
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from market import make_market
from quicker import format_once, import_hosts_once, leave_imports_alone
from shared import common_folder, made_once
from small_mmengine_config import write_config
from zygote import zygote

from agreid_plugin.cli import main
from agreid_plugin.data import images as image_reading
from agreid_plugin.data.images import read_image
from agreid_plugin.synth import make_agsynth

torch.set_num_threads(1)  # the networks here are too small to share out

SMALL_CONFIG = {
    "MODEL": {
        "BACKBONE": {"NAME": "build_plain_vit_backbone", "DEPTH": "tiny", "STRIDE_SIZE": [8, 8], "FEAT_DIM": 16},
        "VIT": {"PATCH_SIZE": 8, "WIDTH": 16, "LAYERS": 2, "HEADS": 2},
        "HEADS": {"WITH_BNNECK": True},
        "LOSSES": {"NAME": ["CrossEntropyLoss", "TripletLoss"]},
    },
    "INPUT": {"SIZE_TRAIN": [32, 16], "SIZE_TEST": [32, 16]},
    "DATALOADER": {"SAMPLER_TRAIN": "NaiveIdentitySampler", "NUM_INSTANCE": 4, "NUM_WORKERS": 0},
    "SOLVER": {
        "IMS_PER_BATCH": 16,
        "MAX_EPOCH": 2,
        "WARMUP_ITERS": 0,
        "BASE_LR": 3e-4,
        "STEPS": [30],
        "CHECKPOINT_PERIOD": 1,
        "LOG_PERIOD": 1,
    },
    "TEST": {"EVAL_PERIOD": 1, "IMS_PER_BATCH": 16},
}
RESNET = (
    "MODEL.BACKBONE.NAME",
    "build_resnet_backbone",
    "MODEL.BACKBONE.DEPTH",
    "18x",
    "MODEL.BACKBONE.FEAT_DIM",
    "512",
)
"""Overrides of it: a backbone of the host's own, whose runs take five times as long."""
ROOT = Path(__file__).parents[1]
MOST_WORKERS = 4  # each imports both hosts, about a gigabyte


def pytest_xdist_auto_num_workers() -> int:
    """In how many processes tests run unless `-n` says it: one more than cores, as tests also wait for processes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_WORKERS, cores + 1)


def recipes(*projects: str) -> list[Path]:
    """The recipes for fast-reid of some projects; a grid of settings and a paper's numbers are none."""
    found = [path for project in projects for path in (ROOT / "projects").glob(f"{project}/*.yml")]
    return sorted(path for path in found if path.stem != "paper" and "\nrows:\n" not in path.read_text())


def pytest_configure(config: pytest.Config) -> None:
    """Keep what commands remember from one to the next out of the user's own cache."""
    if getattr(config, "cache", None) is not None:
        os.environ["XDG_CACHE_HOME"] = str(config.cache.mkdir("home"))


def pytest_collection_finish() -> None:
    """Make ready for the tests, when everything that they import is there."""
    import_hosts_once()
    format_once()
    leave_imports_alone()


def slow(*values: object) -> list:
    """Cases of a test that go the way of those beside them: left out unless slow tests are asked for."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow) for value in values
    ]


@dataclass
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def market(tmp_path_factory) -> Path:
    """A folder holding a tiny Market-1501: 8 identities to train on (48 images), 8 to test (16 queries, 32 gallery)."""
    return made_once(tmp_path_factory, "market", make_market)


@pytest.fixture(scope="session")
def agsynth(tmp_path_factory) -> Path:
    """A folder holding AG-Synth as CARGO: 4 people to train on, 4 to test with, 32x16."""

    def make(root: Path) -> None:
        make_agsynth(root, ids=8, images_per_id=12, size=(32, 16), workers=1, progress=False)

    return made_once(tmp_path_factory, "agsynth", make)


@pytest.fixture(scope="session")
def described(tmp_path_factory) -> Path:
    """A folder with AG-Synth in the layouts that have attributes, and in CARGO's, which has none: 8 people, 32x16."""

    def make(root: Path) -> None:
        for layout in ("cargo", "ag-reid-v2", "cp2108", "csv"):
            make_agsynth(root, ids=8, images_per_id=8, size=(32, 16), layout=layout, workers=1, progress=False)

    return made_once(tmp_path_factory, "described", make)


@pytest.fixture
def config_file(tmp_path, market) -> Path:
    """A configuration that trains on `market` in seconds."""
    path = tmp_path / "small.yml"
    path.write_text(yaml.safe_dump({**SMALL_CONFIG, "DATASETS": {"ROOT": str(market)}}))
    return path


@pytest.fixture
def tiny_py(tmp_path, agsynth) -> Path:
    """A configuration of mmengine's that trains VDT on `agsynth` in a second."""
    return write_config(tmp_path / "tiny.py", agsynth)


@pytest.fixture
def fastreid_command(capfd):
    """Run the `fastreid` command in this process."""

    def run(*argv: object) -> Outcome:
        for name in ("fastreid", "agreid_plugin"):  # those of an earlier run write to its own folder
            logging.getLogger(name).handlers.clear()
        _forget_host_loggers()
        capfd.readouterr()
        with _same_scope():
            code = main([str(argument) for argument in argv])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    yield run
    logging.getLogger("fastreid").handlers.clear()


@pytest.fixture(scope="session")
def imported(tmp_path_factory):
    """A process that has imported everything and forks the `fastreid` command from itself: see `zygote`."""
    with zygote(common_folder(tmp_path_factory), "fastreid", "mmengine") as process:
        yield process


@pytest.fixture(scope="session")
def forked_command(imported):
    """Run the `fastreid` command in processes forked from one that has imported everything."""
    return imported.run


@pytest.fixture
def opened(monkeypatch) -> list[str]:
    """The images that are read for their features, in no order."""
    paths = []
    monkeypatch.setattr(image_reading, "read_image", lambda path: paths.append(path) or read_image(path))
    return paths


@pytest.fixture
def without_proxy(monkeypatch) -> None:
    """Ask servers of this machine directly, whatever the environment says."""
    monkeypatch.setenv("no_proxy", "*")


@contextmanager
def interrupted_after(images: int):
    """Have somebody press Ctrl-C once so many images are read."""
    left = iter(range(images))

    def read(path):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return read_image(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_reading, "read_image", read)
        yield


MANAGED = {
    "mmengine.registry": ("DefaultScope",),
    "mmengine.logging": ("MMLogger", "MessageHub"),
    "mmengine.visualization": ("Visualizer",),
}
"""What mmengine keeps for a process by names: runs that start within one second have the same."""


def _managed() -> list:
    return [
        getattr(sys.modules[name], kind) for name, kinds in MANAGED.items() if name in sys.modules for kind in kinds
    ]


@contextmanager
def _same_scope():
    """Keep what the last runner of a process leaves behind in mmengine from what comes next."""
    before = {kind: dict(kind._instance_dict) for kind in _managed()}
    try:
        yield
    finally:
        for kind in _managed():
            kind._instance_dict.clear()
            kind._instance_dict.update(before.get(kind, {}))


@pytest.fixture(autouse=True)
def _same_scope_after_a_test():
    with _same_scope():
        yield


@pytest.fixture(autouse=True, scope="module")
def _same_scope_after_a_file():
    with _same_scope():
        yield


def _forget_host_loggers() -> None:
    if "fastreid" in sys.modules:
        from fastreid.utils.logger import setup_logger

        setup_logger.cache_clear()


def assert_one_line(outcome: Outcome, *words: str, program: str = "fastreid") -> None:
    """The command refused its input as it should: exit code 2, one line, saying the words."""
    assert outcome.code == 2, outcome
    lines = outcome.err.strip().splitlines()
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith(f"{program}: error: ")
    for word in words:
        assert word in lines[0]
