"""`fastreid bench` measures what it says; how fast things are is not asserted."""

import re


def test_evaluators_rank_the_same_features(fastreid_command):
    sizes = ["--queries", 40, "--gallery", 400, "--width", 16, "--python-queries", 40]
    outcome = fastreid_command("bench", "evaluation", *sizes)
    assert outcome.code == 0, outcome.err
    rows = [line.split("|") for line in outcome.out.splitlines() if re.match(r"\| (ours|fast-reid)", line)]
    assert rows[0][1].strip() == "ours"
    assert len(rows) >= 2
    assert len({row[-2].strip() for row in rows}) == 1  # one mAP


def test_agsynth_speed_of_both_sizes(fastreid_command):
    outcome = fastreid_command("bench", "agsynth", "--images", 4, "--workers", 1)
    assert re.fullmatch(r"128x64: \d+ images/s\n256x128: \d+ images/s\n", outcome.out)
