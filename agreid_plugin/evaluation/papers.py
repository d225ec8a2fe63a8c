"""What papers print, as data: `projects/*/paper.yml` read, checked and taken apart into rows of numbers.

    paper: {title: ..., venue: CVPR, year: 2026, arxiv: "...", code: https://...}
    method: ViSA                                   # what its own row is called in the tables
    name: ViSA                                     # what a list of methods calls it; left out: the folder's name
    architecture: ViSA                             # ours, if no other method shares it
    setting: {views: given, input: [256, 128]}     # how it tests: given, predicted or no views; height and width
    headline: [CARGO/ALL, CARGO/A2G]               # protocols that stand for it in a list of methods
    cited_in: [SVPR-ReID]                          # instead of tables: whose tables have its numbers
    tables:
      - table: Table 1
        columns:
          - {printed: A<->G, protocol: CARGO/A2G, metrics: [Rank-1, mAP]}
          - {printed: Average, mean_of: [CARGO/ALL, CARGO/A2G], metrics: [mAP]}
          - {printed: FPS, metrics: [images a second]}      # no protocol: not about retrieval
        rows: {VDT: [48.12, 42.76, 48.98, null], ViSA: [71.28, 69.00, 67.23, 429.05]}      # null where it prints "-"
        except:                                    # rows of a column that were measured otherwise, or need a word
          - {rows: [VDT], printed: A<->G, protocol: CARGO/AG-both, note: copied from VDT's paper}

`protocol: unknown` is a number of which nobody can tell how it was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agreid_plugin.data.datasets.files import existing, shown
from agreid_plugin.data.yaml_files import read_yaml
from agreid_plugin.errors import InputError, did_you_mean, said_of, unknown
from agreid_plugin.evaluation.metrics import check_views
from agreid_plugin.evaluation.paper_tables import Published, mapping, rows_of

FILE_NAME = "paper.yml"
KEYS = ("paper", "method", "name", "architecture", "setting", "headline", "cited_in", "tables")
OF_PAPER = ("title", "venue", "year", "arxiv", "code")


@dataclass(frozen=True)
class Paper:
    """A paper and what it, or others of it, print.

    Attributes:
        project: its folder's name.
        name: what a list of methods calls it.
        title: of the paper.
        published: where, `CVPR 2026`.
        year: of the paper.
        link: where to read it or its code; empty if nowhere is known.
        method: what its own rows are called.
        architecture: ours; empty if others share it.
        views: where it has test images' views from, `given` or `predicted`; empty if it uses none.
        input: height and width of a test image.
        headline: protocols that stand for it in a list of methods.
        rows: every row of every column of every table.
        cited: whether the numbers are of other papers' tables.
    """

    project: str
    name: str
    title: str
    published: str
    year: int
    link: str
    method: str
    architecture: str
    views: str
    input: tuple[int, int]
    headline: tuple[str, ...]
    rows: tuple[Published, ...]
    cited: bool

    def own(self, protocol: str) -> Published | None:
        """Return the method's own numbers under a protocol, from the first table that has them."""
        return next((row for row in self.rows if row.protocol == protocol and row.method == self.method), None)

    def __str__(self) -> str:
        return f"{self.project} ({self.published})"


def load_paper(path: str | Path) -> Paper:
    """Read a paper's file; its project's folder may be named instead.

    Raises:
        InputError: the file is missing, damaged, or names a protocol that does not exist.
    """
    path = existing(path)
    path = path / FILE_NAME if path.is_dir() else path
    try:
        return _paper(path, cites=True)
    except InputError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not in the format of a paper's numbers: {shown(repr(error))}") from error


def _paper(path: Path, cites: bool) -> Paper:
    content = mapping(str(path), read_yaml(path), KEYS, needed=("paper", "method", "setting"))
    about = mapping(f"{path}: paper", content["paper"], OF_PAPER, needed=("title", "venue", "year"))
    setting = mapping(f"{path}: setting", content["setting"], ("views", "input"), needed=("views", "input"))
    project, cited = path.absolute().parent.name, "cited_in" in content
    if cited == ("tables" in content):
        raise InputError(f"{path}: give either tables or cited_in")
    if cited and not cites:
        raise InputError(f"{path} has no tables of its own to be cited")
    paper = Paper(
        project=project,
        name=content.get("name", project),
        title=about["title"],
        published=f"{about['venue']} {about['year']}",
        year=about["year"],
        link=f"https://arxiv.org/abs/{about['arxiv']}" if "arxiv" in about else about.get("code", ""),
        method=content["method"],
        architecture=content.get("architecture", ""),
        views=setting["views"],
        input=tuple(setting["input"]),
        headline=tuple(content.get("headline", ())),
        rows=_cited_rows(path, content) if cited else rows_of(path, content["tables"]),
        cited=cited,
    )
    _check(path, paper)
    return paper


def _check(path: Path, paper: Paper) -> None:
    with said_of(f"{path}: setting"):
        check_views(paper.views)
    if len(paper.input) != 2 or not all(type(side) is int for side in paper.input):
        raise InputError(f"{path}: setting: input should be height and width, such as [256, 128]")
    for name in paper.headline:
        if paper.own(name) is None:
            raise unknown(f"{path}: headline", name, {row.protocol for row in paper.rows if row.method == paper.method})


def _cited_rows(path: Path, content: Mapping[str, Any]) -> tuple[Published, ...]:
    """Return the method's own rows in other papers' tables."""
    found = []
    for project in content["cited_in"]:
        other = _paper(existing(path.absolute().parent.parent / project / FILE_NAME), cites=False)
        own = [row for row in other.rows if row.method == content["method"]]
        if not own:
            methods = sorted({row.method for row in other.rows})
            raise InputError(
                f"{path}: cited_in {project}: no row {content['method']!r} in its tables"
                f"{did_you_mean(content['method'], methods)}"
            )
        found += [replace(row, table=f"{other.project}, {row.table}") for row in own]
    return tuple(found)
