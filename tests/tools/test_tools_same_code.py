"""`tools/same-code`: a rename, a move or a merge is told from a change of the code."""

import runpy
from pathlib import Path

import pytest

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "same-code"))
OLD = {
    "package/looking.py": '''
"""What a model does."""
import os
from agreid_plugin.hosts import told
NAME = "agreid_plugin.hosts.told"
def told_of(image, *, told=None):
    """Tell of it."""
    return [told(each) for each in image.told]
''',
    "package/other.py": '''
class Looked:
    """Something."""
''',
}
NAMES = {"told": "describe", "told_of": "describe_image", "Looked": "PatchView"}


def definitions(files, names=None, somewhere=None, no_strings=False):
    return TOOL["count_definitions"](files, TOOL["Names"](names or {}, somewhere or {}), no_strings)


NEW = {
    "other/place/introspection.py": '''
"""Introspection."""
from agreid_plugin.engine import describe
class PatchView:
    """One patch."""
def describe_image(image, *, describe=None):
    return [describe(each) for each in image.describe]  # a comment
NAME = "agreid_plugin.engine.describe"
'''
}


def test_a_merge_of_renamed_definitions_is_the_same_code():
    assert definitions(OLD, NAMES) == definitions(NEW)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[describe(each) for", "[describe(image) for"),  # another argument
        ("describe=None", "describe=0"),  # another default
        ("class PatchView:", "class PatchView(dict):"),
        ('NAME = "agreid_plugin.engine.describe"', 'NAME = "agreid_plugin.engine.tell"'),
        ('NAME = "agreid_plugin.engine.describe"\n', ""),  # lost
    ],
)
def test_a_change_is_found(before, after):
    (path, text), *_ = NEW.items()
    assert before in text
    assert definitions(OLD, NAMES) != definitions({path: text.replace(before, after)})


def test_a_definition_that_stands_twice_counts_twice():
    assert definitions({**OLD, "package/copy.py": OLD["package/other.py"]}) != definitions(OLD)


def test_a_name_for_some_paths_leaves_the_others():
    files = {"a/one.py": "found = 1", "b/one.py": "found = 1"}
    assert definitions(files, somewhere={"b/": {"found": "result"}}) == definitions(
        {"a/one.py": "found = 1", "b/one.py": "result = 1"}
    )


def test_texts_are_left_out_only_when_asked():
    before, after = {"a.py": "raise ValueError('told')"}, {"a.py": "raise ValueError('said')"}
    assert definitions(before) != definitions(after)
    assert definitions(before, no_strings=True) == definitions(after, no_strings=True)


def test_a_table_is_read_with_its_comments(tmp_path):
    table = tmp_path / "names.txt"
    table.write_text("# words\ntold described\n\nfound result hosts/  # elsewhere it is a local\n")
    names = TOOL["Names"].read(table)
    assert names.select("agreid_plugin/hosts/a.py") == {"told": "described", "found": "result"}
    assert names.select("agreid_plugin/nn/a.py") == {"told": "described"}


def test_a_bad_line_of_a_table_is_named(tmp_path, capsys):
    table = tmp_path / "names.txt"
    table.write_text("told\n")
    assert TOOL["main"](["HEAD", "--names", str(table)]) == 2
    assert "line 1" in capsys.readouterr().err
