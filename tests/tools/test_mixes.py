"""`tools/mixes` says of a row whether it works, is refused, or breaks."""

import math
from collections import Counter

import pytest
from conftest import ROOT
from mixes.__main__ import BREAKS, PAGE, REFUSED, WORKS, Result, check_part, main, run_row, select_rows, write_page
from mixes.rows import PLAIN, RESNET, VIT, Row, list_rows

pytestmark = pytest.mark.both_hosts


@pytest.fixture
def run(tmp_path):
    def run(row: Row) -> Result:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return run_row(row, folder)

    return run


def row(*settings: str) -> Row:
    return Row("part", "group", VIT, settings, PLAIN)


def test_a_row_works_is_refused_or_breaks(run, monkeypatch):
    works = run(row("MODEL.LOSSES.NAME", "[CrossEntropyLoss, CircleLoss]"))
    assert (works.state, works.text, len(works.losses)) == (WORKS, "", 4)
    assert math.isfinite(works.score)
    refused = run(row("MODEL.LOSSES.NAME", "[CrossEntropyLos]"))
    assert refused.state == REFUSED
    assert "did you mean CrossEntropyLoss?" in refused.text
    monkeypatch.setattr("agreid_plugin.hosts.fastreid.engine.trainer.build_model", lambda cfg: cfg.nothing)
    broken = run(row())
    assert broken.state == BREAKS
    assert broken.text.startswith("AttributeError: nothing")


def test_a_part_that_changes_no_loss_is_ignored():
    results = {PLAIN: Result(WORKS, losses=[2.0, 1.0]), "part": Result(WORKS, losses=[2.0, 1.0])}
    check_part(row(), results)
    assert results["part"] == Result(BREAKS, f"ignored: every loss is that of {PLAIN}", [2.0, 1.0])
    results["part"] = Result(WORKS, losses=[2.0, 1.1])
    check_part(row(), results)
    assert results["part"].state == WORKS


def test_rows_stand_behind_those_that_they_are_compared_with():
    rows = list_rows()
    names = [row.name for row in rows]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    for place, each in enumerate(rows):
        assert not each.without or each.without in names[:place]
    assert [each.name for each in select_rows(rows, "gemeralized")] == []
    assert [each.name for each in select_rows(rows, "GlobalMaxPool")] == [PLAIN, RESNET, "GlobalMaxPool in Baseline"]


def test_the_page_has_every_row(tmp_path, capsys):
    rows = list_rows()
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert [row.name for row in rows if f"| {row.name} | {row.host} |" not in page] == []
    assert " 0 break." in page
    write_page(tmp_path / "page.md", rows[:1], {rows[0].name: Result(REFUSED, "a|b")})
    assert f"| {rows[0].name} | fast-reid | refused: a\\|b |  |  |" in (tmp_path / "page.md").read_text()
    assert main(["--only", "nothing of that name"]) == 2
    assert capsys.readouterr().err.startswith("tools/mixes: error: no row has 'nothing of that name'")
