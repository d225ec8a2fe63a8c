"""Docstrings as Sphinx wants them, which are written to be read in an editor: norms between bars, examples indented."""

import re

from sphinx.application import Sphinx

BAR_OR_CODE = re.compile(r"`[^`]*`|\|")


def mend(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:  # noqa: ARG001
    """Keep `|cos|` from being a substitution, and an indented example of a module from being a quotation."""
    lines[:] = [BAR_OR_CODE.sub(lambda found: "\\|" if found[0] == "|" else found[0], line) for line in lines]
    if what == "module":
        lines[:] = _with_examples(lines)


def _with_examples(lines: list[str]) -> list[str]:
    found: list[str] = []
    last = ""  # of the lines that are not empty
    for line in lines:
        if line.startswith(" ") and found and not found[-1] and not last.startswith(" "):
            found += ["::", ""]
        found.append(line)
        last = line or last
    return found


def setup(app: Sphinx) -> dict[str, bool]:
    """Let autodoc read docstrings through `mend`, after napoleon has read their sections."""
    app.connect("autodoc-process-docstring", mend, priority=600)
    return {"parallel_read_safe": True}
