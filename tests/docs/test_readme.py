"""README.md taken at its word: its commands and its Python, in order and in one folder, on a dataset of eight people.

What is changed is here: recipes see fewer people for one epoch, and GPUs are processes.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pages import ROOT, Block, blocks, run, write_files
from PIL import Image
from processes import MOST_SECONDS, free_port
from test_markdown import SHELL, with_variables

from agreid_plugin.synth import make_agsynth

SMALL = {
    "agsynth": {
        "DATASETS.AGSYNTH.IDS": 8,
        "SOLVER.IMS_PER_BATCH": 8,
        "SOLVER.MAX_EPOCH": 1,
        "SOLVER.WARMUP_ITERS": 0,
        "DATALOADER.NUM_WORKERS": 0,
    },
    "cargo": {
        "MODEL.BACKBONE.PRETRAIN": False,
        "MODEL.BACKBONE.DEPTH": "tiny",
        "MODEL.BACKBONE.FEAT_DIM": 32,
        "MODEL.VIT.WIDTH": 32,
        "MODEL.VIT.LAYERS": 2,
        "MODEL.VIT.HEADS": 2,
        "SOLVER.IMS_PER_BATCH": 8,
        "SOLVER.MAX_EPOCH": 1,
        "SOLVER.WARMUP_ITERS": 0,
        "TEST.IMS_PER_BATCH": 16,
        "DATALOADER.NUM_WORKERS": 0,
    },
    "mmengine": {
        "model.num_ids": 4,
        "train_dataloader.dataset.agsynth.ids": 8,
        "val_dataloader.dataset.agsynth.ids": 8,
        "test_dataloader.dataset.agsynth.ids": 8,
        "train_dataloader.batch_size": 8,
        "train_dataloader.sampler.batch_size": 8,
        "train_cfg.max_epochs": 1,
        "param_scheduler.warmup_iters": 0,
    },
}
CHANGES = {
    "projects/ViSA/agsynth.yml": "agsynth",
    "projects/TAG-CLIP/agsynth.yml": "agsynth",
    "projects/ViSA/cargo.yml": "cargo",
    "projects/ViSA/agsynth.py": "mmengine",
    "resnet50_plrm_vial.yml": "agsynth",
    "my.yml": "agsynth",
}
"""What a configuration that the README trains is changed by; others it names are those of the runs."""
LAUNCHERS = ("torchrun", "srun")
PROCESSES = "2"
README = blocks("../README.md")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A checkout with the datasets and files that the README's reader has."""
    path = tmp_path_factory.mktemp("readme")
    for name in ("agreid_plugin", "configs", "projects", "docs"):
        os.symlink(ROOT / name, path / name)
    make_agsynth(path / "datasets", ids=8, images_per_id=12, size=(64, 32), workers=1, progress=False)
    (path / "my.yml").write_text("_BASE_: projects/VDT/agsynth.yml\nOUTPUT_DIR: logs/mine\n")
    Image.fromarray(np.full((64, 32, 3), 90, np.uint8)).save(path / "someone.jpg")
    list(write_files([block for block in README if block.file], path))
    return path


def shell_lines() -> list[list[str]]:
    """Every command of the README."""
    return [words for block in README if block.kind in SHELL and not block.file for words in with_variables(block)]


def small(place: int, words: list[str]) -> list[str]:
    """A line, the first or a later one, as this machine can run it in seconds."""
    words = ["fastreid", *words[2:]] if words[:2] == ["tools/run", "fastreid"] else words
    if "--num-gpus" in words:
        gpus = words.index("--num-gpus")
        words = [*words[:gpus], "--num-processes", PROCESSES, *words[gpus + 2 :]]
    if "--num-machines" in words:  # this one alone, which does not wait for another
        words = [*words[: words.index("--num-machines")], *words[words.index("--dist-url") + 2 :]]
    config = words[words.index("--config") + 1] if "--config" in words else ""
    if words[1] in ("train", "eval") or words[0] in LAUNCHERS:
        changes = SMALL[CHANGES[config]]
        if config == "my.yml":  # ways to start one run: each has a folder of its own
            changes = changes | {"OUTPUT_DIR": f"logs/mine-{place}"}
        words = [*words, *(str(each) for pair in changes.items() for each in pair)]
    return words


def small_lines() -> list[list[str]]:
    """Every command of the README, made small."""
    return [small(place, words) for place, words in enumerate(shell_lines())]


