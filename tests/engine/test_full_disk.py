"""A disk that takes no more, and a folder that is gone: what a run survives, and what ends it in one line."""

import io
import logging
import resource
import signal
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace

import pytest
import small_mmengine_config
import small_runs
import torch
from fastreid.utils.checkpoint import Checkpointer
from fastreid.utils.events import EventStorage
from mmengine import hooks
from mmengine.runner import save_checkpoint
from mmengine.visualization import Visualizer
from processes import in_processes
from zygote import Ended

from agreid_plugin.engine.report import tidy_console
from agreid_plugin.errors import InputError, MissingInputError
from agreid_plugin.hosts.fastreid.engine.writers import JSONWriter, TensorboardWriter
from agreid_plugin.hosts.fastreid.models.clip_reid import write_prompts
from agreid_plugin.hosts.mmengine.engine.checkpoints import mark
from agreid_plugin.hosts.mmengine.engine.runner import make_visualizer_tolerant

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
    stream, logger = io.StringIO(), logging.getLogger("agreid_plugin.engine.checkpoints")
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
        make_visualizer_tolerant(visualizer)
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
            tidy_console(logger)
            for _ in range(50):
                logger.warning("a line of a log")
            logger.warning("a fault of %d's", "the code")
        return stderr.getvalue()

    told = on_a_full_disk(log)
    assert told[0] == f"fastreid: {tmp_path / 'log.txt'} was not written: File too large; the run goes on"
    assert sum("was not written" in line for line in told) == 1
    assert [line for line in told if "Error: " in line] == ["TypeError: %d format: a real number is required, not str"]


def test_a_checkpoint_of_fast_reid_in_a_folder_that_is_gone_is_refused(tmp_path):
    checkpointer = Checkpointer(torch.nn.Linear(1, 1), str(tmp_path / "gone"))
    with pytest.raises(MissingInputError, match=r"^output folder .*gone is gone: "):
        checkpointer.save("model_final")
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_checkpoint_of_mmengine_is_made(tmp_path):
    path = tmp_path / "new" / "sub" / "x.pth"
    save_checkpoint({"state_dict": {"a": torch.ones(2)}}, str(path))
    assert torch.load(path, weights_only=True)["state_dict"]["a"].tolist() == [1, 1]
    (tmp_path / "file").touch()
    save_checkpoint({"state_dict": {}}, str(tmp_path / "file" / "x.pth"))  # a warning, as on a full disk


@pytest.mark.parametrize("attribute", ["last_ckpt", "best_ckpt_path"])
def test_the_hook_of_mmengine_knows_that_its_checkpoint_was_not_written(tmp_path, attribute):
    def train() -> str:
        hook = hooks.CheckpointHook(save_best="mAP", rule="greater")
        hook.after_train(None)
        setattr(hook, attribute, str(tmp_path / "x.pth"))
        save_checkpoint({"state_dict": {"a": torch.ones(BYTES)}}, str(tmp_path / "x.pth"))
        with pytest.raises(InputError) as error:
            hook.after_train(None)
        return str(error.value)

    (line,) = on_a_full_disk(train)
    assert line == f"{tmp_path / 'x.pth'} was not written; make room and continue with --resume"


SMALL = """
train_cfg = dict(by_epoch=True, max_epochs=2)
default_hooks = dict(checkpoint=dict(type="{hook}", interval=1, out_dir={folder!r}))
"""


@pytest.fixture
def train(forked_command, agsynth, tmp_path):
    """Train 2 epochs of mmengine with a hook of checkpoints, in a folder beside that of the run."""

    def run(hook: str, *more: object, folder: Path = tmp_path / "out", **limits: object) -> Ended:
        config = small_mmengine_config.write_config(
            tmp_path / "c.py", agsynth, SMALL.format(hook=hook, folder=str(folder))
        )
        return forked_command("train", "--config", config, "--output", tmp_path / "run", *more, **limits)

    return run


@pytest.mark.parametrize("hook", ["CheckpointHook", "mmengine.CheckpointHook"])
def test_checkpoints_beside_the_run(train, tmp_path, hook):
    assert train(hook, "train_cfg.max_epochs", 1).code == 0
    assert [path.name for path in (tmp_path / "out" / "run").iterdir()] == ["epoch_1.pth"]
    resumed = train(hook, "--resume")
    assert resumed.code == 0, resumed.said
    assert "Epoch(train) [1]" not in resumed.said
    assert sorted(path.name for path in (tmp_path / "out" / "run").iterdir()) == ["epoch_1.pth", "epoch_2.pth"]


@pytest.mark.parametrize("hook", ["CheckpointHook", "mmengine.CheckpointHook"])
def test_a_run_without_a_checkpoint_does_not_end_well(train, tmp_path, hook):
    ended = train(hook, file_size=30_000)
    assert ended.code == 2, ended.said
    assert ended.said.count("was not written: File too large") == 2
    last = f"{tmp_path / 'out' / 'run' / 'epoch_2.pth'} was not written; make room and continue with --resume"
    assert ended.said.splitlines()[-1] == f"fastreid: error: {last}"


def test_a_place_that_takes_no_checkpoints_is_refused_before_training(train, tmp_path):
    (tmp_path / "file").touch()
    ended = train("CheckpointHook", folder=tmp_path / "file")
    assert ended.code == 2, ended.said
    assert ended.said.splitlines()[-1].endswith("file/run cannot be written: Not a directory")
    assert "Epoch(train)" not in ended.said


def test_a_relative_place_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mark(tmp_path, Path("out", "epoch_1.pth"))
    assert (tmp_path / "last_checkpoint").read_text() == str(tmp_path / "out" / "epoch_1.pth")


def test_a_run_of_mmengine_ends_when_its_folder_is_gone(train, tmp_path):
    ended = train("CheckpointHook", at=("step", 2), remove=tmp_path / "run")
    assert ended.code == 2, ended.said
    assert ended.said.splitlines()[-1].startswith(f"fastreid: error: output folder {tmp_path / 'run'} is gone: ")
    assert "Epoch(train) [2]" not in ended.said
    assert not (tmp_path / "run").exists()


def test_a_run_of_fast_reid_ends_when_its_folder_is_gone(forked_command, agsynth, tmp_path):
    config = small_runs.write_config(tmp_path / "c.yml", agsynth)  # which saves after 4 steps of 18
    train = ("train", "--config", config, "--output", tmp_path / "run")
    ended = forked_command(*train, at=("step", 3), remove=tmp_path / "run")
    assert ended.code == 2, ended.said
    assert ended.said.splitlines()[-1].startswith(f"fastreid: error: output folder {tmp_path / 'run'} is gone: ")
    assert "iteration 4/18" in ended.said
    assert "iteration 5/18" not in ended.said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("host", "room"), [(small_runs, 2_000), (small_runs, 8_000), (small_mmengine_config, 100)])
def test_a_disk_that_is_full_from_the_start_is_one_line(forked_command, agsynth, tmp_path, host, room):
    config = host.write_config(tmp_path / ("c.yml" if host is small_runs else "c.py"), agsynth)
    size = config.stat().st_size + room  # less than all that is configured, or than the run card
    ended = forked_command("train", "--config", config, "--output", tmp_path / "run", file_size=size)
    assert ended.code == 2, ended.said
    line = f"output folder {tmp_path / 'run'} cannot be written: File too large; make room, or choose another --output"
    assert ended.said.splitlines()[-1] == f"fastreid: error: {line}"
    assert "Traceback" not in ended.said
