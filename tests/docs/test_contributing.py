"""The rooms of CONTRIBUTING.md are those that `tests/test_layers.py` checks."""

import re

from pages import ROOT
from test_layers import BESIDE, LINE

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
UNLISTED = {"__init__", "_imports", "__main__", "registry", "serve"}
"""Modules that only Python or mmengine look for, and a room to come."""


def test_the_line_is_the_one_that_is_checked():
    (line,) = re.findall(r"^errors.*<-.*$", PAGE, re.MULTILINE)
    shown = [set(rooms.strip().split(", ")) for rooms in line.split("<-")]
    assert shown == [rooms for rooms in (set(each) - UNLISTED for each in LINE) if rooms]


def test_the_table_has_every_room():
    cells = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert listed == {room for rooms in LINE for room in rooms} - UNLISTED | BESIDE.keys()