def commands() -> list[list[str]]:
    """The lines that the program runs by itself."""
    return [words for words in small_lines() if words[0] == "fastreid"]


@pytest.fixture(scope="module")
def ran(folder) -> str:
    """What the commands said, run one after the other."""
    return run(commands(), folder)


def test_the_first_command_runs(tmp_path):
    for name in ("configs", "projects"):
        os.symlink(ROOT / name, tmp_path / name)
    make_agsynth(tmp_path / "datasets", ids=8, images_per_id=8, size=(64, 32), workers=1, progress=False)
    first = commands()[0]
    assert first[:4] == ["fastreid", "train", "--config", "projects/ViSA/agsynth.yml"]
    assert "| CARGO/AG-cross " in run([first], tmp_path)
    assert (tmp_path / "logs" / "visa-agsynth" / "model_final.pth").exists()


def test_every_line_is_one_that_is_run_here_or_by_ci():
    others = [words for words in shell_lines() if "fastreid" not in words[:2]]
    programs = {words[1] if words[0] == "tools/run" else words[0] for words in others}
    assert programs == {*LAUNCHERS, "pytest", "pip"}
    ci = (ROOT / ".ci" / "run").read_text()
    assert "tools/run pytest\n" in ci
    assert f"{' '.join(shell_lines()[0])}\n" in ci  # the first one also at its full size
    assert ".ci/existing-environment" in ci  # which takes the lines with pip out of the README


@pytest.mark.slow
def test_the_commands_run(ran, folder):
    for line in commands():
        assert f"$ {' '.join(line)}" in ran
    for name in ("visa-agsynth", "visa-cargo", "visa-short", "tag-clip-agsynth"):
        assert (folder / "logs" / name / "model_final.pth").exists(), name
    for name in ("found.html", "visa.html", "visa.onnx", "people"):
        assert (folder / name).exists(), name
    for protocol in ("ALL", "A2A", "G2G", "A2G", "G2A", "AG-both", "AG-cross"):
        assert f"| CARGO/{protocol} " in ran


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_launchers_run(folder, launcher):
    (line,) = [words for words in small_lines() if words[0] == launcher]
    made = folder / line[line.index("OUTPUT_DIR") + 1] / "model_final.pth"
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    if launcher == "torchrun":
        count = line.index("--nproc-per-node") + 1
        line = [sys.executable, "-m", "torch.distributed.run", *line[1:count], PROCESSES, *line[count + 1 :]]
        ended = [subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)]
    else:
        ended = by_srun(line[line.index("fastreid") + 1 :], folder, environment)
    for each in ended:
        assert each.returncode == 0, each.stderr[-3000:]
    assert made.exists()


def by_srun(arguments: list[str], folder: Path, environment: dict[str, str]) -> list[subprocess.CompletedProcess]:
    """Run the command in processes that are told what srun tells its tasks."""
    line = [sys.executable, "-m", "agreid_plugin", *arguments]
    job = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "4711", "SLURM_NTASKS": PROCESSES, "SLURM_NODEID": "0"}
    job |= {"SLURM_NODELIST": "localhost", "SLURM_TASKS_PER_NODE": PROCESSES, "MASTER_PORT": str(free_port())}
    started = [
        subprocess.Popen(
            line,
            cwd=folder,
            env={**environment, **job, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(int(PROCESSES))
    ]
    ended = []
    for each in started:
        _, told = each.communicate(timeout=MOST_SECONDS)
        ended.append(subprocess.CompletedProcess(line, each.returncode, stderr=told))
    return ended


def python_blocks() -> list[Block]:
    return [block for block in README if block.kind == "python"]


@pytest.mark.slow
@pytest.mark.usefixtures("ran")
@pytest.mark.parametrize("block", python_blocks(), ids=lambda block: block.text.splitlines()[0][:40])
def test_the_python_runs(block, folder, monkeypatch):
    monkeypatch.chdir(folder)
    names = {"boxes": np.array([[2, 2, 20, 40]]), "frame": np.zeros((64, 64, 3), np.uint8)}
    exec(block.text, names)
    if "model" in names:
        build(names["model"])
    if isinstance(features := names.get("features"), np.ndarray):  # of a tracker's one box
        assert len(features) == 1
    elif features is not None:
        assert features.grad.any()


def build(model: dict) -> None:
    """Build a model of the README in mmengine's registry."""
    from mmengine.registry import MODELS, init_default_scope

    init_default_scope("agreid_plugin")
    assert sum(each.numel() for each in MODELS.build(model).parameters()) > 1e6
