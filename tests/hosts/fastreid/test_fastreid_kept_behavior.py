"""Behavior of the host that its fixes keep: what functions return, raise and leave behind; see fixed signatures."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from fastreid.config import CfgNode, get_cfg
from fastreid.data.build import DataLoaderX
from fastreid.data.transforms import ToTensor
from fastreid.engine.train_loop import AMPTrainer, SimpleTrainer
from fastreid.evaluation.rank import evaluate_rank
from fastreid.evaluation.roc import evaluate_roc
from fastreid.modeling.backbones import build_backbone
from fastreid.modeling.meta_arch import Baseline
from fastreid.solver import build_optimizer
from fastreid.utils.checkpoint import Checkpointer
from fastreid.utils.events import EventStorage
from PIL import Image

from agreid_plugin.errors import InputError

PIDS, CAMERAS = np.array([0, 1]), np.array([1, 1])


@pytest.fixture
def model():
    return torch.nn.Linear(2, 1)


def test_checkpoints_hold_what_was_given_and_the_last_is_marked(model, tmp_path):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    checkpointer = Checkpointer(model, str(tmp_path), optimizer=optimizer)
    assert not checkpointer.has_checkpoint()
    checkpointer.save("model_0000", epoch=0)
    assert torch.load(tmp_path / "model_0000.pth").keys() == {"model", "optimizer", "epoch"}
    assert (tmp_path / "last_checkpoint").read_text() == "model_0000.pth"
    assert checkpointer.has_checkpoint()
    assert checkpointer.get_checkpoint_file() == str(tmp_path / "model_0000.pth")
    assert checkpointer.resume_or_load("", resume=True) == {"epoch": 0}  # what is left for the caller


def test_processes_that_do_not_save_write_nothing(model, tmp_path):
    Checkpointer(model, str(tmp_path), save_to_disk=False).save("a")
    Checkpointer(model, "").save("a")
    assert not list(tmp_path.iterdir())


def test_what_reading_a_checkpoint_raises(model, tmp_path):
    checkpointer = Checkpointer(model, str(tmp_path))
    with pytest.raises(AssertionError, match="not found"):
        checkpointer.load(str(tmp_path / "nothing.pth"))
    (tmp_path / "a.pth").write_bytes(b"")
    with pytest.raises(EOFError) as error:
        checkpointer.load(str(tmp_path / "a.pth"))
    assert isinstance(error.value, InputError)
    with pytest.raises(FileNotFoundError):
        Checkpointer(model, str(tmp_path / "gone")).save("a")


def test_configurations_are_merged_dictionaries(tmp_path):
    (tmp_path / "base.yml").write_text("SEED: 3\nTEST: {METRIC: cosine}\n")
    (tmp_path / "a.yml").write_text("_BASE_: base.yml\nTEST: {MEMORY: 3.0}\n")
    found = CfgNode.load_yaml_with_base(str(tmp_path / "a.yml"))
    assert found == {"SEED": 3, "TEST": {"METRIC": "cosine", "MEMORY": 3.0}}
    assert type(found) is dict
    with pytest.raises(FileNotFoundError):
        CfgNode.load_yaml_with_base(str(tmp_path / "nothing.yml"))
    (tmp_path / "a.yml").write_text("A: [\n")
    with pytest.raises(yaml.YAMLError) as error:
        CfgNode.load_yaml_with_base(str(tmp_path / "a.yml"))
    assert isinstance(error.value, InputError)
    assert "\n" not in str(error.value)


def test_weights_of_another_network_raise_what_the_host_raises(tmp_path):
    cfg = get_cfg()
    cfg.MODEL.BACKBONE.DEPTH, cfg.MODEL.BACKBONE.PRETRAIN = "18x", True
    cfg.MODEL.BACKBONE.PRETRAIN_PATH = str(tmp_path / "a.pth")
    torch.save({"conv1.weight": torch.ones(2)}, tmp_path / "a.pth")
    with pytest.raises(RuntimeError, match="is not for build_resnet_backbone") as error:
        build_backbone(cfg)
    assert isinstance(error.value, InputError)
    cfg.MODEL.BACKBONE.PRETRAIN_PATH = str(tmp_path / "b.pth")
    with pytest.raises(FileNotFoundError):
        build_backbone(cfg)


def test_an_optimizer_comes_with_what_the_trainer_asks_of_it(model):
    optimizer, wrapper = build_optimizer(get_cfg(), model, contiguous=True)
    assert isinstance(optimizer, torch.optim.Optimizer)
    trainer = SimpleTrainer(model, [], optimizer, wrapper)
    trainer.iter = 0
    with EventStorage() as storage:
        assert trainer._write_metrics({"loss_a": torch.tensor(1.0), "loss_b": torch.tensor(2.0)}, 0.5) is None
        latest = {name: value for name, (value, _) in storage.latest().items()}
    assert latest == {"data_time": 0.5, "total_loss": 3.0, "loss_a": 1.0, "loss_b": 2.0}
    with EventStorage(), pytest.raises(FloatingPointError):
        trainer._write_metrics({"loss_a": torch.tensor(float("nan"))}, 0.5)


def test_mixed_precision_steps_where_there_is_no_gpu():
    class Model(torch.nn.Linear):
        def forward(self, batch):
            return {"loss": super().forward(batch["images"]).square().mean()}

    model = Model(2, 1)
    optimizer, wrapper = build_optimizer(get_cfg(), model)
    trainer = AMPTrainer(model, [{"images": torch.ones(4, 2)}], optimizer, wrapper)
    before, trainer.iter = model.weight.clone(), 0
    with EventStorage():
        assert trainer.run_step() is None
    assert not torch.equal(before, model.weight)
    assert trainer.grad_scaler is not None


def test_a_ranking_raises_and_returns_what_the_hosts_does():
    ranking = evaluate_rank(np.array([[0.1, 0.2]] * 2), PIDS, PIDS, CAMERAS - 1, CAMERAS, max_rank=2, use_cython=False)
    cmc, precision, inverse_penalty = ranking
    assert (type(cmc), type(precision), type(inverse_penalty)) == (np.ndarray, list, list)
    with pytest.raises(AssertionError, match="has a match in the gallery"):
        evaluate_rank(np.zeros((1, 1)), PIDS[:1], PIDS[:1], CAMERAS[:1], CAMERAS[:1])
    np.random.seed(0)  # it draws one image of each person
    single = evaluate_rank(np.array([[0.1, 0.2]] * 2), PIDS, PIDS, CAMERAS - 1, CAMERAS, 2, use_metric_cuhk03=True)
    assert single[0].tolist() == [0.5, 1.0]
    scores, labels = evaluate_roc(np.array([[0.1, 0.2]]), PIDS[:1], PIDS, CAMERAS[:1] - 1, CAMERAS, use_cython=False)
    assert scores.shape == labels.shape == (2,)


def test_images_that_are_none_are_a_type_error():
    statistics = {name: torch.zeros(1, 3, 1, 1) + value for name, value in (("pixel_mean", 1.0), ("pixel_std", 2.0))}
    model, images = SimpleNamespace(**statistics, device="cpu"), torch.full((1, 3, 1, 1), 3.0)
    for inputs in (images, {"images": images}):
        assert Baseline.preprocess_image(model, inputs).unique().item() == 1.0
    with pytest.raises(TypeError, match="batched_inputs must be dict"):
        Baseline.preprocess_image(model, [images])


def test_pictures_and_arrays_become_tensors():
    assert ToTensor()(Image.new("RGB", (2, 4), (255, 0, 0))).shape == (3, 4, 2)
    assert ToTensor()(np.zeros((4, 2, 3), np.uint8)).shape == (3, 4, 2)


def test_a_loader_is_one_of_torch():
    loader = DataLoaderX(local_rank=0, dataset=[torch.tensor(value) for value in range(4)], batch_size=2)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert len(loader) == 2
    assert json.dumps([batch.tolist() for batch in loader]) == "[[0, 1], [2, 3]]"
