"""A method in a file of its own is trained, tested and listed with nothing else of the host knowing of it."""

import json
import re

import pytest
from conftest import assert_one_line
from small_mmengine_config import write_config

from agreid_plugin.hosts.mmengine.registry import MODELS

METHOD = '''
from torch import nn

from agreid_plugin.hosts.mmengine.config.arguments import check_arguments
from agreid_plugin.hosts.mmengine.models.backbones import HostBackbone
from agreid_plugin.hosts.mmengine.models.base import ReIDModel
from agreid_plugin.hosts.mmengine.models.build import build
from agreid_plugin.hosts.mmengine.registry import MODELS
from agreid_plugin.losses import identity_objectives
from agreid_plugin.nn.bnneck import BNNeck
from agreid_plugin.nn.expert_usage import RoutingRecord
from agreid_plugin.types import ReIDMethod


class Foo(ReIDMethod):
    training_inputs = frozenset({"images", "pids", "views"})

    def __init__(self, backbone, identities, weight: float = 1.0):
        super().__init__()
        self.backbone, self.head, self.weight = backbone, BNNeck(backbone.out_channels, identities), weight
        self.objectives = identity_objectives()

    def forward(self, batch):
        return self.head(self.backbone(batch.images)[-1], batch.pids)

    def losses(self, outputs, batch):
        return {f"loss_{name}": self.weight * loss(outputs, batch) for name, loss in self.objectives.items()}

    def embed(self, outputs):
        return outputs.embedding


class Gate(nn.Linear):
    def forward(self, pixels):
        return super().forward(pixels).softmax(1)

    def record_routing(self, arguments, outputs):
        return RoutingRecord(outputs, top_k=2, groups=(range(2),))


@MODELS.register_module()
@check_arguments()
class FooBackbone(HostBackbone):
    """Two layers, mixed."""

    def __init__(self, width: int = 8):
        super().__init__(nn.ModuleList([nn.Linear(3, width), nn.Linear(3, width)]), width)
        self.gate = Gate(3, 2)

    def forward(self, images):
        pixels = images.mean(dim=(2, 3))
        weights = self.gate(pixels)
        return (sum(weights[:, [place]] * layer(pixels) for place, layer in enumerate(self.core)),)


@MODELS.register_module(name="Foo")
@check_arguments(Foo, given=("backbone", "identities"))
class FooModel(ReIDModel):
    """Foo: a method of today."""

    def __init__(self, num_ids: int, backbone: dict, data_preprocessor=None, init_cfg=None, **options):
        super().__init__(Foo(build("backbone", backbone), num_ids, **options), data_preprocessor, init_cfg)

    def accuracies(self, outputs, batch):
        return {}
'''
CHANGES = """
custom_imports = dict(imports=["agreid_plugin", "foo_method"])
model = dict(type="agreid_plugin.Foo", num_ids=4, backbone=dict(type="agreid_plugin.FooBackbone"), weight=0.5)
optim_wrapper["constructor"] = "agreid_plugin.OptimWrapperConstructor"
optim_wrapper["paramwise_cfg"] = {"lr_mult": {"method.head": 2.0}}
custom_hooks.append(dict(type="agreid_plugin.ExpertUsage"))
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, agsynth):
    """A configuration of a method that stands in another file than ours."""
    folder = tmp_path_factory.mktemp("foo")
    (folder / "foo_method.py").write_text(METHOD)
    known = dict(MODELS.module_dict)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield write_config(folder / "foo.py", agsynth, CHANGES)
    MODELS._module_dict.clear()
    MODELS._module_dict.update(known)


def test_a_method_needs_its_own_file_alone(fastreid_command, recipe, tmp_path):
    trained = fastreid_command("train", "--config", recipe, "--output", tmp_path / "run")
    assert trained.code == 0, trained.err
    assert "parameters in 2 groups, 1 frozen" in trained.out
    assert "experts of epoch 1, least and most used in percent: backbone.gate" in trained.out
    setup = json.loads((tmp_path / "run" / "run_card.json").read_text())["setup"]
    assert setup["architecture"] == "Foo"

    tested = fastreid_command("eval", "--config", recipe, "--weights", tmp_path / "run" / "epoch_1.pth")
    assert tested.code == 0, tested.err
    assert "CARGO/A2G" in tested.out

    listed = fastreid_command("list", "--host", "mmengine").out
    architectures, backbones = (
        re.search(rf"^{kind}:\n((?: .*\n)+)", listed, re.M)[1] for kind in ("architectures", "backbones")
    )
    assert re.search(r"agreid_plugin\.Foo +foo_method +Foo: a method of today\.", architectures)
    assert re.search(r"agreid_plugin\.FooBackbone +foo_method +Two layers, mixed\.", backbones)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("model.wieght", "1.0", "did you mean weight?"),
        ("model.weight", "x", "weight='x' should be a number"),
        ("model.num_ids", "5", "model.num_ids is 5, but CARGO has 4 identities"),
    ],
)
def test_its_arguments_are_checked_as_everybodys(fastreid_command, recipe, tmp_path, key, value, told):
    assert_one_line(fastreid_command("train", "--config", recipe, "--output", tmp_path, key, value), told)
