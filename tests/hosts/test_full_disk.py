"""What a run writes beside its checkpoints when the disk takes no more: told in a line, and the run goes on."""

import io
import logging
import resource
import signal
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fastreid.utils.events import EventStorage
from mmengine.visualization import Visualizer
from processes import in_processes

from agreid_plugin.hosts import console
from agreid_plugin.hosts.checkpointing import write_checkpoint
from agreid_plugin.hosts.fastreid.prompt_stage import write_prompts
from agreid_plugin.hosts.fastreid.writers import JSONWriter, TensorboardWriter
from agreid_plugin.hosts.mmengine.command_runner import spare_numbers

BYTES = 500


def on_a_full_disk(work: Callable[[], str]) -> list[str]:
    """Run `work` in a process whose files can hold few bytes, and return the lines of what it returns."""

    def limited() -> str:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, BYTES))
        return work()

    (told,) = in_processes(1, limited, grouped=False)
    return told.splitlines()


def warned(work: Callable[[], object]) -> str:
    """Return what `work` warns of, a line each."""
    stream, logger = io.StringIO(), logging.getLogger("agreid_plugin.hosts.checkpointing")
    logger.addHandler(logging.StreamHandler(stream))
    work()
    return stream.getvalue()


@pytest.mark.parametrize(("writer", "name"), [(JSONWriter, "metrics.json"), (TensorboardWriter, "")])
def test_numbers_that_are_not_written_end_no_run(tmp_path, writer, name):
    def write() -> None:
        with EventStorage(0) as storage:
            opened = writer(tmp_path / name)
            for _ in range(50):
                storage.put_scalar("loss", 1.0)
                opened.write()
                storage.step()
            opened.close()

    (told,) = on_a_full_disk(lambda: warned(write))
    assert "was not written: File too large" in told
    assert "the run goes on" in told
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [BYTES]


def test_numbers_of_mmengine_that_are_not_written_end_no_run(tmp_path):
    def write() -> None:
        kinds = [{"type": "LocalVisBackend"}, {"type": "TensorboardVisBackend"}]
        visualizer = Visualizer(name="full", vis_backends=kinds, save_dir=str(tmp_path))
        spare_numbers(visualizer)
        for step in range(100):
            visualizer.add_scalars({"loss": 1.0, "lr": 0.1}, step)
            visualizer.add_scalar("mAP", 1.0, step)
        visualizer.close()

    told = on_a_full_disk(lambda: warned(write))
    assert len(told) == 2
    assert all("was not written: File too large" in line for line in told)
    files = [path.name for path in tmp_path.glob("*/*") if path.stat().st_size == BYTES]
    assert [name.startswith("events.") for name in sorted(files)] == [True, False]


def test_prompts_that_are_not_written_end_no_run(tmp_path):
    method = SimpleNamespace(prompts=torch.zeros(8, 4, 64), text_classifier=SimpleNamespace(weight=torch.zeros(8, 16)))
    path = tmp_path / "prompts.pth"
    (told,) = on_a_full_disk(lambda: warned(lambda: write_prompts(path, method, ["a"] * 8, [1.0])))
    assert told.startswith(f"{path} was not written: File too large")
    assert told.endswith("the run goes on, but no other can take its prompts")
    assert not list(tmp_path.iterdir())


def test_a_log_that_is_not_written_is_told_of_once(tmp_path):
    def log() -> str:
        logger, stderr = logging.getLogger("of a full disk"), io.StringIO()
        logger.propagate = False
        logger.addHandler(logging.StreamHandler((tmp_path / "log.txt").open("a", buffering=1)))
        with redirect_stderr(stderr):
            console.tidy(logger)
            for _ in range(50):
                logger.warning("a line of a log")
            logger.warning("a fault of %d's", "the code")
        return stderr.getvalue()

    told = on_a_full_disk(log)
    assert told[0] == f"fastreid: {tmp_path / 'log.txt'} was not written: File too large; the run goes on"
    assert sum("was not written" in line for line in told) == 1
    assert [line for line in told if "Error: " in line] == ["TypeError: %d format: a real number is required, not str"]


def test_a_folder_that_is_gone_is_told_of_like_a_full_disk(tmp_path, caplog):
    path = Path(tmp_path, "gone", "model_final.pth")
    assert not write_checkpoint(path, {})
    assert f"{path} was not written: No such file or directory, " in caplog.text
