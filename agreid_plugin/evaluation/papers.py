"""Published numbers: `projects/*/paper.yml` read and checked, and a run's numbers printed beside a paper's.

    paper: {title: ..., venue: CVPR, year: 2026, arxiv: "...", code: https://...}
    method: ViSA                                   # the name of its row in the tables
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

`protocol: unknown` is for a number whose protocol is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tabulate import tabulate

from agreid_plugin.data.check import published_figures
from agreid_plugin.data.files import read_yaml, require_existing, shorten
from agreid_plugin.data.protocols import protocol as known_protocol
from agreid_plugin.errors import InputError, did_you_mean, error_context, unknown
from agreid_plugin.evaluation.metrics import NUMBERS, Metrics, check_views, format_views

FILE_NAME = "paper.yml"
KEYS = ("paper", "method", "name", "architecture", "setting", "headline", "cited_in", "tables")
PAPER_KEYS = ("title", "venue", "year", "arxiv", "code")
UNKNOWN = "unknown"
"""The protocol of a number if the paper does not say how it was measured."""
TABLE_KEYS = ("table", "note", "columns", "rows", "except")
COLUMN_KEYS = ("printed", "protocol", "mean_of", "metrics", "note")
EXCEPTION_KEYS = ("rows", "printed", "protocol", "note")
THIS_RUN = "this run"
OTHER_PROTOCOL = "another protocol"
COUNT_LABELS = {"queries": "queries", "gallery": "gallery images"}


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
        method: the name of its rows in the tables.
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

    def find_row(self, protocol: str) -> Published | None:
        """Return the method's numbers under a protocol, from the first table that has them."""
        return next((row for row in self.rows if row.protocol == protocol and row.method == self.method), None)

    def __str__(self) -> str:
        return f"{self.project} ({self.published})"


def load_paper(path: str | Path) -> Paper:
    """Read a paper's file; its project's folder may be named instead.

    Raises:
        InputError: the file is missing, damaged, or names a protocol that does not exist.
    """
    path = require_existing(path)
    path = path / FILE_NAME if path.is_dir() else path
    try:
        return _paper(path, cites=True)
    except InputError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not in the format of a paper's numbers: {shorten(repr(error))}") from error


def _paper(path: Path, cites: bool) -> Paper:
    content = check_mapping(str(path), read_yaml(path), KEYS, needed=("paper", "method", "setting"))
    about = check_mapping(f"{path}: paper", content["paper"], PAPER_KEYS, needed=("title", "venue", "year"))
    setting = check_mapping(f"{path}: setting", content["setting"], ("views", "input"), needed=("views", "input"))
    project, cited = path.absolute().parent.name, "cited_in" in content
    if cited == ("tables" in content):
        raise InputError(f"{path}: give either tables or cited_in")
    if cited and not cites:
        raise InputError(f"{path} has no tables to be cited")
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
        rows=_cited_rows(path, content) if cited else read_tables(path, content["tables"]),
        cited=cited,
    )
    _check(path, paper)
    return paper


def _check(path: Path, paper: Paper) -> None:
    with error_context(f"{path}: setting"):
        check_views(paper.views)
    if len(paper.input) != 2 or not all(type(side) is int for side in paper.input):
        raise InputError(f"{path}: setting: input should be height and width, such as [256, 128]")
    for name in paper.headline:
        if paper.find_row(name) is None:
            raise unknown(f"{path}: headline", name, {row.protocol for row in paper.rows if row.method == paper.method})


def _cited_rows(path: Path, content: Mapping[str, Any]) -> tuple[Published, ...]:
    """Return the method's rows in other papers' tables."""
    found = []
    for project in content["cited_in"]:
        other = _paper(require_existing(path.absolute().parent.parent / project / FILE_NAME), cites=False)
        rows = [row for row in other.rows if row.method == content["method"]]
        if not rows:
            methods = sorted({row.method for row in other.rows})
            raise InputError(
                f"{path}: cited_in {project}: no row {content['method']!r} in its tables"
                f"{did_you_mean(content['method'], methods)}"
            )
        found += [replace(row, table=f"{other.project}, {row.table}") for row in rows]
    return tuple(found)


@dataclass(frozen=True)
class Published:
    """One method's numbers in one column of one table.

    Attributes:
        method: as printed.
        table: as printed, `Table 1`.
        printed: what the paper calls the column.
        protocol: its full name here, `unknown`, or empty where the column is of none or a mean over several.
        numbers: name -> number, None where the paper prints none.
        note: what to know when comparing it.
        about: what the table is about, if its rows do not say.
    """

    method: str
    table: str
    printed: str
    protocol: str
    numbers: Mapping[str, float | None]
    note: str = ""
    about: str = ""


