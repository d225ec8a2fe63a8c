"""Blocks that are written when the pages are built, from the package itself: ```` ```{generated} keys ````.

What stands behind the word is the name of one of `MAKERS` and what it is given; the block becomes the Markdown made.
"""

import re
from collections.abc import Callable

import tables
from sphinx.application import Sphinx

from projects import page_of_project

BLOCK = re.compile(r"^```\{generated\} *(?P<maker>\w+) *(?P<given>.*)\n```$", re.MULTILINE)
MAKERS: dict[str, Callable[..., str]] = {
    "keys": tables.keys,
    "components": tables.components,
    "host_fixes": tables.host_fixes,
    "modules": tables.modules,
    "protocols": tables.protocols,
    "published": tables.published,
    "project": page_of_project,
}


def expand(app: Sphinx, docname: str, source: list[str]) -> None:  # noqa: ARG001 - what Sphinx hands over
    """Write the generated blocks of a page."""
    source[0] = BLOCK.sub(lambda block: MAKERS[block["maker"]](*block["given"].split()), source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Let Sphinx read pages through `expand`."""
    app.connect("source-read", expand, priority=400)  # before the links of what it writes are looked at
    return {"parallel_read_safe": True}
