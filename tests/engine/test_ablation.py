"""`fastreid ablate`: a small grid trained, interrupted, refused, and its table by hand from the results."""

import csv
import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from statistics import mean, stdev

import pytest
import yaml
from conftest import ROOT, assert_one_line
from PIL import Image
from small_fastreid import VISA, write_tiny
from small_mmengine_config import write_config as write_py
from zygote import Zygote

from agreid_plugin.cli.ablate import read_grid
from agreid_plugin.engine import ablation
from agreid_plugin.engine.ablation import plan, run
from agreid_plugin.hosts.fastreid.config.loading import load_config
from agreid_plugin.synth import make_agsynth
from agreid_plugin.trust import OPTION, trust

CELLS = [(row, seed) for row in ("visa", "plain-queries") for seed in (0, 1)]


def write_grid(folder: Path, name: str = "grid.yml", **changes) -> Path:
    """Write a grid of two rows and two seeds, with keys changed."""
    content = {
        "config": "tiny.yml",
        "seeds": [0, 1],
        "protocols": ["ALL", "A2G"],
        "rows": {"ViSA": {}, "plain queries": {"MODEL.VISA.ETGM": False}},
        "output": str(folder / "out"),
    }
    path = folder / name
    path.write_text(yaml.safe_dump(content | changes, sort_keys=False))
    return path


def write_config(folder: Path, root: Path) -> None:
    """Write what the rows of `write_grid` change: four epochs, each with its checkpoint."""
    solver = {**VISA["SOLVER"], "MAX_EPOCH": 4, "CHECKPOINT_PERIOD": 1}
    write_tiny(folder, VISA | {"SOLVER": solver, "TEST": {**VISA["TEST"], "EVAL_PERIOD": 0}}, root)


@pytest.fixture
def grid_file(tmp_path) -> Path:
    """A grid whose dataset does not exist: enough for what is refused before training."""
    write_config(tmp_path, tmp_path / "none")
    return write_grid(tmp_path)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, imported) -> tuple[Path, int]:
    """A grid stopped by Ctrl-C in its second run, and when results.json of the first was written."""
    folder = tmp_path_factory.mktemp("ablation")
    make_agsynth(folder / "data", ids=8, images_per_id=12, size=(32, 16), workers=1, progress=False)
    write_config(folder, folder / "data")
    path = write_grid(folder)
    with pytest.raises(KeyboardInterrupt), ctrl_c_in_seed_1(imported):
        list(run(plan(path, read_grid(path))))
    return path, (folder / "out" / "visa" / "seed0" / "results.json").stat().st_mtime_ns


