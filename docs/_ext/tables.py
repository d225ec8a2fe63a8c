"""Tables and lists that pages show of the package as it is: keys, registered components, modules, protocols."""

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterable, Sequence
from types import ModuleType

from agreid_plugin.data import protocols as of_data
from agreid_plugin.data.datasets import DATASETS
from agreid_plugin.engine.catalog import first_sentence
from agreid_plugin.evaluation.papers import load_paper
from agreid_plugin.host import HOSTS
from projects import ROOT

OURS = "agreid_plugin"


def keys() -> str:
    """Return a table for each group of configuration keys: name, default, sentence."""
    from agreid_plugin.hosts.fastreid.commands.catalog import keys as declared
    from agreid_plugin.hosts.fastreid.config.loading import get_cfg

    defaults, groups = get_cfg(), {}
    for path, sentence in sorted(declared().items()):
        value = defaults
        for name in path.split("."):
            value = value[name]
        group = ".".join(path.split(".")[:2]) if path.count(".") > 1 else path.partition(".")[0]
        groups.setdefault(group, []).append([f"`{path}`", f"`{value!r}`", sentence])
    return "\n\n".join(
        f"## {group}\n\n{_table(['key', 'default', ''], rows)}" for group, rows in sorted(groups.items())
    )


def components(host: str) -> str:
    """Return a table for each kind of thing that is ours in a host's registries: name, what it is."""
    found = importlib.import_module(f"agreid_plugin.hosts.{host}.commands.catalog").components()
    parts = []
    for kind, entries in found.items():
        rows = [[f"`{entry.name}`", entry.doc] for entry in entries if entry.owner == OURS]
        if rows:
            parts.append(f"## {kind.capitalize()}\n\n{_table(['name', ''], rows)}")
    return "\n\n".join(parts)


def host_fixes(host: str) -> str:
    """Return the table of a host's fixes: name, the import that it is due with, the fault, what it does."""
    fixes = importlib.import_module(f"agreid_plugin.hosts.{host}.compat").HOST_FIXES.all
    rows = [
        [
            f"`{fix.name}`",
            f"{'before' if fix.before else 'after'} `{fix.module}`",
            fix.reason,
            first_sentence(fix.apply),
        ]
        for fix in fixes
    ]
    return f"### {HOSTS[host]}\n\n{_table(['fix', 'due', 'fault', 'what it does'], rows)}"


def modules(*names: str) -> str:
    """Return what modules have, a section each; a package stands for all in its `__all__`, or for its modules."""
    return "\n\n".join(_section(module) for name in names for module in _documented(importlib.import_module(name)))


def _documented(module: ModuleType) -> Iterable[ModuleType]:
    if not hasattr(module, "__path__") or hasattr(module, "__all__"):
        return [module]
    inner = pkgutil.iter_modules(module.__path__, f"{module.__name__}.")
    return [importlib.import_module(each.name) for each in inner if not each.ispkg]


def _section(module: ModuleType) -> str:
    return f"## `{module.__name__}`\n\n```{{eval-rst}}\n.. automodule:: {module.__name__}\n```"


def protocols() -> str:
    """Return the table of every protocol: name, sides, what is hidden, source."""
    rows = []
    for dataset in DATASETS:
        for each in of_data.protocols(dataset).values():
            rules = ", ".join(f"`{rule}`" for rule in each.hide) or "nothing"
            source = f"{each.source}. {each.note}" if each.note else each.source
            rows.append([f"`{each}`", _side(each, "query"), _side(each, "gallery"), rules, source])
    return _table(["protocol", "query", "gallery", "hidden", "source"], rows)


def _side(protocol: of_data.Protocol, side: str) -> str:
    wanted = ", ".join(" or ".join(values) for values in getattr(protocol, side).values())
    if protocol.list_file:
        return f"`{protocol.list_file}`" + (f", else {wanted}" if wanted else "")
    if protocol.kind == "text" and side == "query":
        return "captions" + (" of people in the gallery" if protocol.restrict else "")
    known = " of people in the gallery" if side == "query" and protocol.restrict else ""
    return (wanted or "all") + known


def published() -> str:
    """Return which paper's column is which protocol, and for which of its rows, out of projects/*/paper.yml."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for path in sorted((ROOT / "projects").glob("*/paper.yml")):
        paper = load_paper(path)
        for row in () if paper.cited else paper.rows:
            if row.protocol:
                found.setdefault((paper.name, row.table, row.printed, row.protocol), []).append(row.method)
    columns = Counter(key[:3] for key in found)
    rows = [
        [paper, table, printed, f"`{protocol}`", "all" if columns[paper, table, printed] == 1 else ", ".join(methods)]
        for (paper, table, printed, protocol), methods in found.items()
    ]
    return _table(["paper", "table", "column", "protocol here", "rows"], rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
