"""Our recipes in mmengine's and mmpretrain's own tools: the same numbers as by the command."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mm_tools
import pytest
import small_mmengine
import torch
from conftest import ROOT, _same_scope, slow
from mmengine.analysis import get_model_complexity_info
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.runner import Runner
from mmpretrain import FeatureExtractor, ImageRetrievalInferencer, get_model, inference_model, list_models
from mmpretrain.models import AverageClsScoreTTA
from small_mmengine_config import write_config

from agreid_plugin import tool
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.mmengine.config.loading import load_config
from agreid_plugin.hosts.mmengine.engine.features import FlipTTA
from agreid_plugin.hosts.mmengine.model_index import list_recipes
from agreid_plugin.synth import make_agsynth

SAMPLED = {"train_dataloader.sampler.batch_size": 16}
RECIPES = [
    ("ViSA", {**SAMPLED, "model.backbone.vit.depth": 2}),
    *slow(("VDT", SAMPLED), ("VIF-AGReID", SAMPLED), ("SVPR-ReID", SAMPLED), ("TAG-CLIP", {})),
]

LAYOUTS = {"SVPR-ReID": "cp2108", "TAG-CLIP": "tag-pedes"}


def small(root: Path, **more: Any) -> dict:
    """What makes a recipe on AG-Synth one of seconds."""
    found = {"train_cfg.max_epochs": 1, "train_cfg.val_interval": 1, "default_hooks.checkpoint.interval": 1}
    for loader in ("train_dataloader", "val_dataloader", "test_dataloader"):
        found |= {f"{loader}.num_workers": 0, f"{loader}.dataset.data_root": str(root)}
        found[f"{loader}.dataset.agsynth.ids"] = 0
    return {**found, "train_dataloader.batch_size": 16, "model.num_ids": 4, **more}


@pytest.mark.parametrize(("project", "more"), RECIPES)
def test_the_tools_and_the_command_give_the_same_results(fastreid_command, tmp_path, agsynth, project, more):
    layout = LAYOUTS.get(project)
    root = tmp_path / "data" if layout else agsynth
    if layout:
        make_agsynth(root, ids=8, images_per_id=12, size=(32, 16), layout=layout, workers=1, progress=False)
    recipe, options = ROOT / "projects" / project / "agsynth.py", small(root, **more)
    overrides = [text for pair in options.items() for text in pair]
    outcome = fastreid_command("train", "--config", recipe, "--output", tmp_path / "ours", *overrides)
    assert outcome.code == 0, outcome.err
    with _same_scope():
        mm_tools.train(recipe, work_dir=str(tmp_path / "theirs"), options=options)
    assert numbers(tmp_path / "theirs") == numbers(tmp_path / "ours")

    weights = tmp_path / "ours" / "epoch_1.pth"
    evaluate = ["eval", "--config", recipe, "--weights", weights, "--output", tmp_path / "eval", *overrides]
    outcome = fastreid_command(*evaluate)
    assert outcome.code == 0, outcome.err
    with _same_scope():
        mm_tools.test(recipe, weights, work_dir=str(tmp_path / "test"), options=options)
    assert numbers(tmp_path / "test") == numbers(tmp_path / "eval")


def numbers(folder: Path) -> dict:
    found = json.loads((folder / "results.json").read_text())
    assert found
    return found


# Test-time augmentation ------------------------------------------------------------------------------------------


def test_features_of_mirror_images_are_averaged():
    model = small_mmengine.model("VIF").eval()
    data = small_mmengine.loaded(small_mmengine.batch(), training=False)
    mirrored = {**data, "inputs": [image.flip(-1) for image in data["inputs"]]}
    wanted = [small_mmengine.run(model, each, "tensor") for each in (data, mirrored)]
    found = torch.stack([sample.feature for sample in FlipTTA(model).test_step(data)])
    assert not torch.allclose(*wanted)
    torch.testing.assert_close(found, sum(wanted) / 2)


def test_the_tool_tests_with_mirror_images_only_by_ours(tmp_path, agsynth):
    more = """
