"""Snapshots of what users' files and checkpoints depend on: a change of it is seen in `tests/snapshots`.

`PYTHONPATH=tests/helpers tools/run python tests/test_snapshots.py` writes them anew where the change is meant. Watched
are configuration keys with their defaults, the names in both hosts' registries with their arguments, the options of the
command, and of every recipe the parameters of its model by name and shape, with a number that the first weights from
seed 0 come to.
"""

import argparse
import inspect
import json
import sys
from hashlib import blake2b
from pathlib import Path

import pytest
import torch
from conftest import recipes
from fastreid.config import get_cfg
from fastreid.modeling import build_model
from mmengine.registry import MODELS, init_default_scope
from recipe_pairs import IDENTITIES, PROJECTS, RECIPES, both_forms, name_of, prepare
from torch import nn

from agreid_plugin.cli.main import build_parser
from agreid_plugin.hosts.fastreid.commands import catalog
from agreid_plugin.hosts.fastreid.config.loading import describe_keys, load_config
from agreid_plugin.hosts.mmengine import registry
from agreid_plugin.hosts.mmengine.commands import catalog as mmengine_catalog
from agreid_plugin.synth import make_agsynth

FOLDER = Path(__file__).parent / "snapshots"
TOLERANCE = 1e-4
LEFT_OUT = ("Mixed", "Example")  # networks of other packages, whose weights are not ours to watch; a plugin
RELEASED = "released"  # the same network as without


def list_recipes() -> list[str]:
    """Recipes for fast-reid of the datasets whose identities we know."""
    paths = [path for path in recipes("*") if path.parent.name not in LEFT_OUT and RELEASED not in path.stem]
    runs = [path for path in paths if "OUTPUT_DIR" in path.read_text(encoding="utf-8")]  # others are bases of these
    found = {name_of(path): load_config(path).DATASETS for path in runs}
    return [name for name, data in found.items() if data.AGSYNTH.IDS or data.NAMES[0] in IDENTITIES]


def list_keys() -> dict[str, str]:
    """Our configuration keys of fast-reid with their defaults."""
    cfg, found = get_cfg(), {}
    for path in describe_keys():
        node = cfg
        for name in path.split("."):
            node = node[name]
        found[path] = repr(node)
    return dict(sorted(found.items()))


def list_components() -> dict[str, list[str]]:
    """What we register in fast-reid, by kind."""
    kinds = catalog.components()
    return {kind: [entry.name for entry in found if entry.owner == "agreid_plugin"] for kind, found in kinds.items()}


def list_mmengine_components() -> dict[str, dict[str, str]]:
    """What we register in mmengine, by kind, with the arguments."""
    mmengine_catalog.components()
    ours = {name: value for name, value in vars(registry).items() if getattr(value, "scope", "") == registry.SCOPE}
    return {
        kind: {name: str(inspect.signature(entry)) for name, entry in sorted(found.module_dict.items())}
        for kind, found in ours.items()
        if found.module_dict
    }


def list_options() -> dict[str, list[str]]:
    """Every command of the parser with its arguments."""
    found: dict[str, list[str]] = {}

    def read(parser: argparse.ArgumentParser, name: str) -> None:
        found[name] = []
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for word, part in action.choices.items():
                    read(part, f"{name} {word}")
            elif not isinstance(action, argparse._HelpAction):
                names = " ".join(action.option_strings) or action.dest
                found[name].append(f"{names} nargs={action.nargs} default={action.default}")

    read(build_parser(), "fastreid")
    return found


def describe_model(model: nn.Module) -> dict[str, object]:
    """Names and shapes of a model's parameters as a digest, and a number that no change of a weight leaves alone."""
    state = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
    text = "\n".join(f"{name} {tuple(value.shape)}" for name, value in state.items())
    total = sum(_weigh(value, number) for number, value in enumerate(state.values(), 1))
    digest = blake2b(text.encode(), digest_size=8).hexdigest()
    return {"tensors": len(state), "names": digest, "weights": round(total, 4)}


def _weigh(value: torch.Tensor, number: int) -> float:
    flat = value.double().flatten()
    return float(flat @ torch.sin(torch.arange(1.0, len(flat) + 1, dtype=torch.float64) * 0.37 + number))


def build_fastreid(name: str, root: Path) -> nn.Module:
    """The model of a recipe for fast-reid, with first weights from seed 0."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTREID_DATASETS", str(root))
        cfg = prepare(load_config((PROJECTS / name).with_suffix(".yml")), str(root))
    cfg.defrost()
    cfg.MODEL.DEVICE = "cpu"
    torch.manual_seed(0)
    return build_model(cfg)


def build_mmengine(name: str, root: Path) -> nn.Module:
    """The model of a recipe for mmengine, with first weights from seed 0."""
    config = both_forms(name, root).config
    init_default_scope("agreid_plugin")
    torch.manual_seed(0)
    return MODELS.build(config.model)


LISTS = {
    "keys": list_keys,
    "fastreid_components": list_components,
    "mmengine_components": list_mmengine_components,
    "options": list_options,
}


@pytest.mark.parametrize("name", LISTS)
def test_names_that_users_write_are_those_of_the_snapshot(name):
    now, before = LISTS[name](), read(name)
    assert now
    assert now == before


def small_first(names: list[str]) -> list:
    """Names of recipes, the small ones in every run of the tests, those of the papers' size in the slow ones."""
    return [name if "agsynth" in name else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", small_first(list_recipes()))
def test_first_weights_of_a_recipe_for_fastreid(name, described):
    compare(describe_model(build_fastreid(name, described)), read("fastreid_models")[name])


@pytest.mark.parametrize("name", small_first(RECIPES))
def test_first_weights_of_a_recipe_for_mmengine(name, described):
    compare(describe_model(build_mmengine(name, described)), read("mmengine_models")[name])


def test_a_changed_weight_changes_the_number():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    before = describe_model(model)
    with torch.no_grad():
        model[0].weight[[0, 1]] = model[0].weight[[1, 0]]  # another order of the same draws
    after = describe_model(model)
    assert after["names"] == before["names"]
    assert abs(after["weights"] - before["weights"]) > TOLERANCE


def compare(now: dict, before: dict) -> None:
    assert {**now, "weights": pytest.approx(now["weights"], abs=TOLERANCE, rel=TOLERANCE)} == before


def read(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def write(name: str, content: dict) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False)
    (FOLDER / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
    print(f"{name}: {len(content)}", file=sys.stderr)  # noqa: T201


def main(root: Path) -> None:
    """Write all snapshots anew; `root` is an empty folder for a small dataset with attributes."""
    make_agsynth(root, ids=8, images_per_id=8, size=(32, 16), layout="cp2108", workers=1, progress=False)
    for name, collect in LISTS.items():
        write(name, collect())
    write("fastreid_models", {name: describe_model(build_fastreid(name, root)) for name in list_recipes()})
    write("mmengine_models", {name: describe_model(build_mmengine(name, root)) for name in RECIPES})


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        main(Path(folder))
