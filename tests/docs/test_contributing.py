"""The layers of CONTRIBUTING.md are those that `tests/test_layers.py` checks."""

import re

from pages import ROOT
from test_layers import MAY_IMPORT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_table_says_who_may_import_whom():
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")
    ]
    assert {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[2])) for row in rows} == MAY_IMPORT


def test_the_diagram_has_every_layer_above_those_it_imports():
    (diagram,) = re.findall(r"^errors.*<-.*$", PAGE, re.MULTILINE)
    place = {layer: number for number, group in enumerate(diagram.split("<-")) for layer in group.strip().split(", ")}
    assert place.keys() == MAY_IMPORT.keys()
    for layer, others in MAY_IMPORT.items():
        assert all(place[other] < place[layer] for other in others), layer
