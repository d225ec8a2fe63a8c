"""The pages build without a warning, and the numbers on them are those that the package computes."""

import os
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import yaml

from agreid_plugin.data.protocols import Meta, hidden_mask, protocol, select
from agreid_plugin.evaluation import evaluate

ROOT = Path(__file__).parents[2]
PROTOCOLS = (ROOT / "docs/protocols.md").read_text(encoding="utf-8")
PAGES = [
    "index.html",
    "protocols.html",
    "papers_and_code.html",
    "tutorials/own_dataset.html",
    "tutorials/fifth_method.html",
    "methods/visa.html",
    "methods/tag_clip.html",
    "methods/leaderboard.html",
    "api/losses.html",
    "api/captioning.html",
    "api/fastreid.html",
    "api/mmengine.html",
    "api/keys.html",
]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The pages, from the sources as they are; a warning is an error."""
    folder = tmp_path_factory.mktemp("pages")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-b", "html", "docs", str(folder)]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.mark.slow
@pytest.mark.both_hosts
def test_the_pages_build_without_a_warning(built):
    for page in PAGES:
        assert (built / page).stat().st_size > 5000, page


@pytest.mark.slow
@pytest.mark.both_hosts
def test_generated_tables_hold_what_the_package_has(built):
    keys = (built / "api/keys.html").read_text()
    assert "MODEL.VISA.VARIANT" in keys
    assert "Seed of every random generator" in keys
    assert "ViewBalancedIdentitySampler" in (built / "api/fastreid.html").read_text()
    assert "agreid_plugin.TAGCLIP" in (built / "api/mmengine.html").read_text()
    page = (built / "protocols.html").read_text()
    for name in ("CARGO/AG-cross", "CP2108/AG-cross-cross-time", "LAGPeR/G2AG", "TAG-PEDES/T2I-aerial", "csv/ALL"):
        assert name in page


@pytest.mark.slow
@pytest.mark.both_hosts
def test_methods_pages_show_the_projects(built):
    page = (built / "methods/visa.html").read_text()
    assert "View-Aware Semantic Alignment" in page
    assert "README.md" not in re.findall(r'href="([^"]*)"', page)
    for pictures in re.findall(r'<img[^>]*src="([^"]+)"', page):
        assert (built / "methods" / pictures).resolve().is_file(), pictures


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PROTOCOLS, re.MULTILINE | re.DOTALL)


def test_the_example_prints_what_the_page_says(capsys):
    names: dict = {}
    for block in blocks("python"):
        exec(block, names)
    assert capsys.readouterr().out == blocks("text")[0]


@pytest.fixture(scope="module")
def example() -> dict:
    """What the first block of the page defines: the images, and the dataset of them."""
    names: dict = {}
    exec(blocks("python")[0], names)
    return names


def rows_by_hand() -> list[list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PROTOCOLS.splitlines()]
    return [row for row in rows if len(row) == 6 and row[0].startswith("`CARGO/")]


def value(text: str) -> Fraction:
    """What a cell as `(1/1 + 2/3) / 2` comes to."""
    terms, _, count = text.partition(") / ")
    return sum(map(Fraction, terms.strip("(").split(" + "))) / Fraction(count or 1)


@pytest.mark.parametrize("row", rows_by_hand(), ids=lambda row: f"{row[0].strip('`')} {row[1]}")
def test_each_line_worked_out_by_hand(row, example):
    name, asking, order, ranks, precision, penalty = row
    rule = protocol(name.strip("`"))
    chosen = select(rule, example["dataset"])
    query = [record for record in chosen.query if record.path == asking]
    position = {name: entry[-1] for name, entry in example["SEEN"].items()}
    hidden = hidden_mask(rule, Meta.collect(query), Meta.collect(chosen.gallery))[0]
    visible = [record for record, gone in zip(chosen.gallery, hidden, strict=True) if not gone]
    visible.sort(key=lambda record: abs(position[record.path] - position[asking]))
    shown = [f"**{r.path}**" if r.pid == query[0].pid else r.path for r in visible]
    assert shown == order.split()
    assert [place for place, image in enumerate(shown, start=1) if "*" in image] == [
        int(rank) for rank in ranks.split()
    ]
    sides = [np.array([[float(position[r.path])] for r in side]) for side in (query, chosen.gallery)]
    found = evaluate(*sides, Meta.collect(query), Meta.collect(chosen.gallery), rule, metric="euclidean").per_query
    assert found.precision[0] == pytest.approx(float(value(precision)))
    assert found.inverse_penalty[0] == pytest.approx(float(value(penalty)))


def test_every_query_with_a_match_has_its_line(example):
    lines = {(row[0].strip("`"), row[1]) for row in rows_by_hand()}
    for name in {name for name, _ in lines}:
        rule = protocol(name)
        chosen = select(rule, example["dataset"])
        hidden = hidden_mask(rule, Meta.collect(chosen.query), Meta.collect(chosen.gallery))
        pids = [record.pid for record in chosen.gallery]
        for record, gone in zip(chosen.query, hidden, strict=True):
            seen = any(pid == record.pid and not each for pid, each in zip(pids, gone, strict=True))
            assert ((name, record.path) in lines) == seen, (name, record.path)


def test_counts_of_cargo_are_the_published_ones():
    published = yaml.safe_load((ROOT / "agreid_plugin/data/published.yml").read_text())["CARGO"]["protocols"]
    text = " ".join(PROTOCOLS.split())
    one_way, both = published["A2G"], published["AG-both"]
    assert f"CARGO's {one_way['queries']} aerial queries {one_way['valid_queries']} have a match" in text
    assert f"of all {both['queries']} there are {both['valid_queries']} under `AG-both`" in text
    assert round(100 * 77 / both["valid_queries"], 2) == 48.12
    assert round(100 * 67 / one_way["valid_queries"], 2) == 71.28
    assert not any(round(100 * hits / both["valid_queries"], 2) == 71.28 for hits in range(both["valid_queries"]))
