"""HTML page about a run: its summary, results, learning curves and pictures of what its model does."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from PIL import Image
from tqdm import tqdm

from agreid_plugin.data.files import require_existing
from agreid_plugin.errors import InputError
from agreid_plugin.evaluation import load_results
from agreid_plugin.evaluation.results import FILE_NAME as RESULTS
from agreid_plugin.evaluation.results import RUN_CARD_FILE, TABLE_NUMBERS, read_run_card
from agreid_plugin.inference.evaluation_sets import load_evaluation_setup
from agreid_plugin.inference.extractor import Extractor
from agreid_plugin.retrieval.result_page import embed_image, render_page
from agreid_plugin.visualize import figures
from agreid_plugin.visualize.charts import HISTORY_FILES as HISTORIES
from agreid_plugin.visualize.charts import draw_curves, read_history
from agreid_plugin.visualize.figures import Subject

CONFIGS = ("config.yaml", "*.py")
WEIGHTS = ("model_best.pth", "best*.pth", "model_final.pth", "epoch_*.pth")
"""Names of a run's files in the order of preference, of either host; the newest of several."""
RUN_FILES = (RUN_CARD_FILE, RESULTS, *HISTORIES)
"""Other files of a run."""
MAX_IMAGES = 8
VERSIONS = ("agreid-plugin", "fastreid", "mmengine", "torch")

Notify = Callable[[str], None]
Part = tuple[str, Callable[[], "Section"]]
"""A title, and the function that builds the section below it."""
TEMPLATE = Path(__file__).with_suffix(".html")
READABLE = 720  # pixels of a picture's width on a small screen


def report_page(
    run: str | Path,
    weights: str | None = None,
    protocol: str = "",
    overrides: Sequence[str] = (),
    device: str | None = None,
    seed: int = 0,
    notify: Notify = lambda _: None,
) -> str:
    """Return an HTML page about a run that needs no other file; what does not apply is left out with a line.

    On a terminal a bar shows the current part.

    Args:
        run: its folder.
        weights: the checkpoint to look at; the run's best or last without one.
        protocol: what the pictures are of; the first without one.
        overrides: `KEY VALUE ...` on top of the run's configuration.
        device: as of `Extractor`.
        seed: of random choices.
        notify: called with a line for each part that is left out.
    """
    folder = require_existing(run)
    config, checkpoint = _find_newest(folder, CONFIGS), weights or _find_newest(folder, WEIGHTS)
    if config is None or not (checkpoint or any(next(folder.glob(name), None) for name in RUN_FILES)):
        raise InputError(
            f"{run} is no run's folder: it has no configuration with a checkpoint, a card or results beside it"
        )
    parts: list[Part] = [
        ("Summary", lambda: _summary(folder, config, checkpoint)),
        ("Results", lambda: _results(folder)),
        ("Training", lambda: _training(folder, protocol)),
    ]
    try:
        parts += _pictures(_subject(config, checkpoint, protocol, overrides, device), folder, config, overrides, seed)
    except InputError as error:
        parts.append(("Pictures", partial(_refuse, error)))
    sections = []
    with tqdm(parts, unit="part", leave=False, disable=None) as bar:
        for title, make in bar:
            bar.set_description(title)
            try:
                sections.append(make())
            except InputError as error:
                notify(f"{title} left out: {error}")
                sections.append(Section(title, f"Left out: {error}"))
    return render_sections(f"Run {folder.resolve().name}", str(config), sections)


def _refuse(error: InputError) -> NoReturn:
    raise error


def _subject(
    config: Path, checkpoint: str | Path | None, protocol: str, overrides: Sequence[str], device: str | None
) -> Subject:
    if checkpoint is None:
        raise InputError(f"{config.parent} has no checkpoint: name one with --weights")
    tested = load_evaluation_setup(config, overrides)
    return Subject(Extractor.from_config(config, checkpoint, device=device, overrides=overrides), tested, protocol)


