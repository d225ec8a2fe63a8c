"""`SOLVER.CACHED_CHUNK`: training steps of the host that encode a few images at once and learn the same."""

from pathlib import Path

import pytest
import torch
import yaml
from conftest import assert_one_line
from fastreid.engine.train_loop import SimpleTrainer
from fastreid.modeling import build_model
from fastreid.utils.events import EventStorage
from small_text import SHAPE

from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.hosts.fastreid.engine.solver import AMPTrainer
from agreid_plugin.hosts.fastreid.models.base import list_chunkable, set_chunk
from agreid_plugin.nn.checkpoints import read_checkpoint
from agreid_plugin.nn.clip import EOT, SOT
from agreid_plugin.synth import make_agsynth

TINY = {
    "MODEL": {
        "META_ARCHITECTURE": "TAGCLIP",
        "DEVICE": "cpu",
        "BACKBONE": {"NAME": "build_clip_backbone", "STRIDE_SIZE": [8, 8]},
        "CLIP": {**SHAPE, "PATCH_SIZE": 8},
        "TAG_CLIP": {  # nothing random: draws for chunks are others than for a batch
            "AT": [1],
            "SAMPLE": "argmax",
            "NOISE": 0.0,
            "TEXT_DROPOUT": 0.0,
            "TSE_WIDTH": 10,
            "TEMPERATURE": 0.5,
            "ORTHO_WEIGHT": 1.0,
        },
        "LOSSES": {"NAME": []},
    },
    "INPUT": {"SIZE_TRAIN": [32, 16], "SIZE_TEST": [32, 16], "PIPELINE": ["Resize", "ToTensor"]},
    "DATASETS": {"NAMES": ["TAG_PEDES"], "TESTS": ["TAG_PEDES"]},
    "DATALOADER": {"SAMPLER_TRAIN": "TrainingSampler", "NUM_WORKERS": 0},
    "SOLVER": {"OPT": "SGD", "BASE_LR": 0.1, "IMS_PER_BATCH": 16, "MAX_EPOCH": 1, "WARMUP_ITERS": 0, "STEPS": [9]},
    "TEST": {"EVAL_PERIOD": 0, "IMS_PER_BATCH": 16},
}
WITHOUT_TSE = ("MODEL.TAG_CLIP.TSE", False)  # whose batch norms have the statistics of a process


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A configuration that trains TAG-CLIP on 48 pairs in three steps."""
    root = tmp_path_factory.mktemp("captioned")
    make_agsynth(root, ids=6, images_per_id=8, size=(32, 16), layout="tag-pedes", workers=1, progress=False)
    settings = {**TINY, "DATASETS": {**TINY["DATASETS"], "ROOT": str(root)}}
    (root / "tiny.yml").write_text(yaml.safe_dump(settings))
    return root / "tiny.yml"


@pytest.fixture
def trained(tiny, tmp_path, fastreid_command):
    """Train, and return the weights."""

    def run(name: str, *overrides: object) -> dict[str, torch.Tensor]:
        outcome = fastreid_command("train", "--config", tiny, "--output", tmp_path / name, *overrides)
        assert outcome.code == 0, outcome.err
        assert ("in chunks of" in (tmp_path / name / "log.txt").read_text()) == ("SOLVER.CACHED_CHUNK" in overrides)
        return read_checkpoint(tmp_path / name / "model_final.pth")["model"]

    return run


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], start: dict[str, torch.Tensor]):
    """Steps are the same but for rounding, and are no small ones."""
    assert found.keys() == expected.keys()
    moved = sum((expected[name] - start[name]).double().norm() for name in start)
    apart = sum((expected[name] - found[name]).double().norm() for name in start)
    assert moved > 0.05
    assert apart < 1e-4 * moved


def start_of(tiny: Path, *overrides: object) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in built(tiny, 0, *overrides).named_parameters()}


def built(tiny: Path, chunk: int, *overrides: object) -> torch.nn.Module:
    torch.manual_seed(0)
    settings = ("MODEL.HEADS.NUM_CLASSES", 3, "SOLVER.CACHED_CHUNK", chunk, *overrides)
    cfg = load_config(tiny, map(str, settings))
    model = build_model(cfg)
    set_chunk(cfg, model)
    return model


def test_a_training_in_chunks_learns_what_one_without_does(tiny, trained):
    whole, chunks = trained("whole"), trained("chunks", "SOLVER.CACHED_CHUNK", 5)
    assert any("norm.running_mean" in name for name in whole)
    assert_close(chunks, whole, start_of(tiny))


def test_two_processes_in_chunks_learn_what_one_without_does(tiny, trained):
    """The pairs of a batch are the same, half of them in each process, and gradients are averaged once."""
    whole = trained("whole", *WITHOUT_TSE)
    chunks = trained("chunks", *WITHOUT_TSE, "SOLVER.CACHED_CHUNK", 3, "--num-processes", 2)
    assert_close(chunks, whole, start_of(tiny, *WITHOUT_TSE))


def host_batch() -> dict:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(7, 3, 32, 16, generator=generator) * 255
    tokens = torch.zeros(7, 77, dtype=torch.long)
    tokens[:, 1:4] = torch.randint(1, 999, (7, 3), generator=generator)
    tokens[:, 0], tokens[:, 4] = SOT, EOT
    views, pids = torch.tensor([0, 1, 1, -1, 0, 1, 0]), torch.tensor([0, 0, 1, 2, 2, 1, 0])
    return {"images": images, "targets": pids, "views": views, "tokens": tokens, "img_paths": tuple("abcdefg")}


def after_two_steps(tiny: Path, chunk: int, precision: str) -> dict[str, torch.Tensor]:
    model = built(tiny, chunk)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if precision == "full":
        trainer = SimpleTrainer(model, [host_batch()] * 2, optimizer, None)
    else:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        trainer = AMPTrainer(model, [host_batch()] * 2, optimizer, None, grad_scaler=scaler)
        trainer.enabled = precision == "half"
    with EventStorage():
        for trainer.iter in range(2):
            trainer.run_step()
    return {name: value.detach() for name, value in model.named_parameters()}


def test_steps_with_scaled_losses_and_in_half_precision(tiny):
    start, expected = start_of(tiny), after_two_steps(tiny, 0, "full")
    for precision in ("full", "scaled"):
        assert_close(after_two_steps(tiny, 3, precision), expected, start)
    rounding, in_chunks = (
        sum((expected[name] - value).norm() for name, value in after_two_steps(tiny, chunk, "half").items())
        for chunk in (0, 3)
    )
    assert 0 < in_chunks < 1.5 * rounding


def test_evaluation_is_not_in_chunks(tiny):
    plain, chunked = built(tiny, 0).eval(), built(tiny, 2).eval()
    with torch.no_grad():
        assert chunked(host_batch()).equal(plain(host_batch()))


def test_architectures_that_suit(tiny):
    assert "TAGCLIP" in list_chunkable()
    assert "Baseline" not in list_chunkable()
    assert built(tiny, 4).chunk == 4
    assert built(tiny, 0).chunk == 0


def test_architectures_that_do_not_suit_are_one_line(config_file, fastreid_command):
    outcome = fastreid_command("train", "--config", config_file, "SOLVER.CACHED_CHUNK", 4)
    assert_one_line(outcome, "SOLVER.CACHED_CHUNK is 4, but MODEL.META_ARCHITECTURE Baseline", "set it to 0", "TAGCLIP")
    outcome = fastreid_command("train", "--config", config_file, "SOLVER.CACHED_CHUNK", -1)
    assert_one_line(outcome, "SOLVER.CACHED_CHUNK is -1; use 0 for the whole batch at once")
