"""Behavior of mmengine and mmpretrain that our fixes keep: what functions return, raise and leave behind."""

import pickle
from urllib.error import URLError

import numpy as np
import pytest
import torch
import yaml
from mmengine.fileio import load
from mmengine.runner import checkpoint
from mmpretrain.evaluation.metrics import RetrievalAveragePrecision, RetrievalRecall
from mmpretrain.models import ResNet

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine import compat

compat.install()


def test_checkpoints_are_written_below_new_folders(tmp_path):
    path = tmp_path / "new" / "sub" / "a.pth"
    assert checkpoint.save_checkpoint({"state_dict": {"w": torch.ones(1)}, "meta": {"epoch": 3}}, str(path)) is None
    assert checkpoint.load_checkpoint(torch.nn.Identity(), str(path))["meta"] == {"epoch": 3}
    with pytest.raises(ValueError, match="cannot be set at the same time"):
        checkpoint.save_checkpoint({}, str(path), file_client_args={}, backend_args={"backend": "local"})


def test_what_reading_a_checkpoint_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        checkpoint.load_checkpoint(torch.nn.Identity(), str(tmp_path / "nothing.pth"))
    path = tmp_path / "a.pth"
    path.write_bytes(b"")
    with pytest.raises(EOFError) as error:
        checkpoint.load_checkpoint(torch.nn.Identity(), str(path))
    assert isinstance(error.value, InputError)
    path.write_bytes(pickle.dumps({"state_dict": print}))
    with pytest.raises(pickle.UnpicklingError):
        checkpoint.load_checkpoint(torch.nn.Identity(), str(path))


def test_a_download_takes_torchs_options_and_raises_its_errors(tmp_path):
    torch.save({"w": torch.ones(1)}, tmp_path / "a-00000000.pth")
    url, folder = (tmp_path / "a-00000000.pth").as_uri(), str(tmp_path / "cache")
    assert checkpoint.load_url(url, folder, file_name="b.pth", progress=False)["w"].item() == 1
    assert (tmp_path / "cache" / "b.pth").is_file()
    with pytest.raises(RuntimeError, match="invalid hash value"):
        checkpoint.load_url(url, folder, check_hash=True, progress=False)
    with pytest.raises(URLError) as error:
        checkpoint.load_url((tmp_path / "nothing.pth").as_uri(), folder, progress=False)
    assert isinstance(error.value, InputError)


def test_yaml_files_are_read_and_tags_are_errors_of_yaml(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: [1, 2.5, x]\n")
    assert load(path) == {"a": [1, 2.5, "x"]}
    path.write_text("a: !!python/name:os.system ''\n")
    with pytest.raises(yaml.YAMLError):
        load(path)


def test_backbones_freeze_their_stages_and_norms_as_before():
    backbone = ResNet(18, frozen_stages=1, norm_eval=True)
    assert backbone.train() is backbone
    assert backbone.training
    assert not backbone.layer1[0].conv1.weight.requires_grad
    assert not any(each.training for each in backbone.modules() if isinstance(each, torch.nn.BatchNorm2d))
    assert not backbone.eval().training


def test_metrics_of_retrieval_keep_their_results():
    metric = RetrievalAveragePrecision(topk=1)
    metric.results = [torch.tensor(0.5)]
    assert metric.compute_metrics([torch.tensor(0.0), torch.tensor(1.0)]) == {"mAP@1": 0.5}
    assert metric.results == [torch.tensor(0.5)]
    found = RetrievalRecall.calculate([np.array([0, 1])], [[1]], topk=(1, 2), pred_indices=True, target_indices=True)
    assert [each.item() for each in found] == [0.0, 100.0]