def read_tables(path: Path, tables: Any) -> tuple[Published, ...]:
    """Return every row of every column of every table."""
    if not isinstance(tables, list) or not tables:
        raise InputError(f"{path}: tables should be a list of tables")
    return tuple(
        row for place, table in enumerate(tables, start=1) for row in _read_table(f"{path}: table {place}", table)
    )


def _read_table(where: str, table: Any) -> Iterable[Published]:
    table = check_mapping(where, table, TABLE_KEYS, needed=("table", "columns", "rows"))
    where = f"{where} ({table['table']})"
    if not isinstance(table["columns"], list) or not isinstance(table["rows"], dict):
        raise InputError(f"{where}: columns should be a list, and rows have a method's name and a list of numbers each")
    columns = [_read_column(f"{where}: column {place}", each) for place, each in enumerate(table["columns"], start=1)]
    printed = [column["printed"] for column in columns]
    if len(set(printed)) < len(printed):
        raise InputError(f"{where}: two columns have the same name; name them apart, as CARGO ALL and CP2108 ALL")
    changes = _read_exceptions(where, table, printed)
    for method, values in table["rows"].items():
        _check_values(f"{where}: row {shorten(str(method))}", values, sum(len(column["metrics"]) for column in columns))
        rest = list(values)
        for column in columns:
            numbers = {name: rest.pop(0) for name in column["metrics"]}
            change = changes.get((method, column["printed"]), {})
            notes = [change.get("note", ""), column.get("note", "")]
            yield Published(
                method=str(method),
                table=table["table"],
                printed=column["printed"],
                protocol=change.get("protocol", column.get("protocol", "")),
                numbers=numbers,
                note="; ".join(note for note in notes if note),
                about=table.get("note", ""),
            )


def _read_column(where: str, column: Any) -> Mapping[str, Any]:
    column = check_mapping(where, column, COLUMN_KEYS, needed=("printed", "metrics"))
    protocols = [column["protocol"]] if "protocol" in column else column.get("mean_of", [])
    for name in protocols:
        _check_protocol(where, name)
    for name in column["metrics"] if protocols else ():
        if name not in NUMBERS:
            raise unknown(f"{where}: metric", str(name), NUMBERS)
    return column


def _check_protocol(where: str, name: Any) -> None:
    with error_context(where):
        if name != UNKNOWN and str(known_protocol(str(name))) != name:
            raise InputError(f"protocol {name!r} should be written {known_protocol(str(name))}")


def _read_exceptions(
    where: str, table: Mapping[str, Any], printed: Sequence[str]
) -> dict[tuple[str, str], Mapping[str, Any]]:
    found = {}
    for each in table.get("except", []):
        each = check_mapping(f"{where}: except", each, EXCEPTION_KEYS, needed=("rows", "printed", "note"))
        if each["printed"] not in printed:
            raise unknown(f"{where}: except: column", str(each["printed"]), printed)
        if "protocol" in each:
            _check_protocol(f"{where}: except", each["protocol"])
        for row in each["rows"]:
            if row not in table["rows"]:
                raise unknown(f"{where}: except: row", str(row), map(str, table["rows"]))
            found[row, each["printed"]] = each
    return found


def _check_values(where: str, values: Any, expected: int) -> None:
    if not isinstance(values, list) or not all(value is None or type(value) in (int, float) for value in values):
        raise InputError(f"{where}: expected a list of numbers, with null where the paper prints none")
    if len(values) != expected:
        raise InputError(f"{where} has {len(values)} values, but the columns have {expected} numbers")