@pytest.fixture(scope="module", autouse=True)
def _imported_once(imported) -> Iterator[None]:
    """Have runs start in a process that has imported everything, not each import it anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablation, "COMMAND", imported.command())
        yield


@contextmanager
def ctrl_c_in_seed_1(imported: Zygote) -> Iterator[None]:
    """Have a run of seed 1 press Ctrl-C after its first checkpoint, and take no further step."""
    # A shell starts its background jobs deaf to Ctrl-C, and they pass it on.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ablation, "COMMAND", imported.command("ctrl_c_early"))
            yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def finished(interrupted) -> tuple[Path, str]:
    """The same grid after the same once more, and what that told."""
    path, _ = interrupted
    return path, "\n".join(run(plan(path, read_grid(path))))


def results_of(path: Path) -> dict[tuple[str, int], dict]:
    out = path.parent / "out"
    return {(row, seed): json.loads((out / row / f"seed{seed}" / "results.json").read_text()) for row, seed in CELLS}


def read_csv(path: Path) -> list[dict[str, str]]:
    with (path.parent / "out" / "ablation.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_an_interrupted_grid_goes_on(interrupted, finished):
    path, written = interrupted
    out = path.parent / "out"
    assert "2 rows x 2 seeds = 4 runs in" in finished[1]
    assert "1 done, 3 to do" in finished[1]
    assert "ViSA: seed 0 done, seed 1 to continue" in finished[1]
    assert "resumed from" in (out / "visa" / "seed1" / "stdout.txt").read_text()
    assert "1 done, 3 to do, about 0:0" in finished[1]
    assert "[4/4] plain queries, seed 1: done in" in finished[1]
    assert (out / "visa" / "seed0" / "results.json").stat().st_mtime_ns == written
    for row, seed in CELLS:
        record = json.loads((out / row / f"seed{seed}" / "ablation_run.json").read_text())
        assert (record["seed"], record["finished"]) == (seed, True)
        assert record["overrides"] == ([] if row == "visa" else ["MODEL.VISA.ETGM", "False"])
        assert (out / row / f"seed{seed}" / "eval" / "results.json").exists()


def test_the_table_by_hand(finished):
    path, printed = finished
    results, rows = results_of(path), read_csv(path)
    assert [row["row"] for row in rows] == ["ViSA", "plain queries"]
    assert [(row["seeds"], row["views"]) for row in rows] == [("2", "given")] * 2
    for row, name in zip(rows, ("visa", "plain-queries"), strict=True):
        for protocol in ("ALL", "A2G"):
            for number in ("Rank-1", "mAP"):
                values = [results[name, seed]["CARGO"][protocol][number] for seed in (0, 1)]
                assert float(row[f"CARGO/{protocol} {number} mean"]) == pytest.approx(mean(values), abs=1e-4)
                assert float(row[f"CARGO/{protocol} {number} spread"]) == pytest.approx(stdev(values), abs=1e-4)
                assert f"{mean(values):.2f} ± {stdev(values):.2f}" in printed
    text = (path.parent / "out" / "ablation.md").read_text()
    assert text in printed
    assert Image.open(path.parent / "out" / "ablation.png").width > 500
    assert "CARGO/A2G mAP" in text.splitlines()[0]
    assert "paired bootstrap over query identities" in text


def test_other_columns_of_what_was_evaluated_need_no_model(finished, tmp_path, fastreid_command):
    path, _ = finished
    shutil.copytree(path.parent, tmp_path / "copy")
    copy = write_grid(tmp_path / "copy", protocols=["A2G"], metrics=["mINP"])
    for weights in (tmp_path / "copy").rglob("*.pth"):
        weights.unlink()
    outcome = fastreid_command("ablate", copy, "--table-only")
    assert outcome.code == 0, outcome.err
    assert "CARGO/A2G mINP" in outcome.out
    shutil.rmtree(tmp_path / "copy" / "out" / "visa" / "seed1")
    assert "not done: ViSA, seed 1" in fastreid_command("ablate", copy, "--table-only").out
    write_grid(tmp_path / "copy", protocols=[])
    assert "CARGO/ALL mAP" in fastreid_command("ablate", copy, "--table-only").out


def test_a_column_that_was_not_evaluated_costs_an_evaluation(finished, tmp_path, fastreid_command):
    path, _ = finished
    shutil.copytree(path.parent, tmp_path / "copy")
    copy = write_grid(tmp_path / "copy", protocols=["G2A"], rows={"ViSA": {}}, seeds=[0])
    trained = (tmp_path / "copy" / "out" / "visa" / "seed0" / "results.json").stat().st_mtime_ns
    assert_one_line(fastreid_command("ablate", copy, "--table-only"), "no run is done in")
    outcome = fastreid_command("ablate", copy)
    assert outcome.code == 0, outcome.err
    assert "ViSA: seed 0 to evaluate" in outcome.out
    assert "CARGO/G2A mAP" in outcome.out
    assert (tmp_path / "copy" / "out" / "visa" / "seed0" / "results.json").stat().st_mtime_ns == trained


@pytest.mark.both_hosts
def test_a_grid_of_mmengine(interrupted, tmp_path, fastreid_command):
    """Rows of a configuration for mmengine, and a row of fast-reid beside them."""
    data = interrupted[0].parent / "data"
    write_py(tmp_path / "tiny.py", data)
    write_config(tmp_path, data)
    short = {"config": "tiny.yml", "SOLVER.MAX_EPOCH": 1}
    rows = {"VDT": {}, "AdamW": {"optim_wrapper.optimizer.type": "AdamW"}, "ViSA": short}
    ids = {"model.num_ids": 4}
    rows = {name: row if "config" in row else row | ids for name, row in rows.items()}
    grid = write_grid(tmp_path, config="tiny.py", seeds=[3], protocols=["A2G"], rows=rows)
    outcome = fastreid_command("ablate", grid)
    assert outcome.code == 0, outcome.err
    assert "[3/3] ViSA, seed 3: done in" in outcome.out
    assert json.loads((tmp_path / "out" / "vdt" / "seed3" / "run_card.json").read_text())["seed"] == 3
    assert [row["row"] for row in read_csv(grid)] == list(rows)
    for name in ("vdt", "adamw", "visa"):
        results = json.loads((tmp_path / "out" / name / "seed3" / "eval" / "results.json").read_text())
        assert f"{results['CARGO']['A2G']['mAP']:.2f}" in outcome.out
    assert "3 done, 0 to do" in fastreid_command("ablate", grid).out

    for wrong, words in (
        ({"optim_wrapper.optimizer.lrr": 1}, ["row 'a'", "did you mean lr?"]),
        ({"work_dir": "elsewhere"}, ["row 'a' sets work_dir, which comes from output of the file"]),
        ({"test_dataloader": None}, ["row 'a'", "no test_dataloader"]),
    ):
        file = write_grid(tmp_path, "wrong.yml", config="tiny.py", rows={"a": wrong})
        assert_one_line(fastreid_command("ablate", file), "wrong.yml", *words)
    rows = {"VDT": {"optim_wrapper.optimizer.lr": 0.5, **ids}}
    changed = write_grid(tmp_path, config="tiny.py", seeds=[3], rows=rows)
    assert_one_line(
        fastreid_command("ablate", changed), "was made with optim_wrapper.optimizer.lr 0.05", "asks for 0.5"
    )


@pytest.mark.parametrize("verb", ["train", "eval"])
def test_what_the_grid_may_trust_its_runs_may(grid_file, verb):
    first = plan(grid_file, read_grid(grid_file)).runs[0]
    assert OPTION not in first.command(verb)
    trust(True)
    try:
        options = first.command(verb)
    finally:
        trust(False)
    assert options.index(OPTION) < options.index("--")


def test_changed_overrides_are_refused(finished, tmp_path, fastreid_command):
    path, _ = finished
    before = {file: file.stat().st_mtime_ns for file in path.parent.rglob("*") if file.is_file()}
    write_config(tmp_path, path.parent / "data")
    rows = {"ViSA": {"MODEL.VISA.TOKENS": 3}}
    changed = write_grid(tmp_path, rows=rows, output=str(path.parent / "out"))
    outcome = fastreid_command("ablate", changed)
    assert_one_line(outcome, "visa/seed0 was made with MODEL.VISA.TOKENS 2, row 'ViSA' asks for 3", "--output")
    assert before == {file: file.stat().st_mtime_ns for file in path.parent.rglob("*") if file.is_file()}


def test_a_failing_run_stops_the_grid_and_what_is_done_stays(finished, tmp_path, fastreid_command):
    path, _ = finished
    shutil.copytree(path.parent, tmp_path / "copy")
    rows = {"ViSA": {}, "frozen": {"SOLVER.BASE_LR": 0.0}, "plain queries": {"MODEL.VISA.ETGM": False}}
    copy = write_grid(tmp_path / "copy", rows=rows)
    outcome = fastreid_command("ablate", copy)
    assert_one_line(outcome, "frozen, seed 0: train failed with code 2", "the learning rate is 0", "stdout.txt")
    assert "4 done, 2 to do" in outcome.out
    assert not (tmp_path / "copy" / "out" / "frozen" / "seed1").exists()
    table = fastreid_command("ablate", copy, "--table-only").out
    assert "frozen, seed 0; frozen, seed 1" in table
    assert "plain queries" in table


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": [1]}, ["grid.yml: key 'seed' unknown (did you mean seeds?)"]),
        ({"seeds": [0, 1, 0]}, ["seeds names 0 twice"]),
        ({"seeds": [True]}, ["whole numbers from 0", "[True]"]),
        ({"rows": {}}, ["rows takes"]),
        ({"rows": {"a": 3}}, ["row 'a'", "got 3"]),
        ({"rows": {"a": {"MODEL.VISA.ETMG": False}}}, ["row 'a'", "did you mean MODEL.VISA.ETGM?"]),
        ({"rows": {"a": {"MODEL.VISA.TOKENS": "many"}}}, ["row 'a'", "takes a whole number", "'many'"]),
        ({"rows": {"a": {"SOLVER.MAX_EPOCH": 0}}}, ["row 'a'", "SOLVER.MAX_EPOCH is 0"]),
        ({"rows": {"a": {"SEED": 3}}}, ["row 'a' sets SEED", "seeds of the file"]),
        ({"rows": {"a": {"config": "tny.yml"}}}, ["row 'a'", "tny.yml does not exist (did you mean tiny.yml?)"]),
        ({"rows": {"a b": {}, "a-b": {}}}, ["rows 'a b' and 'a-b' would share a folder"]),
        ({"config": None}, ["config takes one path, got None"]),
        ({"protocols": ["A2B"]}, ["A2B", "did you mean"]),
        ({"metrics": ["rank1"]}, ["metric 'rank1' unknown (did you mean Rank-1?)"]),
        ({"rows": {"a": {}, "b": {"DATASETS.TESTS": ["Market1501"]}}}, ["one test set", "CARGO (a), Market1501 (b)"]),
    ],
)
def test_what_is_wrong_with_the_file_is_one_line(grid_file, fastreid_command, changes, words):
    assert_one_line(fastreid_command("ablate", write_grid(grid_file.parent, **changes)), *words)
    assert not (grid_file.parent / "out").exists()


def test_a_row_that_stands_twice_is_refused(grid_file, fastreid_command):
    grid_file.write_text(grid_file.read_text().replace("plain queries", "ViSA"))
    assert_one_line(fastreid_command("ablate", grid_file), "key 'ViSA' is there twice", "line ")


def test_nothing_done_and_foreign_runs_are_told(grid_file, fastreid_command):
    assert_one_line(fastreid_command("ablate", grid_file, "--table-only"), "no run is done in")
    folder = grid_file.parent / "out" / "visa" / "seed0"
    folder.mkdir(parents=True)
    (folder / "last_checkpoint").write_text("model_0001.pth")
    assert_one_line(fastreid_command("ablate", grid_file), "visa/seed0 holds a run that 'fastreid ablate' did not make")


def test_a_dry_run_makes_nothing(grid_file, fastreid_command):
    outcome = fastreid_command("ablate", grid_file, "--dry-run", "--output", grid_file.parent / "other")
    assert outcome.code == 0, outcome.err
    assert "0 done, 4 to do" in outcome.out
    assert not (grid_file.parent / "other").exists()


def test_a_run_with_a_checkpoint_is_continued(grid_file):
    first = plan(grid_file, read_grid(grid_file)).runs[0]
    assert first.state() == "to train"
    first.folder.mkdir(parents=True)
    first.keep(finished=False)
    (first.folder / "last_checkpoint").write_text("model_0000.pth")
    (first.folder / "results.json").write_text("{}")  # of an earlier epoch
    assert first.state() == "to continue"
    first.keep(finished=True)
    assert first.state() == "to evaluate"


def test_the_leaderboard_trains_every_method_on_one_budget():
    path = ROOT / "projects" / "Leaderboard" / "images.yml"
    grid = plan(path, read_grid(path), "nowhere")
    assert len(grid.runs) == 7 * 3
    for key in ("SOLVER.MAX_EPOCH", "SOLVER.IMS_PER_BATCH", "SOLVER.OPT", "SOLVER.BASE_LR", "INPUT.SIZE_TRAIN"):
        assert len({str(attrgetter(key)(load_config(each.config, each.overrides))) for each in grid.runs}) == 1, key


def test_the_recipe_of_this_project_is_sound():
    path = ROOT / "projects" / "ViSA" / "ablation.yml"
    grid = plan(path, read_grid(path), "nowhere")
    assert len(grid.runs) == 8 * 3
    settings = [json.dumps(each.settings, sort_keys=True) for each in grid.runs]
    assert len(set(settings)) == len(settings)
    assert grid.protocols == ("CARGO/ALL", "CARGO/A2G", "CARGO/G2A", "CARGO/AG-both", "CARGO/AG-cross")
