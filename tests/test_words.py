"""The words of the house: names and module docstrings that a newcomer can search for (CONTRIBUTING, "Words")."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "agreid_plugin"
NOT_IN_NAMES = {
    *("told", "said", "tell", "tells", "says", "settled", "accused", "looking", "meeting", "tested", "surroundings"),
    *("numbered", "whole", "own", "untold", "leavings", "strangers"),
}
"""Words of a private language: each has a field word that people search for."""
RIDDLE = re.compile(r"^(What|Where|Who|How|Those|Whoever)\b|\b(nobody|somebody|whoever)\b|\b(tells?|told|said) of\b")
"""First lines of a module that describe a thing instead of naming it."""


def list_names(source: str) -> set[str]:
    """Return the public names that a file defines: functions, classes, methods, constants."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name) and target.id.isupper()}
    return {name for name in names if not name.startswith("_")}


def is_private_language(name: str) -> bool:
    """Whether a name has a word that may not come back, or says `x_of` and `of_x` where a verb should stand."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
    return bool(NOT_IN_NAMES & set(words)) or words[-1] == "of" or words[0] == "of"


@pytest.fixture(scope="module")
def files() -> list[Path]:
    found = sorted(PACKAGE.rglob("*.py"))
    assert len(found) > 200
    return found


def test_names_are_field_words(files):
    found = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in files
        for name in {path.stem, *list_names(path.read_text(encoding="utf-8"))}
        if is_private_language(name)
    }
    assert not found


def test_a_module_says_what_it_is_in_words_to_search_for(files):
    first_lines = {path: (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0] for path in files}
    assert not {str(path.relative_to(PACKAGE)): line for path, line in first_lines.items() if RIDDLE.search(line)}
    assert not [path for path, line in first_lines.items() if not line]


@pytest.mark.parametrize(
    "source",
    ["def told_views(): ...", "class WholeFile: ...", "class A:\n    def feature_of(self): ...", "OF_TOOLS = 1"],
)
def test_a_private_word_is_found(source):
    assert any(map(is_private_language, list_names(source)))


@pytest.mark.parametrize(
    "source", ["def download(): ...", "class Known: ...", "def _told(): ...", "def profile(): ..."]
)
def test_field_words_pass(source):
    assert not any(map(is_private_language, list_names(source)))
