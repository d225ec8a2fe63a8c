"""Hostile files on every path by which mmengine's commands read weights and configurations."""

import http.server
import threading
import zipfile
from functools import partial

import pytest
import torch
from conftest import assert_one_line, slow
from malicious import (
    ASKS,
    POINTERS,
    Writes,
    evil_checkpoint,
    evil_yaml,
    pointing_checkpoint,
    reading_commands,
    slipping_tar,
    slipping_zip,
)
from mmengine.fileio import load
from mmengine.logging import HistoryBuffer
from mmengine.registry import MODELS
from mmengine.runner.checkpoint import CheckpointLoader
from processes import in_processes
from yaml.constructor import ConstructorError
from zygote import assert_refused

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.config.loading import load_config
from agreid_plugin.hosts.mmengine.engine.checkpoint_reader import load_from_local
from agreid_plugin.trust import trust


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "marker"


@pytest.fixture
def evil(tmp_path, marker, tiny_py):
    """A good checkpoint of the model that would make a file besides."""
    state = MODELS.build(load_config(tiny_py).model).state_dict()
    hub = {"loss": HistoryBuffer([1.0], [1])}
    return evil_checkpoint(tmp_path / "evil.pth", marker, state_dict=state, message_hub=hub, meta={})


def _resumed(tmp_path, evil):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "last_checkpoint").write_text(str(evil))
    return ["--resume"]


TRAINING = {
    "load_from": lambda _, evil: ["load_from", evil],
    "pretrained": lambda _, evil: ["model.backbone.vit.pretrained", evil],
    "init_cfg": lambda _, evil: ["model.init_cfg.type", "Pretrained", "model.init_cfg.checkpoint", evil],
    "--resume": _resumed,
}
OTHERS = ("eval", "extract", "export", "index", "search", "visualize")


@pytest.mark.parametrize("arguments", TRAINING.values(), ids=TRAINING)
def test_training_refuses_a_checkpoint_that_runs_code(fastreid_command, tiny_py, evil, marker, tmp_path, arguments):
    argv = ["train", "--config", tiny_py, "--output", tmp_path / "run", *arguments(tmp_path, evil)]
    assert_one_line(fastreid_command(*argv), *ASKS)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["load_from", "--resume", *slow("pretrained", "init_cfg", *OTHERS)])
def test_no_command_goes_where_a_checkpoint_points(forked_command, tiny_py, agsynth, tmp_path, name):
    """In a process of its own, which would die."""
    evil = pointing_checkpoint(tmp_path / "evil.pth", "array", state_dict={}, meta={})
    if name in TRAINING:
        argv = ["train", "--config", tiny_py, "--output", tmp_path / "run", *TRAINING[name](tmp_path, evil)]
    else:
        argv = reading_commands(evil, tiny_py, agsynth, tmp_path)[name]
    assert_refused(forked_command(*argv), "evil.pth was not loaded", "asks for tuple;")


def test_no_reader_goes_where_a_checkpoint_points(tmp_path):
    hub = {"log_scalars": {"loss": HistoryBuffer([1.0], [1])}, "runtime_info": {"iter": 3, **POINTERS}}
    torch.save({"state_dict": {"a": torch.ones(2)}, "message_hub": hub, "x": POINTERS}, tmp_path / "a.pth")
    for kind in POINTERS:
        pointing_checkpoint(tmp_path / f"{kind}.pth", kind)

    def work() -> str:
        content = load_from_local(tmp_path / "a.pth", "cpu")
        for kind in POINTERS:
            with pytest.raises(InputError, match="asks for tuple;"):
                load_from_local(tmp_path / f"{kind}.pth", "cpu")
        return f"{content['message_hub']} {content['x']}"

    assert in_processes(1, work, grouped=False) == [
        "{'log_scalars': {}, 'runtime_info': {'iter': 3}, 'resumed_keys': {}} {}"
    ]


def test_evaluation_of_a_trusted_file(fastreid_command, tiny_py, evil, marker, tmp_path):
    argv = ["eval", "--config", tiny_py, "--weights", evil, "--output", tmp_path / "eval"]
    assert_one_line(fastreid_command(*argv), *ASKS)
    assert not marker.exists()
    outcome = fastreid_command(*argv, "--trust-checkpoint")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count(f"{evil} is loaded with the code that it holds") == 1
    assert marker.exists()


def test_trust_reaches_other_processes(fastreid_command, tiny_py, evil, marker, tmp_path):
    argv = ["eval", "--config", tiny_py, "--weights", evil, "--output", tmp_path / "eval", "--num-processes", 2]
    assert_one_line(fastreid_command(*argv), *ASKS)
    assert not marker.exists()
    outcome = fastreid_command(*argv, "--trust-checkpoint")
    assert outcome.code == 0, outcome.err
    assert marker.exists()


def test_training_from_a_trusted_file(fastreid_command, tiny_py, evil, marker, tmp_path):
    argv = ["train", "--config", tiny_py, "--output", tmp_path / "run", "--trust-checkpoint", "load_from", evil]
    outcome = fastreid_command(*argv)
    assert outcome.code == 0, outcome.err
    assert marker.exists()


