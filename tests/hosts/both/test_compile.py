"""torch.compile: graphs and losses of every method, and the key of either host."""

import copy
import json
import logging

import pytest
import torch
from conftest import assert_one_line
from equivalence_cases import METHODS, batch
from mmengine.model import BaseModel
from mmengine.runner import Runner
from small_fastreid import VISA, write_tiny
from small_recipes import small
from torch import nn
from torch._dynamo.backends.registry import lookup_backend

from agreid_plugin.engine.compilation import resolve_options
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.engine.trainer import Trainer
from agreid_plugin.types import Batch, ReIDMethod

pytestmark = pytest.mark.both_hosts


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


class Counter:
    """A backend that counts its graphs."""

    def __init__(self, name: str):
        self.graphs, self._compile = 0, lookup_backend(name)

    def __call__(self, graph, inputs):
        self.graphs += 1
        return self._compile(graph, inputs)


def train(method: ReIDMethod, run, steps: int = 3) -> list[dict[str, float]]:
    """Return the losses of a few steps in float64."""
    given, found = batch(), []
    optimizer = torch.optim.SGD(method.parameters(), 0.01)
    for step in range(steps):
        torch.manual_seed(step)
        losses = method.losses(run(method, given), given)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        found.append({name: loss.item() for name, loss in losses.items()})
    return found


def run_network(method: ReIDMethod, given: Batch):
    return method(given)


def assert_equal_losses(name: str, backend: str) -> int:
    """Compare the losses of a method with and without, and return the number of graphs."""
    eager, counter = METHODS[name]().double().train(), Counter(backend)
    compiled = copy.deepcopy(eager)
    wanted = train(eager, run_network)
    found = train(compiled, torch.compile(run_network, backend=counter))
    for plain, other in zip(wanted, found, strict=True):
        assert other == pytest.approx(plain, abs=1e-5)
    return counter.graphs


@pytest.mark.parametrize("name", ["VDT", "VIF", "ViSA", "ViSA, released", "TBPS-CLIP", "CLIP-ReID"])
def test_a_method_is_one_graph(name):
    assert assert_equal_losses(name, "eager") == 1


@pytest.mark.slow
def test_experts_are_part_of_the_graph_of_the_gradients():
    assert assert_equal_losses("ViSA", "aot_eager") == 1


@pytest.mark.parametrize("name", ["SVPR", pytest.param("TAG-CLIP", marks=pytest.mark.slow)])
def test_what_depends_on_the_values_is_left_out_of_the_graphs(name):
    """Sentences of a batch, and the tokens of an expert: as many graphs in every step."""
    assert 1 < assert_equal_losses(name, "eager") < 20


@pytest.mark.slow
def test_inductor_draws_and_learns_as_uncompiled_code():
    options = resolve_options("key", torch.device("cpu"))
    layers = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
    compiled = torch.compile(layers, **options)
    for seed in range(3):
        outputs = []
        for each in (layers, compiled):
            torch.manual_seed(seed)
            outputs.append(each(torch.ones(4, 8)))
        assert torch.allclose(*outputs, atol=1e-5)


def test_an_absent_compiler_is_one_line(monkeypatch):
    config = pytest.importorskip("torch._inductor.config")
    monkeypatch.setattr(config.cpp, "cxx", ("no-such-compiler",))
    with pytest.raises(
        InputError, match=r"^SOLVER.COMPILE: torch.compile does not work here: .* needs a C\+\+ compiler"
    ):
        resolve_options("SOLVER.COMPILE", torch.device("cpu"))


# fast-reid


def run_losses(folder) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.json").read_text().splitlines()]
    return [line["total_loss"] for line in lines if "total_loss" in line]


