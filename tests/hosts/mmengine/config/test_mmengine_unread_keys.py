"""Names and entries of a `.py` configuration that nothing reads: refused in one line, or said."""

import pytest
from conftest import ROOT, assert_one_line
from mmengine.config import Config
from small_mmengine_config import write_config

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.config.loading import KEYS, load_config
from agreid_plugin.hosts.mmengine.config.unread_keys import READ_ELSEWHERE, find_unused_names, record_reads

HOOK = """
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module(force=True)
class ReadsItsName(Hook):
    def before_train(self, runner):
        print("note:", runner.cfg.note, runner.cfg["size"], runner.cfg.get("other"))
"""


@pytest.fixture
def train(fastreid_command, tmp_path):
    return lambda path, *overrides: fastreid_command(
        "train", "--config", path, "--output", tmp_path / "run", *overrides
    )


def test_an_override_of_a_variable_is_refused(train, tiny_py):
    outcome = train(tiny_py, "loader.num_workers", 1)
    assert_one_line(outcome, "command line: loader.num_workers has no effect", "variable loader", "train_dataloader")


def test_a_variable_of_the_base_that_is_set_anew_is_refused(train, tiny_py):
    child = tiny_py.with_name("child.py")
    child.write_text('_base_ = ["tiny.py"]\nimages = [dict(type="agreid_plugin.ReadImage")]\n')
    outcome = train(child)
    assert_one_line(outcome, f"{child}: images has no effect", "train_dataloader.dataset.pipeline, as well")
    child.write_text(
        child.read_text() + "train_dataloader = dict(dataset=dict(pipeline=[*images, *_base_.images[1:]]))\n"
    )
    assert train(child).code == 0


def test_other_names_are_said_and_those_that_a_hook_reads_are_not(train, tiny_py, monkeypatch):
    (tiny_py.parent / "reads_its_name.py").write_text(HOOK)
    monkeypatch.syspath_prepend(tiny_py.parent)
    with tiny_py.open("a") as file:
        file.write('custom_imports["imports"].append("reads_its_name")\nnote, other = "n", 3\nlr_config = {}\n')
        file.write('custom_hooks.append(dict(type="ReadsItsName"))\nnote = "read"\n')
    outcome = train(tiny_py, "note", "changed")
    assert outcome.code == 0, outcome.err
    assert "note: changed (32, 16) 3" in outcome.out
    assert f"names at the top of {tiny_py} that no part reads: lr_config" in outcome.out + outcome.err


def test_a_file_that_a_run_has_written_down_trains_again(train, tiny_py, tmp_path):
    Config.fromfile(tiny_py).dump(tmp_path / "dumped.py")
    assert train(tmp_path / "dumped.py").code == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("env_cfg = dict(cudnn_benchmrk=True)", "env_cfg 'cudnn_benchmrk' unknown (did you mean cudnn_benchmark?)"),
        ("env_cfg = dict(dist_cfg=dict(timeot=3))", "env_cfg.dist_cfg 'timeot' unknown (did you mean timeout?)"),
        ("auto_scale_lr = dict(base_batch=3)", "auto_scale_lr 'base_batch' unknown (did you mean base_batch_size?)"),
        ("default_hooks = dict(chekpoint=None)", "'chekpoint' unknown (did you mean checkpoint?)"),
        ("test_dataloader['num_worker'] = 1", "test_dataloader 'num_worker' unknown (did you mean num_workers?)"),
        ("optim_wrapper['clip_grad'] = dict(max_nrm=1.0)", "'max_nrm' unknown (did you mean max_norm?)"),
        ("optim_wrapper['clip_grad'] = dict(type='value', max_norm=1.0)", "clip_grad 'max_norm' unknown"),
        ("optim_wrapper['paramwise_cfg'] = dict(custom_keys=dict(head=0.1))", "custom_keys.head=0.1 should be a dict"),
        ("optim_wrapper['paramwise_cfg'] = dict(custom_keys=dict(head=dict(lr_mul=2)))", "(did you mean lr_mult?)"),
    ],
)
def test_entries_that_mmengine_passes_over_are_refused(tmp_path, agsynth, more, words):
    constructor = "optim_wrapper['constructor'] = 'DefaultOptimWrapperConstructor'\n"
    with pytest.raises(InputError) as error:
        load_config(write_config(tmp_path / "tiny.py", agsynth, f"\n{constructor}{more}\n"))
    assert words in str(error.value)


def test_settings_for_parameters_that_the_model_has_not_are_said(train, tiny_py):
    with tiny_py.open("a") as file:
        file.write("optim_wrapper['constructor'] = 'DefaultOptimWrapperConstructor'\n")
        file.write("optim_wrapper['paramwise_cfg'] = dict(custom_keys={'backbon.': dict(lr_mult=2), 'head': {}})\n")
    outcome = train(tiny_py)
    assert outcome.code == 0, outcome.err
    said = outcome.out + outcome.err
    assert "no parameter's name has 'backbon.'" in said
    assert "no parameter's name has 'head'" not in said


def test_hooks_of_mmengine_may_be_left_out(train, tiny_py):
    with tiny_py.open("a") as file:
        file.write("default_hooks = dict(checkpoint=None)\n")
    assert train(tiny_py).code == 0
    assert not list(tiny_py.parent.glob("run/*.pth"))


def test_a_recording_configuration_is_the_same_one():
    cfg = record_reads(Config({"model": {"type": "A"}, "note": 3}))
    assert (cfg.note, cfg["model"].type, cfg.get("nothing", 4)) == (3, "A", 4)
    assert cfg.reads == {"note", "model", "nothing"}
    assert "note = 3" in cfg.pretty_text


@pytest.mark.parametrize(
    "path", sorted((ROOT / "projects").glob("*/*.py")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_no_name_of_a_recipe_is_unread(path):
    if path.parent.name != "Example":
        assert set(find_unused_names(path)) <= {*KEYS, *READ_ELSEWHERE}
