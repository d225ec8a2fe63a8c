"""Who may import whom: the table of the design, checked on every file."""

import ast
import textwrap
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "agreid_plugin"
HOSTS = {"fastreid", "mmengine", "mmpretrain", "mmcv"}
LAYERS = [
    "errors",
    "trust",
    "archives",
    "types",
    "nn",
    "losses",
    "data",
    "evaluation",
    "methods",
    "deploy",
    "hosts",
    "cli",
    "registry",
]
MAY_IMPORT = {
    "errors": set(),
    "trust": set(),
    "archives": {"errors"},
    "types": {"errors"},
    "nn": {"errors", "trust", "archives", "types"},
    "losses": {"errors", "types"},
    "data": {"errors", "archives", "types"},
    "evaluation": {"errors", "types", "data"},
    "methods": {"errors", "types", "nn", "losses", "data"},
    "deploy": {"errors"},  # runs where there is no torch
    "hosts": {"errors", "trust", "types", "nn", "losses", "data", "evaluation", "methods", "deploy"},
    "cli": {"errors", "trust", "types", "data", "evaluation", "deploy", "hosts"},
    "registry": {"hosts"},  # what mmengine imports by this name, and nobody else
}


def imported_modules(source: str) -> set[str]:
    """Every module named by an import statement, at any depth of the code."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def violations(source: str, layer: str, part: str | None) -> set[str]:
    """What a file of `layer` imports and may not; `part` is its folder, the one host or method that it may import."""
    host, method = (part, None) if layer == "hosts" else (None, part)
    wrong = set()
    for module in imported_modules(source):
        top, *rest = module.split(".")
        if top in HOSTS and top != host and not (host == "mmengine" and top in HOSTS - {"fastreid"}):
            wrong.add(module)
        if top == "agreid_plugin" and rest and rest[0] in LAYERS and rest[0] not in MAY_IMPORT[layer] | {layer}:
            wrong.add(module)
        if module.startswith("agreid_plugin.hosts.") and layer == "hosts" and len(rest) > 1:
            sibling = rest[1]
            if sibling in ("fastreid", "mmengine") and host is not None and sibling != host:
                wrong.add(module)
        if layer == "methods" and rest[:1] == ["methods"] and rest[1:2] != [method]:
            wrong.add(module)
    return wrong


def layer_files() -> list[tuple[Path, str, str | None]]:
    files = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        layer = parts[0].removesuffix(".py")
        if layer in LAYERS:
            part = parts[1] if layer in ("hosts", "methods") and len(parts) > 2 else None
            files.append((path, layer, part))
    return files


@pytest.mark.parametrize(
    ("path", "layer", "part"), layer_files(), ids=lambda value: value.name if isinstance(value, Path) else str(value)
)
def test_file_keeps_to_its_layer(path, layer, part):
    assert not violations(path.read_text(encoding="utf-8"), layer, part)


def test_every_file_has_a_layer():
    outside = {path.name for path in PACKAGE.glob("*.py")} - {f"{layer}.py" for layer in LAYERS}
    assert outside == {"__init__.py", "__main__.py", "_imports.py"}


@pytest.mark.parametrize(
    ("layer", "part", "line"),
    [
        ("nn", None, "import fastreid"),
        ("data", None, "from agreid_plugin.evaluation import ranking"),
        ("losses", None, "from agreid_plugin import nn"),
        ("hosts", "fastreid", "import mmengine"),
        ("hosts", "mmengine", "from agreid_plugin.hosts.fastreid import trainer"),
        ("methods", None, "from agreid_plugin.methods.visa import ViSA"),
        ("methods", "svpr", "from agreid_plugin.methods.visa import ViSA"),
        ("deploy", None, "from agreid_plugin.types import View"),
        ("evaluation", None, "def f():\n    from fastreid.engine import hooks"),
    ],
)
def test_a_violation_is_found(layer, part, line):
    assert violations(textwrap.dedent(line), layer, part)


def test_core_layers_never_see_a_cfg():
    for path, layer, _ in layer_files():
        if layer in ("hosts", "cli"):
            continue
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        names |= {node.arg for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.arg)}
        assert "cfg" not in names, path
