"""Values of the wrong kind, and keys that nothing reads, in configurations of mmengine's: one line, before a run."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, Union

import mmpretrain
import pytest
import torch
from conftest import assert_one_line
from mmengine.config import Config
from mmengine.runner import Runner

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.config.arguments import find_mismatch, require_kinds
from agreid_plugin.hosts.mmengine.config.checks import PACKAGE, BuildErrors, check_config
from agreid_plugin.hosts.mmengine.config.loading import KEYS, load_config
from agreid_plugin.hosts.mmengine.data.batches import ReIDPreprocessor
from agreid_plugin.hosts.mmengine.engine.checkpoints import CheckpointHook


class Shaped(Protocol):
    """A hint that no value can be held against."""


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (3, float),
        (None, int | None),
        ((1, 2), Sequence[int]),
        ([1, 2, 3], tuple[int, ...]),
        (1, bool),
        ({"a": {"b": 1}}, Mapping[str, Mapping[str, Any]]),
        ("given", Literal["given", "predicted"]),
        (torch.ones(1), int),  # made by somebody: taken on trust
        ([{"type": "A"}], list[dict | Callable]),
        ("x", Union[Any, None]),  # noqa: UP007 - as Python 3.10 writes it
        ("x", Shaped | None),
    ],
)
def test_what_fits(value, hint):
    assert find_mismatch("here", value, hint) is None


@pytest.mark.parametrize(
    ("value", "hint", "told"),
    [
        ("x", float, "here='x' should be a number"),
        (True, float, "here=True should be a number"),
        (2.0, int, "here=2.0 should be a whole number"),
        ("A2G", Sequence[str], "here='A2G' should be a list"),
        ([1, "x"], Sequence[int] | None, "here.1='x' should be a whole number"),
        ({"cls": 3}, Mapping[str, Mapping[str, Any]], "here.cls=3 should be a dictionary"),
        (3, dict | list | None, "here=3 should be a dictionary or a list or None"),
        ("both", Literal["given", "predicted"], "here='both' should be 'given' or 'predicted'"),
    ],
)
def test_what_does_not_fit(value, hint, told):
    assert str(find_mismatch("here", value, hint)) == told


def test_a_default_fits_whatever_its_hint_says():
    def function(count: int = None, name: str = "x"):  # noqa: RUF013 - as other toolboxes write it
        pass

    require_kinds("function", function, {"count": None, "unheard_of": 3})
    with pytest.raises(InputError, match="function: count='x' should be a whole number"):
        require_kinds("function", function, {"count": "x"})


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model", "3", "model=3 should be a dictionary"),
        ("model", "None", "has no model: there is nothing to run"),
        ("model.objectives", "{'cls': 3}", "model: objectives.cls=3 should be a dictionary"),
        (
            "model.data_preprocessor",
            "{'type': 'ReIDPreprocessor', 'std': [0, 0, 0]}",
            "std=[0, 0, 0] should be above 0",
        ),
        ("train_dataloader", "3", "train_dataloader=3 should be a dictionary or None"),
        ("train_dataloader.batch_size", "0", "train_dataloader.batch_size=0 should be a whole number, 1 or more"),
        ("train_dataloader.batch_size", "12", "batch_size is 12, but its sampler plans batches of 8"),
        ("train_dataloader.num_workers", "x", "train_dataloader.num_workers='x' should be a whole number"),
        ("train_dataloader.sampler", "3", "train_dataloader.sampler=3 should be a dictionary with a type"),
        ("train_dataloader.sampler.per_identity", "x", "per_identity='x' should be a whole number"),
        ("train_dataloader.collate_fn.type", "nobody", "train_dataloader.collate_fn.type 'nobody' unknown; known: "),
        ("train_dataloader.dataset.name", "3", "train_dataloader.dataset: name=3 should be text or a list"),
        ("train_dataloader.dataset.indices", "x", "ReIDDataset: indices='x' should be a whole number or a list"),
        ("train_dataloader.dataset.pipeline", "[]", "end the pipeline with agreid_plugin.Pack"),
        ("test_evaluator.memory", "x", "test_evaluator: memory='x' should be a number"),
        ("train_cfg.max_epochs", "0", "train_cfg.max_epochs=0 should be a whole number, 1 or more"),
        ("train_cfg.max_epochs", "x", "train_cfg: max_epochs='x' should be a whole number"),
        ("train_cfg.val_interval", "0", "train_cfg.val_interval=0 should be a whole number, 1 or more"),
        ("optim_wrapper.optimizer", "3", "optim_wrapper.optimizer=3 should be a dictionary with a type"),
        ("optim_wrapper.optimizer.type", "SDG", "optim_wrapper.optimizer.type 'SDG' unknown (did you mean SGD?)"),
        ("optim_wrapper.optimizer.lr", "x", "optim_wrapper.optimizer: lr='x' should be a number"),
        ("optim_wrapper.optimizer.lr", "-1", "cannot be built: ValueError in sgd.py: Invalid learning rate: -1"),
        ("optim_wrapper.clip_grad", "3", "optim_wrapper: clip_grad=3 should be a dictionary or None"),
        ("optim_wrapper.paramwise_cfg", "{'norm_decay': 0}", "'norm_decay' unknown (did you mean norm_decay_mult?)"),
        ("param_scheduler", "{'type': 'Nothing'}", "param_scheduler.type 'Nothing' unknown"),
        ("default_hooks", "{'checkpoint': 3}", "default_hooks.checkpoint=3 should be a dictionary"),
        (
            "custom_hooks",
            "[{'type': 'EMAHook', 'momentum': 5}]",
            "cannot be built: AssertionError in averaged_model.py: momentum must be",
        ),
        (
            "custom_hooks",
            "[{'type': 'EMAHook', 'momentum': 'x'}]",
            "cannot be built: TypeError in averaged_model.py: '<' not supported between instances of 'float' and 'str'",
        ),
        (
            "custom_hooks",
            "[{'type': 'EMAHook', 'momentun': 0.5}]",
            "cannot be built: TypeError in build_functions.py: ExponentialMovingAverage.__init__() got an unexpected",
        ),
        (
            "custom_hooks",
            "[{'type': 'EMAHook', 'begin_epoch': 9}]",
            "cannot be built: AssertionError in ema_hook.py: self.begin_epoch should be smaller",
        ),
        ("custom_hooks", "[{'type': 'RankLists', 'top': 'x'}]", "custom_hooks.0: top='x' should be a whole number"),
        ("custom_imports", "{'imports': []}", "custom_imports comes too late"),
        ("randomness", "3", "randomness=3 should be a dictionary"),
        ("activation_checkpointing", "3", "activation_checkpointing=3 should be a list or text or None"),
        ("activation_checkpointing", "[3]", "activation_checkpointing.0=3 should be text"),
        ("activation_checkpointing", "method.heads", "activation_checkpointing: the model has no 'method.heads'"),
        ("efficient_conv_bn_eval", "['method.head', '']", "efficient_conv_bn_eval: the model has no ''"),
        ("sync_bn", "x", "sync_bn='x' should be 'torch' or 'mmcv' or None"),
        ("env_cfg", "{'mp_cfg': 3}", "env_cfg.mp_cfg=3 should be a dictionary"),
    ],
)
def test_a_wrong_value_is_one_line(fastreid_command, tiny_py, tmp_path, key, value, words):
    outcome = fastreid_command("train", "--config", tiny_py, "--output", tmp_path / "run", key, value)
    assert_one_line(outcome, words)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"warmup_iters": "x"}, "param_scheduler: warmup_iters='x' should be a whole number"),
        ({"warmup_iters": -1}, "warmup_iters=-1 should be a whole number, 0 or more"),
        ({"convert_to_iter_based": False}, "write convert_to_iter_based=True"),
        ({"eta_min": "x"}, "param_scheduler: eta_min='x' should be a number or None"),
    ],
)
def test_a_wrong_schedule_is_one_line(fastreid_command, tiny_py, tmp_path, value, words):
    schedule = {"type": "agreid_plugin.WarmupCosineLR", "convert_to_iter_based": True, **value}
    train = ["train", "--config", tiny_py, "--output", tmp_path / "run"]
    assert_one_line(fastreid_command(*train, "param_scheduler", str(schedule)), words)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (["SGD"], ("type=['SGD'] should be a name",)),
        (3, ("type=3 should be a name",)),
        ("", ("type='' should be a name",)),
        (".", ("type='.' should be a name",)),
        ("no.such.module", (".type 'no.such.module' unknown; known: ",)),
        ("agreid_plugin.", ("type='agreid_plugin.' should be a name",)),
    ],
)
def test_a_type_that_is_none_is_one_line(fastreid_command, tiny_py, tmp_path, kind, words):
    train = ["train", "--config", tiny_py, "--output", tmp_path / "run"]
    for key in ("optim_wrapper.optimizer", "custom_hooks.0"):
        assert_one_line(fastreid_command(*train, f"{key}.type", repr(kind)), *words)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model", {"type": "mmpretrain.ImageClasifier"}, "did you mean mmpretrain.ImageClassifier?"),
        (
            "model.backbone",
            {"type": "mmpretrain.ResNet", "dept": 50},
            "argument of ResNet 'dept' unknown (did you mean",
        ),
        ("train_dataloader.dataset.pipeline.0", {"type": "agreid_plugin.ReadImag"}, "mean agreid_plugin.ReadImage?"),
        ("train_dataloader.sampler", {"type": "DefaultSampler", "shufle": True}, "did you mean shuffle?"),
        ("test_evaluator", [{"type": "DumpResults"}], "test_evaluator.0: DumpResults needs out_file_path"),
        ("default_hooks", {"logger": {"type": "LoggerHok"}}, "default_hooks.logger.type 'LoggerHok' unknown"),
        ("visualizer", {"vis_backends": [{"type": "LocalVis"}]}, "visualizer.vis_backends.0.type 'LocalVis' unknown"),
        ("train_cfg", {"type": "EpochBasedTrainLoop"}, "train_cfg: EpochBasedTrainLoop needs max_epochs"),
    ],
)
def test_every_type_of_a_configuration_is_looked_up(tiny_py, key, value, words):
    with pytest.raises(InputError) as refused:
        load_config(tiny_py, [key, str({"_delete_": True, **value} if "type" in value else value)])
    assert str(refused.value).startswith(f"{tiny_py}: {key}")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "resnet/resnet50_8xb32_in1k",
            "swin_transformer/swin-tiny_16xb64_in1k",
            "mae/mae_vit-base-p16_8xb512-amp-coslr-300e_in1k",
        ),
        *("arcface/resnet50-arcface_8xb32_inshop", "simclr/simclr_resnet50_16xb256-coslr-200e_in1k"),
        *("clip/clip_vit-base-p16_zeroshot-cls_in1k", "efficientformer/efficientformer-l1_8xb128_in1k"),
    ],
)
def test_recipes_of_mmpretrain_are_sound(name):
    folder = Path(mmpretrain.__file__).parent / ".mim" / "configs"
    check_config(Config.fromfile(folder / f"{name}.py"), KEYS)


def test_a_key_misspelt_over_a_base_that_has_it(tiny_py, tmp_path):
    child = tmp_path / "child.py"
    child.write_text(f"_base_ = [{str(tiny_py)!r}]\noptim_wraper = dict(optimizer=dict(lr=1.0))\n")
    with pytest.raises(InputError, match=r"key optim_wraper unknown \(did you mean optim_wrapper\?\)"):
        load_config(child)


def test_a_fault_of_our_own_keeps_its_traceback(tiny_py):
    class Faulty(Runner):
        def build_model(self, model):
            exec(compile("raise TypeError('a fault')", str(PACKAGE / "somewhere.py"), "exec"), {})

    with pytest.raises(TypeError, match="a fault"), BuildErrors():
        Faulty.from_cfg(load_config(tiny_py, ["work_dir", str(tiny_py.parent / "run")]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"intervall": 2}, r"argument of CheckpointHook 'intervall' unknown \(did you mean interval\?\)"),
        ({"interval": "x"}, "CheckpointHook: interval='x' should be a whole number"),
    ],
)
def test_a_checkpoint_hook_is_refused_before_it_is_to_save(arguments, words):
    with pytest.raises(InputError, match=words):
        CheckpointHook(**arguments)


def test_images_that_no_pipeline_has_packed():
    with pytest.raises(InputError, match=r"gives no `inputs`: end the pipeline with agreid_plugin.Pack"):
        ReIDPreprocessor()({"img": [1]})
