"""The line of rooms: a room imports only what stands to its left, and only `compat` changes a host."""

import ast
import textwrap
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "agreid_plugin"
HOST_PACKAGES = {"fastreid", "mmengine", "mmpretrain", "mmcv"}
LINE = (
    ("errors", "version", "_imports"),
    ("trust", "types", "host", "__init__"),
    ("nn", "losses", "data", "deploy"),
    ("methods", "evaluation"),
    ("retrieval",),
    ("inference",),
    ("visualize",),
    ("engine",),
    ("hosts",),
    ("registry",),
    ("cli", "serve"),
    ("__main__", "tool"),
)
"""From left to right; rooms of one place do not import each other."""
RANK = {room: rank for rank, rooms in enumerate(LINE) for room in rooms}
BESIDE = {"synth": "data", "captioning": "data"}
"""Rooms beside another: they may import it and what it may, and are imported by `BESIDE_READERS` only."""
BESIDE_READERS = ("hosts", "cli", "serve")
ALONE = {"deploy": {"errors"}}
"""Rooms that may import less than their place says: deploy runs where there is no torch."""


def imported_modules(source: str) -> set[str]:
    """Every module or name that an import statement asks for, at any depth of the code."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def room_of(module: str) -> str:
    parts = module.split(".")
    if len(parts) > 1 and (parts[1] in RANK or parts[1] in BESIDE):
        return parts[1]
    return "__init__"


def crosses_the_line(path: str, module: str) -> bool:
    """Tell whether a file, named from the package on, may not import a module of ours or of a host."""
    parts = Path(path).with_suffix("").parts
    room, host = parts[0], parts[1] if parts[0] == "hosts" and len(parts) > 2 else None
    top = module.split(".")[0]
    if top in HOST_PACKAGES:
        return top != host and not (host == "mmengine" and top != "fastreid")
    if top != "agreid_plugin":
        return False
    target = room_of(module)
    if target == room:
        same = module.split(".")[2:3]
        if room == "hosts" and same and same[0] in ("fastreid", "mmengine"):
            return same[0] != host
        if room == "methods":
            return len(parts) > 1 and same != [parts[1]]
        return False
    if room in ALONE:
        return target not in ALONE[room]
    if target in BESIDE:
        return room not in BESIDE_READERS
    return RANK[target] >= RANK[BESIDE.get(room, room)] and not (room in BESIDE and target == BESIDE[room])


def crossings() -> set[str]:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 200
    found = set()
    for file in files:
        path = str(file.relative_to(PACKAGE))
        for module in imported_modules(file.read_text(encoding="utf-8")):
            if crosses_the_line(path, module):
                found.add(f"{path} -> {module.removeprefix('agreid_plugin.')}")
    return found


def test_imports_keep_to_the_line():
    assert not crossings()


def test_every_file_has_a_room():
    rooms = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert not rooms - RANK.keys() - BESIDE.keys()


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("nn/vit.py", "import fastreid"),
        ("data/captions.py", "from agreid_plugin.evaluation import ranking"),
        ("data/captions.py", "from agreid_plugin.nn.clip import Tokenizer"),
        ("losses/vial.py", "from agreid_plugin import nn"),
        ("engine/run.py", "from agreid_plugin.hosts.fastreid.engine import trainer"),
        ("engine/run.py", "from agreid_plugin.synth import make_agsynth"),
        ("hosts/fastreid/inference.py", "import mmengine"),
        ("hosts/mmengine/inference.py", "from agreid_plugin.hosts.fastreid.engine import trainer"),
        ("methods/vdt.py", "from agreid_plugin.methods.visa import ViSA"),
        ("methods/svpr/method.py", "from agreid_plugin.methods.visa import ViSA"),
        ("deploy/model.py", "from agreid_plugin.types import View"),
        ("evaluation/ranking.py", "def f():\n    from fastreid.engine import hooks"),
        ("retrieval/results.py", "from agreid_plugin.inference.extractor import Extractor"),
    ],
)
def test_a_crossing_is_found(path, line):
    assert all(crosses_the_line(path, module) for module in imported_modules(textwrap.dedent(line)))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("hosts/mmengine/inference.py", "import mmpretrain"),
        ("methods/svpr/method.py", "from agreid_plugin.methods.svpr.cvpr import CVPR"),
        ("synth/make.py", "from agreid_plugin.data import collate"),
        ("cli/data.py", "from agreid_plugin.synth import make_agsynth"),
        ("engine/run.py", "from agreid_plugin.visualize import figures"),
    ],
)
def test_what_is_to_the_left_may_be_imported(path, line):
    assert not any(crosses_the_line(path, module) for module in imported_modules(line))


HOST_STATE = {"comm._LOCAL_PROCESS_GROUP"}
"""Variables of a host that its own launcher sets, and ours in its place."""


def host_assignments(source: str) -> set[str]:
    """Every attribute of a name imported from a host that a file assigns to, by `=`, `setattr` or `del`."""
    tree, names, found = ast.parse(source), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names if of_host(alias.name)}
        elif isinstance(node, ast.ImportFrom) and of_host(node.module):
            names |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        target = node if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            target = node.args[0]
        if target is not None and ast.unparse(target).split(".")[0] in names:
            found.add(ast.unparse(target))
    return found


def of_host(module: str) -> bool:
    return module.split(".")[0] in HOST_PACKAGES


def test_only_compat_changes_a_host():
    files = [path for path in (PACKAGE / "hosts").rglob("*.py") if "compat" not in path.parts]
    assert len(files) > 50
    assert set().union(*(host_assignments(path.read_text(encoding="utf-8")) for path in files)) <= HOST_STATE


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("from fastreid.engine import defaults\ndefaults.seed = None", "defaults.seed"),
        ("import mmengine.dist\ndef f():\n    mmengine.dist.infer = None", "mmengine.dist.infer"),
        ("from mmengine.runner import Runner\nsetattr(Runner, 'train', None)", "Runner"),
    ],
)
def test_a_change_of_a_host_is_found(source, target):
    assert host_assignments(source) == {target}
    assert not host_assignments("from fastreid.engine import defaults\nown = defaults.seed\nown.seed = 1")


def test_core_rooms_never_see_a_cfg():
    files = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in ("hosts", "cli")]
    assert files
    for path in files:
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        names |= {node.arg for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.arg)}
        assert "cfg" not in names, path
