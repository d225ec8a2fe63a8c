"""Each fix of mmengine and mmpretrain: the fault is gone, and would be seen."""

import importlib
import logging
import os
import subprocess
import sys
import types
from functools import partial
from pathlib import Path

import mmengine.runner  # noqa: F401 - every module that is mended
import mmpretrain.evaluation
import mmpretrain.models
import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.dataset import pseudo_collate
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader
from mmengine.runner.checkpoint import save_checkpoint
from mmpretrain.evaluation import RetrievalAveragePrecision, RetrievalRecall
from mmpretrain.models import ImageToImageRetriever, ResNet
from mmpretrain.structures import DataSample

from agreid_plugin import _imports
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine import compat
from agreid_plugin.hosts.mmengine.compat import mmengine_fixes, mmpretrain_fixes

ALL = [*mmengine_fixes.HOST_FIXES.all, *mmpretrain_fixes.HOST_FIXES.all]


def fix_named(name: str):
    (found,) = [fix for fix in ALL if fix.name == name]
    return found


@pytest.fixture
def native(monkeypatch):
    """Run one module's own code anew, as if it had never been fixed, and tell whether it has a fix's fault."""

    def reload(name: str, fix: str) -> bool:
        spec = importlib.util.find_spec(name)
        fresh = types.ModuleType(name)
        fresh.__dict__.update(__spec__=spec, __file__=spec.origin, __package__=name.rpartition(".")[0], __name__=name)
        registries = [value for value in vars(sys.modules[name]).values() if hasattr(value, "_module_dict")]
        dicts = [(registry, dict(registry._module_dict)) for registry in registries]
        for registry, _ in dicts:
            registry._module_dict.clear()  # or it refuses what it has already
        try:
            exec(spec.loader.get_code(name), fresh.__dict__)
        finally:
            for registry, entries in dicts:
                registry._module_dict.clear()
                registry._module_dict.update(entries)
        monkeypatch.setitem(sys.modules, name, fresh)
        return fix_named(fix).needed()

    return reload


@pytest.mark.parametrize("fix", ALL, ids=lambda fix: fix.name)
def test_fault_is_gone(fix):
    assert fix.due
    assert not fix.needed()


@pytest.mark.parametrize("fix", ALL, ids=lambda fix: fix.name)
def test_every_patch_says_why_and_is_watched_for(fix):
    assert len(fix.reason) > 20
    assert fix.module in _imports.WATCHED


def test_what_was_applied_is_told():
    assert {"safe_checkpoints", "train_returns_the_backbone", "average_over_all"} <= set(compat.HOST_FIXES.applied())


@pytest.mark.parametrize("fix", [fix for fix in ALL if fix.name in compat.HOST_FIXES.applied()], ids=lambda p: p.name)
def test_the_module_itself_has_the_fault(native, fix, monkeypatch):
    if fix.name == "numpy_in1d":
        monkeypatch.delattr(np, "in1d")
    assert native(fix.module, fix.name)
    fix.apply()
    assert not fix.needed()


def test_packages_are_found_without_pkg_resources():
    def is_installed(package):
        raise ModuleNotFoundError("No module named 'pkg_resources'", name="pkg_resources")

    module = sys.modules[mmengine_fixes.PACKAGES]
    kept = {name: getattr(module, name) for name in ("is_installed", "get_installed_path")}
    fix = fix_named("packages_by_importlib")
    mmengine_fixes.replace(mmengine_fixes.PACKAGES, "is_installed", is_installed)
    try:
        assert fix.needed()
        fix.apply()
        assert not fix.needed()
        config = sys.modules["mmengine.config.config"]  # it took the name before
        assert config.get_installed_path("mmpretrain") == os.path.dirname(mmpretrain.__file__)
        assert not module.is_installed("no_such_package")
        with pytest.raises(ModuleNotFoundError, match="no_such_package"):
            module.get_installed_path("no_such_package")
    finally:
        for name, function in kept.items():
            mmengine_fixes.replace(mmengine_fixes.PACKAGES, name, function)


# Checkpoints ------------------------------------------------------------------------------------------------------


class Foreign:
    def __reduce__(self):
        return os.system, ("true",)


def load(path):
    return CheckpointLoader.load_checkpoint(str(path), map_location="cpu")