tta_pipeline = images
tta_model = dict(type="agreid_plugin.FlipTTA")
"""
    path = write_config(tmp_path / "tiny.py", agsynth, more)
    model = get_model(str(path))
    torch.save({"state_dict": model.state_dict(), "meta": {}}, tmp_path / "some.pth")
    found = []
    for tta in (True, False):
        with _same_scope():
            folder = str(tmp_path / f"work_{tta}")
            found.append(mm_tools.test(path, tmp_path / "some.pth", work_dir=folder, tta=tta))
    assert found[0].keys() == found[1].keys()
    assert found[0] != found[1]

    classes = write_config(
        tmp_path / "classes.py", agsynth, more.replace("agreid_plugin.Flip", "mmpretrain.AverageClsScore")
    )
    with (
        _same_scope(),
        pytest.raises(InputError, match=f"{AverageClsScoreTTA.__name__} merges no features: set tta_mod"),
    ):
        mm_tools.test(classes, tmp_path / "some.pth", work_dir=str(tmp_path / "third"), tta=True)


# Inferencers and the model index ---------------------------------------------------------------------------------


def test_inferencers_of_mmpretrain_take_a_recipe(tiny_py, agsynth):
    paths = [str(path) for path in sorted((agsynth / "CARGO" / "query").rglob("*.jpg"))[:4]]
    torch.manual_seed(0)
    extractor = FeatureExtractor(str(tiny_py), pretrained=False)
    found = torch.stack(extractor(paths, batch_size=2))
    model, cfg = extractor.model, Config.fromfile(tiny_py)
    pipeline = Runner.build_dataloader(cfg.test_dataloader).dataset.pipeline
    images = torch.stack([pipeline({"img_path": path})["inputs"] for path in paths])
    wanted = model.extract_feat(model.data_preprocessor({"inputs": images})["inputs"])
    torch.testing.assert_close(found, wanted, atol=0.05, rtol=0.05)  # mmcv's decoder is another
    assert not torch.allclose(found, found.flip(0), atol=0.05)

    matches = ImageRetrievalInferencer(model, prototype=paths)(paths, topk=2)
    assert [best["sample"]["img_path"] for best, _ in matches] == paths
    assert all(best["match_score"] > second["match_score"] for best, second in matches)


def test_prototypes_are_kept_in_a_file(tiny_py, agsynth, tmp_path):
    paths = [str(path) for path in sorted((agsynth / "CARGO" / "query").rglob("*.jpg"))[:3]]
    cache = str(tmp_path / "prototypes.pth")
    for _ in range(2):
        torch.manual_seed(0)
        inferencer = ImageRetrievalInferencer(str(tiny_py), prototype=paths, prototype_cache=cache, pretrained=False)
        assert inferencer.model.prototype_vecs.shape == (3, 16)
    model = inferencer.model
    model.prototype = None
    with pytest.raises(InputError, match="prototype=None should be a data loader, features, or a file"):
        model.prepare_prototype()


def test_features_of_images_alone_go_by_predicted_views(capfd):
    given, predicted = (small_mmengine.model("ViSA", view=view).eval() for view in ("given", "predicted"))
    images = small_mmengine.batch().images
    wanted = predicted(images, small_mmengine.loaded(small_mmengine.batch(), training=False)["data_samples"])
    torch.testing.assert_close(given.extract_feat(images), wanted)
    with pytest.raises(InputError, match="needs the view of every image"):
        given(images, mode="predict")


def test_the_cost_of_a_model_is_counted_from_an_image_alone():
    model = small_mmengine.model("ViSA").eval()
    counted = get_model_complexity_info(model, (3, 32, 16))
    assert counted["params"] == sum(each.numel() for each in model.parameters())
    assert counted["flops"] > 0


def test_recipes_are_found_by_name():
    names = dict(list_recipes())
    assert set(names) <= set(list_models())
    assert list_models("*visa*") == ["visa_agsynth", "visa_cargo"]
    assert {path.name for path in names.values()} == {"agsynth.py", "cargo.py", "cp2108.py", "tag_pedes.py"}
    assert type(get_model("visa_agsynth")).__name__ == "ViSA"


def test_one_line_finds_a_person_with_a_recipe_by_name(agsynth):
    paths = [str(path) for path in sorted((agsynth / "CARGO" / "query").rglob("*.jpg"))[:3]]
    (best,) = inference_model("vdt_agsynth", paths[1], prototype=paths)
    assert best["sample"]["img_path"] == paths[1]


# Scripts ---------------------------------------------------------------------------------------------------------


class Idle(BaseModel):
    """A model that learns nothing, as that of `vis_scheduler.py`."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, *_: Any, **__: Any) -> None:
        pass

    def train_step(self, *_: Any, **__: Any) -> None:
        pass


class Nothing(list):
    """Its loader."""

    dataset = SimpleNamespace(metainfo=None)


def test_a_schedule_is_drawn_without_data_and_without_a_run_card(tmp_path):
    cfg = Config.fromfile(ROOT / "projects" / "ViSA" / "agsynth.py")
    parts = {key: cfg[key] for key in ("optim_wrapper", "param_scheduler", "custom_hooks", "default_scope")}
    loader = {"train_dataloader": Nothing(range(3)), "train_cfg": {"by_epoch": True, "max_epochs": 2}}
    runner = Runner(model=Idle(), work_dir=str(tmp_path), **loader, **parts, default_hooks={"checkpoint": None})
    runner.train()
    assert runner.iter == 6
    assert not (tmp_path / "run_card.json").exists()


def test_scripts_are_run_with_the_working_folder_and_one_line_for_bad_input(tmp_path, monkeypatch, capfd):
    script = tmp_path / "there" / "script.py"
    script.parent.mkdir()
    script.write_text("import sys, beside\nfrom agreid_plugin.errors import InputError\nprint(sys.argv[1:])\n")
    (script.parent / "beside.py").write_text("")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["tool.py", str(script), "--key", "value"])
    assert tool.main() == 0
    assert capfd.readouterr().out == "['--key', 'value']\n"

    script.write_text(script.read_text() + "raise InputError('key is wrong')\n")
    monkeypatch.setattr(sys, "argv", ["tool.py", str(script)])
    assert tool.main() == 2
    assert capfd.readouterr().err == f"{script}: error: key is wrong\n"
    monkeypatch.setattr(sys, "argv", ["tool.py", "nowhere.py"])
    assert tool.main() == 2


def test_parts_of_ones_own_lie_in_the_working_folder(tmp_path, monkeypatch, tiny_py):
    (tmp_path / "part_of_mine.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", str(tmp_path))])
    tiny_py.write_text(tiny_py.read_text() + 'custom_imports["imports"].append("part_of_mine")\n')
    load_config(tiny_py)
    assert sys.modules.pop("part_of_mine").__file__ == str(tmp_path / "part_of_mine.py")