def test_solver_compile(fastreid_command, tmp_path, agsynth):
    path, found = write_tiny(tmp_path, VISA, agsynth), {}
    for backend in ("", "eager"):
        ran = fastreid_command(
            *("train", "--config", path, "--output", tmp_path / backend / "run"),
            *("SEED", 1, "SOLVER.COMPILE", backend),
        )
        assert ran.code == 0, ran.err
        found[backend] = run_losses(tmp_path / backend / "run")
        names = torch.load(tmp_path / backend / "run" / "model_final.pth", weights_only=True)["model"]
        assert "backbone.encoder.view_tokens" in names
    assert graphs() > 1
    assert found["eager"] == pytest.approx(found[""], abs=1e-4)  # in float32, logged with its steps


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["SOLVER.COMPILE", "inductr"], "SOLVER.COMPILE: backend 'inductr' unknown (did you mean inductor?)"),
        (
            ["SOLVER.COMPILE", "eager", "SOLVER.CACHED_CHUNK", 4],
            "SOLVER.COMPILE and SOLVER.CACHED_CHUNK do not go together",
        ),
    ],
)
def test_solver_compile_is_refused_in_one_line(overrides, line, fastreid_command, tmp_path, agsynth):
    ran = fastreid_command("train", "--config", write_tiny(tmp_path, VISA, agsynth), *overrides)
    assert_one_line(ran, line)


def test_the_backbone_of_the_hosts_baseline_is_compiled(tmp_path, agsynth):
    network = {"NAME": "build_resnet_backbone", "DEPTH": "18x", "FEAT_DIM": 512, "PRETRAIN": False}
    settings = copy.deepcopy(VISA)
    settings["MODEL"] |= {"META_ARCHITECTURE": "Baseline", "BACKBONE": network}
    cfg = load_config(
        write_tiny(tmp_path, settings, agsynth),
        ["MODEL.DEVICE", "cpu", "MODEL.HEADS.NUM_CLASSES", "4", "SOLVER.COMPILE", "eager"],
    )
    model = Trainer.build_model(cfg)
    before = graphs()
    model.backbone(torch.zeros(2, 3, 32, 16))
    assert graphs() == before + 1
    assert not any("_orig_mod" in name for name in model.state_dict())


# mmengine


def logged(folder) -> list[float]:
    (path,) = folder.glob("*/vis_data/scalars.json")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.parametrize("name", ["VDT", pytest.param("ViSA", marks=pytest.mark.slow)])
def test_compile_of_the_runner_compiles_the_network(name, tmp_path):
    found = []
    for place, options in (("eager", False), ("compiled", {"backend": "eager"})):
        config = small(name, tmp_path / "data", tmp_path / place)
        config.compile = options
        runner = Runner.from_cfg(config)
        runner.train()
        found.append(logged(tmp_path / place))
        assert "method.head.classifier.weight" in runner.model.state_dict()
    assert graphs() >= 2  # the small function that is tried first, and the network
    assert found[1] == pytest.approx(found[0], abs=1e-4)


class Other(BaseModel):
    """A model of somebody else's."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, inputs, mode="tensor"):
        return {"loss": self.norm(self.layer(inputs)).mean()}


def test_other_models_compile_as_in_mmengine_with_paramwise_cfg(tmp_path):
    """torch alone cannot: its optimizers' groups are dictionaries of mmengine's."""
    optimizer = {"type": "AdamW", "lr": 0.01, "weight_decay": 0.1}
    loader = {"batch_size": 8, "num_workers": 0, "sampler": {"type": "DefaultSampler", "shuffle": False}}
    runner = Runner(
        Other(),
        str(tmp_path),
        train_dataloader={
            **loader,
            "dataset": [{"inputs": torch.ones(4)}] * 8,
            "collate_fn": {"type": "default_collate"},
        },
        train_cfg={"by_epoch": True, "max_epochs": 1},
        optim_wrapper={"optimizer": optimizer, "paramwise_cfg": {"norm_decay_mult": 0.0}},
        cfg={"compile": {"backend": "eager"}},
        log_level="ERROR",
    )
    before = runner.model.layer.weight.detach().clone()
    runner.train()
    assert not torch.equal(runner.model.layer.weight, before)
    assert graphs() > 1
    logging.getLogger("mmengine").handlers.clear()