def test_a_network_of_mmpretrain(tmp_path, marker):
    evil_checkpoint(tmp_path / "evil.pth", marker)
    pretrained = {"type": "Pretrained", "checkpoint": str(tmp_path / "evil.pth")}
    network = MODELS.build({"type": "mmpretrain.ResNet", "depth": 18, "init_cfg": pretrained})
    with pytest.raises(InputError, match=r"asks for io\.open;"):
        network.init_weights()
    assert not marker.exists()


def test_gallery_features_of_mmpretrain(tmp_path, marker):
    network = {"type": "mmpretrain.ResNet", "depth": 18}
    retriever = MODELS.build(
        {
            "type": "mmpretrain.ImageToImageRetriever",
            "image_encoder": [network, {"type": "mmpretrain.GlobalAveragePooling"}],
            "prototype": str(evil_checkpoint(tmp_path / "evil.pth", marker)),
        }
    )
    with pytest.raises(InputError, match=r"asks for io\.open;"):
        retriever.prepare_prototype()
    assert not marker.exists()


def test_a_network_of_timm(tmp_path, marker):
    evil_checkpoint(tmp_path / "evil.pth", marker)
    network = {
        "type": "mmpretrain.TIMMBackbone",
        "model_name": "resnet18",
        "checkpoint_path": str(tmp_path / "evil.pth"),
    }
    with pytest.raises(RuntimeError, match=r"weights_only=True blocked .* io\.open"):
        MODELS.build(network)
    assert not marker.exists()


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder whose files are downloaded, and where they arrive."""
    (tmp_path / "web").mkdir()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = partial(Quiet, directory=str(tmp_path / "web"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield tmp_path / "web", f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_downloads(served, marker, tmp_path):
    folder, url = served
    evil_checkpoint(folder / "evil.pth", marker)
    torch.save({"state_dict": {"a": torch.ones(2)}, "hub": HistoryBuffer([1.0], [1])}, folder / "good.pth")
    with pytest.raises(InputError, match=r"asks for io\.open;"):
        CheckpointLoader.load_checkpoint(f"{url}/evil.pth", "cpu")
    assert not marker.exists()
    assert CheckpointLoader.load_checkpoint(f"{url}/good.pth", "cpu")["state_dict"]["a"].sum() == 2
    assert (tmp_path / "home/hub/checkpoints/good.pth").is_file()
    for name in ("..", "", "%2e%2e/x/..", "none.pth"):
        with pytest.raises(InputError, match=r"names no file|cannot be downloaded"):
            CheckpointLoader.load_checkpoint(f"{url}/{name}", "cpu")


def test_archives(tmp_path):
    for name, make in (("a.pth", slipping_zip), ("b.pth", slipping_tar)):
        path = make(tmp_path / name)
        with pytest.raises(InputError, match=name):
            load_from_local(path, "cpu")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pth", "b.pth"]
    torch.jit.script(torch.nn.Linear(2, 3)).save(tmp_path / "c.pt")
    assert set(load_from_local(tmp_path / "c.pt")["state_dict"]) == {"weight", "bias"}


def test_classes_stay_as_they_are(tmp_path):
    """A pickle may give an object its state; given a class, it would change what all of mmengine shares."""
    name = b"cmmengine.logging.history_buffer\nHistoryBuffer\n"
    before = HistoryBuffer.mean
    with zipfile.ZipFile(tmp_path / "a.pth", "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + name + b"N}X\x04\x00\x00\x00meanK\x01s\x86b.")
        archive.writestr("a/version", b"3\n")
    with pytest.raises(InputError, match=r"a\.pth was not loaded: .* asks for mmengine\.logging"):
        load_from_local(tmp_path / "a.pth")
    assert HistoryBuffer.mean is before


def test_tags_in_bases(fastreid_command, tmp_path, marker):
    (tmp_path / "base.yaml").write_text(f"work_dir: {evil_yaml(marker)}")
    (tmp_path / "a.json").write_text('{"_base_": "base.yaml"}')
    (tmp_path / "a.py").write_text('_base_ = "base.yaml"')
    for name in ("a.json", "a.py"):
        outcome = fastreid_command("train", "--config", tmp_path / name)
        assert_one_line(outcome, name, "would run code, so it is refused")
    with pytest.raises(ConstructorError, match="would run code"):
        load(str(tmp_path / "base.yaml"))
    assert not marker.exists()


def test_trust_is_for_files_of_weights_alone(tmp_path, marker):
    trust(True)
    try:
        with pytest.raises(InputError, match=r"a\.pth cannot be read as a checkpoint"):
            load_from_local(slipping_zip(tmp_path / "a.pth"))
        torch.save({"more": Writes(marker)}, tmp_path / "b.pth")
        assert "more" in load_from_local(tmp_path / "b.pth")
    finally:
        trust(False)
    assert marker.exists()