@pytest.mark.parametrize("as_zip", [True, False])
def test_of_a_checkpoint_of_mmengine_come_tensors_and_plain_values(tmp_path, caplog, as_zip):
    """And what is left out is logged in one line."""
    scalars = {"loss": HistoryBuffer([1.0, 2.0], [1, 1]), "lr": HistoryBuffer()}
    info = {"lr": np.float64(0.5), "epoch": 3}
    content = {
        "state_dict": {"weight": torch.arange(3.0), "half": torch.ones(2, dtype=torch.bfloat16)},
        "message_hub": {"log_scalars": scalars, "runtime_info": info, "resumed_keys": dict.fromkeys([*scalars, *info])},
        "meta": {"cfg": ConfigDict(a=1), "random": np.random.RandomState(0).get_state(), "dtype": torch.half},
        "parameter": torch.nn.Parameter(torch.ones(1)),
    }
    torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=as_zip)
    caplog.set_level(logging.INFO, "agreid_plugin")
    found = load(tmp_path / "a.pth")
    assert torch.equal(found["state_dict"]["weight"], torch.arange(3.0))
    assert found["state_dict"]["half"].dtype is torch.bfloat16
    assert found["message_hub"] == {"log_scalars": {}, "runtime_info": {"epoch": 3}, "resumed_keys": {"epoch": None}}
    assert found["meta"] == {"dtype": torch.half}
    assert isinstance(found["parameter"], torch.nn.Parameter)
    load(tmp_path / "a.pth")
    assert {record.getMessage() for record in caplog.records} == {
        f"{tmp_path / 'a.pth'}: left out what is neither a tensor nor a plain value: "
        "message_hub.log_scalars.loss, message_hub.log_scalars.lr, message_hub.runtime_info.lr and 2 more"
    }


def test_a_run_without_anything_of_ours_keeps_its_histories_as_mmengine_writes_them(tmp_path):
    hub = {"log_scalars": {"loss": HistoryBuffer([1.0], [1])}, "runtime_info": {"best": np.float64(0.5)}}
    hub["resumed_keys"] = {"loss": True}
    save_checkpoint({"state_dict": {}, "message_hub": hub, "meta": {"cfg": "a = 1"}}, str(tmp_path / "a.pth"))
    for found in (torch.load(tmp_path / "a.pth", weights_only=False), load(tmp_path / "a.pth")):
        assert found["message_hub"]["log_scalars"]["loss"].current() == 1
        assert found["message_hub"]["runtime_info"] == {"best": 0.5}


def test_a_checkpoint_written_here_comes_back_with_its_histories(tmp_path):
    """And torch reads the file, without numpy's numbers and arrays."""
    histories = {
        "loss": HistoryBuffer([1.0, float("inf"), 2.5], [1, 1, 2]),
        "steps": HistoryBuffer([1, 2], [1, 1], max_length=2),
        "none": HistoryBuffer(),
    }
    info = {
        "lr": np.float64(0.1),
        "best": np.int64(3),
        "name": np.str_("a"),
        "array": np.arange(3),
        "text": np.array("b"),
    }
    state = torch.nn.BatchNorm1d(2).state_dict()
    content = {
        "state_dict": state,
        "message_hub": {"log_scalars": histories, "runtime_info": info, "resumed_keys": dict.fromkeys(histories, True)},
        "meta": {"cfg": ConfigDict(type="agreid_plugin.A", b=[1, np.float32(0.5)]), "size": torch.Size([1])},
    }
    save_checkpoint(content, str(tmp_path / "a.pth"))
    assert content["message_hub"]["log_scalars"] is histories
    plain = torch.load(tmp_path / "a.pth", weights_only=True)
    assert plain["meta"] == {"cfg": {"type": "agreid_plugin.A", "b": [1, 0.5]}, "size": torch.Size([1])}
    assert plain["state_dict"]._metadata == state._metadata
    found = load(tmp_path / "a.pth")["message_hub"]
    assert found["resumed_keys"] == dict.fromkeys(histories, True)
    array = found["runtime_info"].pop("array")
    assert torch.equal(array, torch.arange(3))
    assert found["runtime_info"] == {"lr": 0.1, "best": 3, "name": "a", "text": "b"}
    for name, history in found["log_scalars"].items():
        assert history.max_length == histories[name].max_length
        for one, other in zip(history.data, histories[name].data, strict=True):
            assert np.array_equal(one, other)
            assert one.dtype == other.dtype


