"""The pages of projects/, read where they are, and links that lead from any page to a file of the repository."""

import os
import re
from collections.abc import Callable
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
METHODS = DOCS / "methods"
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s]+)(?P<title> \"[^\"]*\")?\)")
PICTURE = re.compile(r"<picture>.*?</picture>", re.DOTALL)
ELSEWHERE = re.compile(r"[a-z]+:|#|//")


def page_of_project(name: str) -> str:
    """Return the README of a project for docs/methods, its links made to start from there."""
    folder = ROOT / "projects" / name
    text = (folder / "README.md").read_text(encoding="utf-8")
    return _outside_code(text, lambda part: LINK.sub(lambda link: _moved(link, folder), _plain_images(part)))


def mend_links(app: Sphinx, docname: str, source: list[str]) -> None:  # noqa: ARG001 - what Sphinx hands over
    """Lead links to READMEs to their pages here, and name what no page shows instead of linking to it."""
    folder = (DOCS / docname).parent
    source[0] = _outside_code(source[0], lambda part: LINK.sub(lambda link: _mended(link, folder), part))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change what stands outside of fenced blocks."""
    kept, end = [], 0
    for fence in FENCE.finditer(text):
        kept += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*kept, change(text[end:])])


def _plain_images(text: str) -> str:
    """Write images that stand as HTML, for GitHub's dark mode or a width, as Markdown's, which Sphinx copies."""

    def plain(html: str) -> str:
        values = dict(re.findall(r'(\w+)="([^"]*)"', html))
        return f"![{values.get('alt', '')}]({values['src']})"

    text = PICTURE.sub(lambda found: re.search(r"<img\b[^>]*>", found[0], re.DOTALL)[0], text)
    text = re.sub(r"<img\b[^>]*>", lambda found: plain(found[0]), text)
    return re.sub(r"</?p\b[^>]*>|</?div\b[^>]*>", "", text)


def _moved(link: re.Match[str], folder: Path) -> str:
    """Return a link of a file in `folder` as one of a page in docs/methods."""
    if ELSEWHERE.match(link["target"]):
        return link[0]
    path, _, anchor = link["target"].partition("#")
    return _link(link, os.path.relpath(folder / path, METHODS), anchor)


def _mended(link: re.Match[str], folder: Path) -> str:
    path, _, anchor = link["target"].partition("#")
    target = (folder / path).resolve()
    if ELSEWHERE.match(link["target"]) or link["image"] or target.is_relative_to(DOCS):
        return link[0]
    page = _page(target)
    if page is not None:
        return _link(link, os.path.relpath(page, folder), anchor)
    return link["text"] if "`" in link["text"] else f"{link['text']} (`{target.relative_to(ROOT)}`)"


def _page(target: Path) -> Path | None:
    """Return the page that shows a file or folder of the repository, None if none does."""
    if target in (ROOT, ROOT / "README.md"):
        return DOCS / "index.md"
    folder = target.parent if target.name == "README.md" else target
    if folder.parent != ROOT / "projects":
        return None
    shows = f"project {folder.name}\n"  # what its page consists of
    return next((page for page in METHODS.glob("*.md") if shows in page.read_text(encoding="utf-8")), None)


def _link(link: re.Match[str], path: str, anchor: str) -> str:
    target = f"{path}#{anchor}" if anchor else path
    return f"{link['image']}[{link['text']}]({target}{link['title'] or ''})"


def setup(app: Sphinx) -> dict[str, bool]:
    """Let Sphinx read pages through `mend_links`."""
    app.connect("source-read", mend_links, priority=600)
    return {"parallel_read_safe": True}
