"""A paper's tables, as its file has them, checked and taken apart into rows of numbers; see `papers`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agreid_plugin.data.datasets.files import shown
from agreid_plugin.data.protocols import protocol as known_protocol
from agreid_plugin.errors import InputError, said_of, unknown
from agreid_plugin.evaluation.metrics import NUMBERS

UNKNOWN = "unknown"
"""The protocol of a number of which nobody can tell how it was measured."""
OF_TABLE = ("table", "note", "columns", "rows", "except")
OF_COLUMN = ("printed", "protocol", "mean_of", "metrics", "note")
OF_EXCEPTION = ("rows", "printed", "protocol", "note")


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
        about: what the table is about, if its rows do not tell.
    """

    method: str
    table: str
    printed: str
    protocol: str
    numbers: Mapping[str, float | None]
    note: str = ""
    about: str = ""


def rows_of(path: Path, tables: Any) -> tuple[Published, ...]:
    """Return every row of every column of every table."""
    if not isinstance(tables, list) or not tables:
        raise InputError(f"{path}: tables should be a list of tables")
    return tuple(row for place, table in enumerate(tables, start=1) for row in _table(f"{path}: table {place}", table))


def _table(where: str, table: Any) -> Iterable[Published]:
    table = mapping(where, table, OF_TABLE, needed=("table", "columns", "rows"))
    where = f"{where} ({table['table']})"
    if not isinstance(table["columns"], list) or not isinstance(table["rows"], dict):
        raise InputError(f"{where}: columns should be a list, and rows have a method's name and a list of numbers each")
    columns = [_column(f"{where}: column {place}", each) for place, each in enumerate(table["columns"], start=1)]
    printed = [column["printed"] for column in columns]
    if len(set(printed)) < len(printed):
        raise InputError(f"{where}: two columns are printed alike; tell them apart, as CARGO ALL and CP2108 ALL")
    changes = _exceptions(where, table, printed)
    for method, values in table["rows"].items():
        _check_values(f"{where}: row {shown(str(method))}", values, sum(len(column["metrics"]) for column in columns))
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


def _column(where: str, column: Any) -> Mapping[str, Any]:
    column = mapping(where, column, OF_COLUMN, needed=("printed", "metrics"))
    protocols = [column["protocol"]] if "protocol" in column else column.get("mean_of", [])
    for name in protocols:
        _check_protocol(where, name)
    for name in column["metrics"] if protocols else ():
        if name not in NUMBERS:
            raise unknown(f"{where}: metric", str(name), NUMBERS)
    return column


def _check_protocol(where: str, name: Any) -> None:
    with said_of(where):
        if name != UNKNOWN and str(known_protocol(str(name))) != name:
            raise InputError(f"protocol {name!r} should be written {known_protocol(str(name))}")


def _exceptions(
    where: str, table: Mapping[str, Any], printed: Sequence[str]
) -> dict[tuple[str, str], Mapping[str, Any]]:
    found = {}
    for each in table.get("except", []):
        each = mapping(f"{where}: except", each, OF_EXCEPTION, needed=("rows", "printed", "note"))
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


def mapping(where: str, given: Any, keys: Sequence[str], needed: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return a mapping that has the needed keys and no other than the known ones."""
    if not isinstance(given, dict):
        raise InputError(f"{where}: expected keys with values, found a {type(given).__name__}")
    for key in given:
        if key not in keys:
            raise unknown(f"{where}: key", shown(str(key)), keys)
    for key in needed:
        if key not in given:
            raise InputError(f"{where}: no {key}")
    return given
