"""Report of a captioning run: counts of captions, remarks and rejected answers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from tabulate import tabulate

from agreid_plugin.captioning.answers import FLAGS
from agreid_plugin.captioning.images import Subject
from agreid_plugin.captioning.journal import Caption
from agreid_plugin.errors import printable

_TITLES = {
    "viewpoint": "with words for the viewpoint",
    "background": "with words for the background",
    "contradiction": "contradicting attributes",
    "sentences": "of more than one sentence",
    "foreign": "with letters not Latin",
}


@dataclass(frozen=True)
class Report:
    """Counts of a run.

    Attributes:
        images: described at least once.
        identities: of those images.
        captions: that can be used.
        mean_words: of a caption.
        kinds: captions by strategy.
        retried: questions asked twice.
        repeated: captions whose text is also one of another identity.
        flags: kind of remark -> captions with it.
        empty: empty answers, also the second time.
        kept_out: reason -> answers that could not be used.
        left_out: images without any caption, with the reason.
        remarks: one a flagged, repeated or kept-out caption: its image, text and findings.
    """

    images: int
    identities: int
    captions: int
    mean_words: float
    kinds: dict[str, int]
    retried: int
    repeated: int
    flags: dict[str, int]
    empty: int
    kept_out: dict[str, int]
    left_out: dict[str, str]
    remarks: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the report as a table."""
        rows = [
            ("images", self.images),
            ("identities", self.identities),
            ("captions", self.captions),
            *((f"captions by strategy {kind}", count) for kind, count in self.kinds.items()),
            ("mean words", f"{self.mean_words:.1f}"),
            *((f"captions {_TITLES[name]}", self.flags[name]) for name in FLAGS),
            ("captions repeated on another identity", self.repeated),
            ("questions asked twice", self.retried),
            ("answers kept out", sum(self.kept_out.values())),
            ("answers kept out: empty", self.empty),
            *((f"answers kept out: {reason}", count) for reason, count in self.kept_out.items() if reason != "empty"),
            ("images left out", len(self.left_out)),
        ]
        return tabulate(rows, tablefmt="plain", colalign=("left", "right"), disable_numparse=True).splitlines()


def build_report(subjects: Sequence[Subject], captions: Iterable[Caption], left_out: Mapping[str, str]) -> Report:
    """Build the report of a run.

    Args:
        subjects: the images.
        captions: all answers about them.
        left_out: images without a question, with the reason.
    """
    captions = list(captions)
    good = [caption for caption in captions if not caption.problem]
    people = {subject.file_path: subject.pid for subject in subjects}
    repeated = _find_repeated(good, people)
    described = {caption.file_path for caption in good}
    reasons = {c.file_path: c.problem for c in captions if c.file_path not in described}
    return Report(
        images=len(described),
        identities=len({people[path] for path in described}),
        captions=len(good),
        mean_words=mean(len(caption.text.split()) for caption in good) if good else 0.0,
        kinds=dict(sorted(Counter(caption.kind for caption in good).items())),
        retried=sum(caption.retried for caption in captions),
        repeated=len(repeated),
        flags={name: sum(name in caption.flags for caption in good) for name in FLAGS},
        empty=sum(caption.problem == "empty" for caption in captions),
        kept_out=_count_reasons(captions),
        left_out={printable(path): reason for path, reason in {**left_out, **reasons}.items()},
        remarks=[_build_remark(c, c in repeated) for c in captions if c.problem or c.flags or c in repeated],
    )


def _find_repeated(good: Sequence[Caption], people: Mapping[str, int]) -> list[Caption]:
    """Return the captions whose text is on several identities."""
    owners: dict[str, set[int]] = defaultdict(set)
    for caption in good:
        owners[caption.text.lower()].add(people[caption.file_path])
    return [caption for caption in good if len(owners[caption.text.lower()]) > 1]


def _count_reasons(captions: Iterable[Caption]) -> dict[str, int]:
    # What stands behind the colon differs from one to the next.
    counts = Counter(caption.problem.split(":")[0] for caption in captions if caption.problem)
    return dict(counts.most_common())


def _build_remark(caption: Caption, repeated: bool) -> dict[str, Any]:
    found = {name: list(values) for name, values in caption.flags.items()}
    kept_out = {"kept_out": caption.problem} if caption.problem else {}
    return {
        "file_path": caption.file_path,
        "kind": caption.kind,
        "text": caption.text,
        **kept_out,
        **found,
        **({"repeated": True} if repeated else {}),
    }
