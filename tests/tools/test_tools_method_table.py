"""`tools/method-table`: README's table of methods is what the papers' files say."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "method-table"))


def test_the_table_in_the_readme_is_up_to_date():
    assert TOOL["main"](["--check"]) == 0, "run tools/method-table --write"


def test_a_stale_table_is_found_and_written_anew(tmp_path, capsys):
    readme = tmp_path / "README.md"
    whole = (ROOT / "README.md").read_text(encoding="utf-8")
    readme.write_text(whole.replace("CARGO/A2G 71.28 / 69.00", "CARGO/A2G 99.99 / 69.00"), encoding="utf-8")
    assert TOOL["main"](["--check", "--readme", str(readme)]) == 1
    assert "tools/method-table --write" in capsys.readouterr().err
    assert TOOL["main"](["--write", "--readme", str(readme)]) == 0
    assert readme.read_text(encoding="utf-8") == whole


def test_a_file_without_a_place_for_the_table_is_left_alone(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("# nothing\n")
    with pytest.raises(SystemExit, match="2"):
        TOOL["main"](["--write", "--readme", str(readme)])
    assert readme.read_text() == "# nothing\n"
