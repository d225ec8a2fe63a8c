"""Every page of the repository: its links lead somewhere, and its commands are ones that the program takes."""

import re
import subprocess
from pathlib import Path

import pytest
from bench.__main__ import build_parser as build_benchmarks
from pages import ROOT, Block, blocks

from agreid_plugin.cli.main import build_parser
from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config import loading as of_fastreid
from agreid_plugin.hosts.mmengine.config import loading as of_mmengine

LISTED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True
)
PAGES = LISTED.stdout.split()
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")
ADDRESS = re.compile(r"https?://[\w-]+(\.[\w-]+)+(:\d+)?([/?#][^\s<>\"`{}|\\^\[\]]*)?")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh")
FOREIGN = {"pip", "python", "pytest", "ruff", "mypy", "sphinx-build"}
OF_REPOSITORY = ("projects/", "configs/", "tools/", "tests/", ".ci/")
OF_PLUGINS = "projects/Example/"  # its keys come with the plugin that it installs


def anchors(page: Path) -> set[str]:
    """The names that GitHub and MyST give a page's headings."""
    headings = HEADING.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def command_of(words: list[str]) -> list[str]:
    """A line's words without what only starts the program: tools, launchers, variables."""
    while words and (words[0] in ("tools/run", "nice") or re.fullmatch(r"[A-Z_]+=\S*", words[0])):
        words = words[1:]
    if words[:1] in (["torchrun"], ["srun"]):
        start = words.index("fastreid") if "fastreid" in words else words.index("agreid_plugin")
        words = ["fastreid", *words[start + 1 :]]
    return words


def lines_of(page: str) -> list[list[str]]:
    """The commands of a page's blocks, variables of earlier lines put in."""
    found = []
    for block in blocks(f"../{page}"):
        if block.kind in SHELL and not block.file:
            found += [command_of(words) for words in with_variables(block)]
    return [words for words in found if words]


def with_variables(block: Block) -> list[list[str]]:
    """The commands of a block whose first line may be `run=logs/x; model="--config $run/config.yaml"`."""
    text, lines = block.text.replace("\\\n", " "), []
    values: dict[str, str] = {}
    for line in text.splitlines():
        for name, value in values.items():
            line = line.replace(f"${name}", value)
        assigned = re.findall(r"""(?:^|; )(\w+)=("[^"]*"|\S+?)(?=;|$)""", line)
        for name, value in assigned:
            values[name] = re.sub(r"\$(\w+)", lambda found: values[found[1]], value.strip('"'))
        if not assigned:
            lines.append(line)
    return Block(block.file, block.kind, "\n".join(lines)).commands()


def test_there_are_pages():
    assert LISTED.returncode == 0
    assert {"README.md", "CONTRIBUTING.md", "projects/ViSA/README.md", "docs/index.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.exists(), f"{page} links to {target}, which does not exist"
        assert not anchor or anchor in anchors(there), f"{page} links to {target}, but there is no such heading"


@pytest.mark.parametrize("page", PAGES)
def test_links_have_a_text(page):
    """Sphinx puts in the title of the page that is linked to; GitHub shows nothing."""
    text = CODE.sub("code", (ROOT / page).read_text(encoding="utf-8"))
    assert "[](" not in text.replace("![](", ""), f"{page} has a link without a text"


@pytest.mark.parametrize("page", PAGES)
def test_addresses_are_well_formed(page):
    for target in re.findall(r"\]\((https?:[^)]*)\)", CODE.sub("code", (ROOT / page).read_text(encoding="utf-8"))):
        assert ADDRESS.fullmatch(target), f"{page} links to {target!r}, which is no address"


@pytest.mark.parametrize("address", ["https://", "https:/github.com/a", "https://github", "https://git hub.com/a"])
def test_what_is_no_address_is_found(address):
    assert not ADDRESS.fullmatch(address)


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_ones_that_the_program_takes(page):
    for words in lines_of(page):
        program, *arguments = words
        if program == "fastreid":
            check(page, arguments)
        elif words[:2] == ["python", "tools/bench"]:
            build_benchmarks().parse_args(words[2:])
        elif program.startswith(OF_REPOSITORY):
            assert (ROOT / program).exists(), f"{page}: {program} does not exist"
        else:
            assert program in FOREIGN, f"{page}: {' '.join(words)}"


def made_by(page: str) -> set[str]:
    """The files that a page tells to write; following it is a test of its own."""
    return {block.file for block in blocks(f"../{page}")} if page in PAGES else set()


def check(page: str, arguments: list[str]) -> None:
    """Parse a command, and read the configuration of this repository that it names, with its overrides."""
    try:
        args = build_parser().parse_args(arguments)
        config = getattr(args, "config_file", None) or ""
        if config.startswith(OF_REPOSITORY) and not config.startswith(OF_PLUGINS) and config not in made_by(page):
            host = of_mmengine if config.endswith(".py") else of_fastreid
            host.load_config(ROOT / config, getattr(args, "overrides", []))
        file = getattr(args, "file", None)
        assert not file or not str(file).startswith(OF_REPOSITORY) or (ROOT / str(file)).exists(), file
    except SystemExit:  # of --help: what is wrong is an InputError
        return
    except InputError as error:
        pytest.fail(f"{page}: fastreid {' '.join(arguments)}: {error}")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('run=logs/x; model="--config $run/config.yaml"\nfastreid eval $model', ["--config", "logs/x/config.yaml"]),
        ("torchrun --nproc-per-node 4 -m agreid_plugin eval --config a.yml", ["--config", "a.yml"]),
        ("srun --ntasks 2 fastreid eval --config a.yml  # on a cluster", ["--config", "a.yml"]),
        ("tools/run fastreid eval \\\n  --config a.yml", ["--config", "a.yml"]),
    ],
)
def test_a_command_is_found_behind_what_starts_it(line, found):
    (words,) = [command_of(words) for words in with_variables(Block("", "sh", line + "\n"))]
    assert words == ["fastreid", "eval", *found]


def test_wrong_commands_are_found():
    for arguments in (
        ["train", "--confg", "a.yml"],
        ["train", "--config", "projects/ViSA/cargo.yml", "MODEL.VISA.TOKNS", "3"],
        ["train", "--config", "projects/ViSA/carg.yml"],
    ):
        with pytest.raises(pytest.fail.Exception, match="a page: fastreid train"):
            check("a page", arguments)