def _pictures(subject: Subject, folder: Path, config: Path, overrides: Sequence[str], seed: int) -> Iterator[Part]:
    def draw_part(title: str, about: str, make: Callable[[], figures.Rendering]) -> Part:
        return title, lambda: Section(title, about, pictures={title: make().image})

    def before_and_after() -> figures.Rendering:
        before = figures.load_other_features(subject, figures.UNTRAINED, str(config), overrides, None)
        return figures.draw_tsne(subject, {figures.UNTRAINED: before}, seed=seed)

    for order in ("worst", "best", "random"):
        about = f"{order.capitalize()} queries of {subject.protocol}, and what the model ranks first."
        yield draw_part(f"Ranks, {order}", about, lambda order=order: figures.draw_ranks(subject, order, 4, 8, seed))
    yield draw_part(
        "t-SNE", "Test images, near where their features are; before training from random weights.", before_and_after
    )
    yield draw_part(
        "Experts",
        "Which experts are used for the images of which camera.",
        lambda: figures.draw_expert_shares(subject, folder),
    )
    yield draw_part(
        "Graph",
        "The patches that query tokens choose.",
        lambda: figures.draw_graph(subject, subject.examples(MAX_IMAGES // 2, seed)),
    )
    yield draw_part(
        "Attention",
        "Where the last block attends.",
        lambda: figures.draw_attention(subject, subject.examples(MAX_IMAGES, seed)),
    )


def _summary(folder: Path, config: Path, checkpoint: str | Path | None) -> Section:
    card = read_run_card(folder)
    facts = {
        **card.get("setup", {}),
        "configuration": config.name,
        "checkpoint shown": "none" if checkpoint is None else Path(checkpoint).name,
        "datasets": ", ".join(card.get("datasets", {})),
        "synthetic": ", ".join(f"{name} is AG-Synth in its layout" for name in card.get("synthetic", ())),
        "seed": card.get("seed"),
        "devices": ", ".join(card.get("devices", ())),
        "versions": ", ".join(f"{name} {card['versions'][name]}" for name in VERSIONS if name in card["versions"]),
        **_sessions(card.get("sessions", ())),
    }
    rows = [[name.replace("_", " "), _format_value(value)] for name, value in facts.items() if value not in (None, "")]
    return Section("Summary", rows=rows)


def _format_value(value: Any) -> str:
    """Return a value in words; numbers in a list are height and width."""
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


def _sessions(sessions: Sequence[Any]) -> dict[str, Any]:
    sessions = [each for each in sessions if isinstance(each, Mapping)]
    if not sessions:
        return {}
    minutes = sum(each.get("wall_seconds") or 0 for each in sessions) / 60
    return {
        "started": sessions[0].get("started"),
        "outcome": sessions[-1].get("outcome"),
        "took": f"{minutes:.1f} minutes in {len(sessions)} session{'s' if len(sessions) > 1 else ''}",
        "command": shlex.join(map(str, sessions[-1].get("command", ()))),
    }


def _results(folder: Path) -> Section:
    if not (folder / RESULTS).is_file():
        raise InputError(f"{folder} has no {RESULTS}: fastreid eval makes one")
    found = [entry for entries in load_results(folder).values() for entry in entries.values()]
    rows = [
        [entry.protocol, *(f"{entry[name]:.1f}" for name in TABLE_NUMBERS), str(entry.queries), str(entry.gallery)]
        for entry in found
    ]
    return Section("Results", "In percent.", rows, ["protocol", *TABLE_NUMBERS, "queries", "gallery"])


def _training(folder: Path, protocol: str) -> Section:
    lines = read_history(folder)
    if not lines:
        raise InputError(f"{folder} has no history of training: neither metrics.json nor vis_data/scalars.json")
    known = sorted({name.removesuffix("/mAP") for line in lines for name in line if name.endswith("/mAP")})
    shown = next((name for name in known if protocol in (name, name.partition("/")[2])), known[0] if known else "")
    return Section("Training", pictures={"learning curves": draw_curves(lines, folder.resolve().name, shown)})


def _find_newest(folder: Path, names: Sequence[str]) -> Path | None:
    for name in names:
        found = sorted(folder.glob(name), key=lambda path: path.stat().st_mtime)
        if found:
            return found[-1]
    return None


@dataclass(frozen=True)
class Section:
    """A part of the page: a line of words, tables as rows of cells below a header, pictures with what they show."""

    title: str
    about: str = ""
    rows: Sequence[Sequence[str]] = ()
    header: Sequence[str] = ()
    pictures: Mapping[str, Image.Image] = field(default_factory=dict)

    @property
    def anchor(self) -> str:
        """Where a link of the page leads."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


def render_sections(title: str, about: str, sections: Sequence[Section]) -> str:
    """Return the HTML of a page; its pictures are inside."""
    return render_page(
        TEMPLATE,
        title=title,
        about=about,
        sections=sections,
        is_number=lambda cell: cell.replace(".", "", 1).isdigit(),
        readable_width=READABLE,
        source=lambda image: embed_image(image, "PNG"),
    )