def test_a_history_that_is_damaged(tmp_path):
    history = {"values": torch.ones(2), "counts": torch.ones(3), "max_length": 9}
    torch.save({"state_dict": {}, "message_hub": {"log_scalars": {"loss": history}}}, tmp_path / "a.pth")
    with pytest.raises(InputError, match=r"a\.pth is damaged: message_hub\.log_scalars\.loss is no history"):
        load(tmp_path / "a.pth")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ({"meta": Foreign()}, "posix.system" if os.name == "posix" else "nt.system"),
        ({"model": torch.nn.Linear(1, 1)}, "torch.nn.modules.linear.Linear"),
    ],
)
def test_a_checkpoint_that_runs_code_is_refused(tmp_path, content, word):
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(InputError, match=f"a.pth was not loaded: .* asks for {word}; a file .* can run code"):
        load(tmp_path / "a.pth")


def test_the_check_of_the_reader_holds_for_ours_only(monkeypatch):
    assert not mmengine_fixes._runs_stored_code()
    read = partial(torch.load, weights_only=False)
    monkeypatch.setattr(CheckpointLoader, "_get_checkpoint_loader", lambda _: read)
    assert mmengine_fixes._runs_stored_code()


def test_files_that_are_no_checkpoints(tmp_path):
    with pytest.raises(InputError, match=r"weight file .*none.pth does not exist"):
        load(tmp_path / "none.pth")
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(InputError, match=r"text\.pth cannot be read as a checkpoint"):
        load(tmp_path / "text.pth")


# mmpretrain -------------------------------------------------------------------------------------------------------


def test_backbones_can_be_chained():
    backbone = ResNet(depth=18)
    assert backbone.eval() is backbone
    assert not backbone.training
    assert backbone.train() is backbone
    assert backbone.training


def test_retrieval_metrics_count_what_all_processes_have():
    assert RetrievalRecall.calculate([[0, 1]], [[1]], topk=(1, 2), pred_indices=True, target_indices=True) == [0, 100]
    metric = RetrievalAveragePrecision(topk=2)
    metric.results = [torch.tensor(100.0)]
    assert metric.compute_metrics([torch.tensor(100.0), torch.tensor(50.0)]) == {"mAP@2": 75.0}
    assert metric.results == [torch.tensor(100.0)]


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return {
            "inputs": torch.full((3, 4, 4), index + 1.0),
            "data_samples": DataSample(metainfo={"sample_idx": index}),
        }


def test_a_gallery_is_encoded_as_it_is():
    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))  # the retriever asks it for the device

        def forward(self, images):
            return (images.mean(dim=(2, 3)),)

    loader = torch.utils.data.DataLoader(Images(), batch_size=2, collate_fn=pseudo_collate)
    retriever = ImageToImageRetriever(
        image_encoder=torch.nn.Sequential(Mean()),
        prototype=loader,
        data_preprocessor={"type": "mmpretrain.ClsDataPreprocessor"},
    )
    retriever.prepare_prototype()
    assert torch.equal(retriever.prototype_vecs, torch.tensor([1.0, 2.0, 3.0])[:, None].expand(3, 3))


def models_beside_transformers(folder: Path, start: str) -> subprocess.CompletedProcess:
    """Import mmpretrain's models beside a transformers of today, which has moved what its multimodal models import."""
    for name, version in (("transformers", "5.0.0"), ("pycocotools", "2.0.8")):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("class PreTrainedModel: pass\n")
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    code = (
        "import mmpretrain.utils.dependency as d; print(d.WITH_MULTIMODAL); import mmpretrain.models\n"
        "from agreid_plugin.hosts.mmengine.compat import HOST_FIXES\n"
        "print('no_multimodal_models' in HOST_FIXES.applied())"
    )
    env = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, env=env, timeout=120)


def test_models_load_beside_a_transformers_they_do_not_fit(tmp_path):
    ended = models_beside_transformers(tmp_path, "import agreid_plugin; ")
    assert ended.stdout.split() == ["False", "True"], ended.stderr


@pytest.mark.slow
def test_unfixed_models_do_not_load_beside_it(tmp_path):
    native = "from agreid_plugin._imports import WATCHED; del WATCHED['mmpretrain.utils.dependency']; "
    ended = models_beside_transformers(tmp_path, native)
    assert ended.stdout.split() == ["True"]
    assert "transformers" in ended.stderr.splitlines()[-1]