def check_mapping(where: str, given: Any, keys: Sequence[str], needed: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return a mapping that has the needed keys and no other than the known ones."""
    if not isinstance(given, dict):
        raise InputError(f"{where}: expected keys with values, found a {type(given).__name__}")
    for key in given:
        if key not in keys:
            raise unknown(f"{where}: key", shorten(str(key)), keys)
    for key in needed:
        if key not in given:
            raise InputError(f"{where}: no {key}")
    return given


def compare_with_paper(paper: Paper, results: Sequence[Metrics], card: Mapping[str, Any] | None = None) -> str:
    """Return a run's numbers beside a paper's as text; those on AG-Synth are left out, which no paper has.

    Args:
        paper: the paper.
        results: what the run gave.
        card: the run's card; None if there is none, when less is known of its setting.
    """
    synthetic = (card or {}).get("synthetic", ())
    made = [name for name in synthetic if any(entry.protocol.startswith(f"{name}/") for entry in results)]
    results = [entry for entry in results if entry.protocol.partition("/")[0] not in made]
    unlike = f"not comparable: {', '.join(made)} of this run is AG-Synth, which no paper has"
    if made and not results:
        return unlike
    blocks = {entry.protocol: _format_protocol(paper, entry) for entry in results}
    without = [name for name, text in blocks.items() if not text]
    lines = [f"{paper}: {paper.title}", *(["numbers as other papers print them"] if paper.cited else [])]
    lines += [unlike] if made else []
    lines += [*_list_warnings(paper, results, card or {}), *(text for text in blocks.values() if text)]
    if without:
        lines.append(f"no number in this paper: {', '.join(without)}")
    return "\n".join(lines)


def _list_warnings(paper: Paper, results: Sequence[Metrics], card: Mapping[str, Any]) -> list[str]:
    """Return why the run does not compare with the paper's rows, a line each."""
    off = [text for text in map(_compare_counts, results) if text]
    lines = [f"not comparable, another dataset or copy: {'; '.join(off)}"] if off else []
    setting = _compare_setting(paper, results, card)
    return [*lines, *([f"not {paper.method}'s setting: {'; '.join(setting)}"] if setting else []), ""]


def _compare_counts(entry: Metrics) -> str:
    """Describe counts of queries and gallery images that differ from the published ones; empty if none do."""
    found = {"queries": entry.queries + entry.skipped_queries, "gallery": entry.gallery}
    off = {
        what: published
        for what, published in find_published_counts(entry.protocol).items()
        if found[what] not in (published if isinstance(published, list) else [published])
    }
    counts = [f"{found[what]:,} {COUNT_LABELS[what]} ({_format_counts(each)} published)" for what, each in off.items()]
    return f"{entry.protocol} has {' and '.join(counts)}" if counts else ""


def find_published_counts(name: str) -> dict[str, Any]:
    """Return how many queries and gallery images a protocol has, as far as that is published."""
    dataset, _, short = name.partition("/")
    figures = published_figures(dataset)
    counts = figures.get("protocols", {}).get(short, {})
    try:
        if not counts and known_protocol(name).kind == "text" and short == "T2I":
            test = figures.get("splits", {}).get("test", {})
            counts = {"queries": test.get("captions"), "gallery": test.get("images")}
    except InputError:  # a dataset of the host
        return {}
    return {what: counts[what] for what in COUNT_LABELS if counts.get(what)}


def _compare_setting(paper: Paper, results: Iterable[Metrics], card: Mapping[str, Any]) -> list[str]:
    """Describe how the run's test settings differ from the paper's."""
    setup = card.get("setup", {})
    views = sorted({format_views(entry.views) for entry in results} - {format_views(paper.views)})
    size = setup.get("input")
    checks = {
        f"views {', '.join(views)} (there {format_views(paper.views)})": bool(views),
        f"images of {_format_size(size)} (there {_format_size(paper.input)})": size is not None
        and tuple(size) != paper.input,
        f"the {setup.get('variant')} variant": setup.get("variant", "") not in ("", "paper"),
        "distances re-ranked": any("rerank" in entry.distance.replace("-", "") for entry in results),
    }
    return [text for text, differs in checks.items() if differs]


def _format_protocol(paper: Paper, ours: Metrics) -> str:
    """Return the table of one protocol, with every row of the columns that have numbers of it."""
    columns = {(row.table, row.printed) for row in paper.rows if row.protocol == ours.protocol}
    rows = [row for row in paper.rows if (row.table, row.printed) in columns]
    if not rows:
        return ""
    numbers = [name for name in NUMBERS if any(name in row.numbers for row in rows)]
    notes = list(dict.fromkeys(row.note for row in rows if row.note))
    table = [[THIS_RUN, "", *(ours[name] for name in numbers), "", ""]]
    for row in rows:
        other = "" if row.protocol == ours.protocol else row.protocol
        mark = f"[{notes.index(row.note) + 1}]" if row.note else ""
        table.append([row.method, _format_place(row), *(row.numbers.get(name) for name in numbers), other, mark])
    head = [ours.protocol, "where", *numbers, OTHER_PROTOCOL, "note"]
    text = tabulate(table, head, tablefmt="github", floatfmt=".2f", missingval="-")
    about = dict.fromkeys(f"{row.table}: {row.about}" for row in rows if row.about)
    return "\n".join([text, *about, *(f"[{place}] {note}" for place, note in enumerate(notes, start=1)), ""])


def _format_place(row: Published) -> str:
    return f"{row.table}, {row.printed}"


def _format_counts(published: Any) -> str:
    return " or ".join(f"{number:,}" for number in (published if isinstance(published, list) else [published]))


def _format_size(size: Sequence[int] | None) -> str:
    return "x".join(map(str, size or ()))
