"""Captioning run: asks every question once, keeps every answer, and writes the annotation file at the end."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agreid_plugin.captioning.answers import Rules
from agreid_plugin.captioning.backends import Backend
from agreid_plugin.captioning.images import Subject
from agreid_plugin.captioning.journal import Caption, Journal, write_text
from agreid_plugin.captioning.prompts import Question, build_questions
from agreid_plugin.captioning.report import Report, build_report
from agreid_plugin.captioning.worker_pool import CaptionWorkers, Job
from agreid_plugin.errors import InputError


def sidecar_path(out: Path, ending: str) -> Path:
    """Return the file beside an output, for example `captions.json.report.json`."""
    return out.with_name(f"{out.name}.{ending}")


def refuse_existing(out: Path) -> None:
    """Refuse an output that exists: captions cost money and are not overwritten by accident."""
    if out.exists():
        raise InputError(f"{out} exists and is not overwritten: name another --out, or move it away")


def plan_questions(subjects: Sequence[Subject], strategy: str, seed: int) -> dict[str, tuple[Question, ...]]:
    """Return the questions about each image, by `file_path`."""
    return {each.file_path: build_questions(each.file_path, each.attributes, strategy, seed) for each in subjects}


def write_prompts(subjects: Sequence[Subject], out: Path, strategy: str = "paper", seed: int = 0) -> Path:
    """Write the questions, a JSON object a line, without asking them."""
    lines = [
        json.dumps({"file_path": path, "slot": ask.slot, "strategy": ask.kind, "prompt": ask.text}, ensure_ascii=False)
        for path, questions in plan_questions(subjects, strategy, seed).items()
        for ask in questions
    ]
    target = sidecar_path(out, "prompts.jsonl")
    write_text(target, "".join(f"{line}\n" for line in lines))
    return target


def write_captions(
    subjects: Sequence[Subject],
    backend: Backend,
    out: Path,
    *,
    strategy: str = "paper",
    seed: int = 0,
    rules: Rules | None = None,
    concurrency: int = 1,
    left_out: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    progress: bool = False,
) -> Report:
    """Describe images and write TAG-PEDES's annotation file of them.

    Args:
        subjects: the images.
        backend: gives the answers.
        out: the annotation file. Progress is kept in `<out>.partial.jsonl` until all is done, numbers are written to
            `<out>.report.json`.
        strategy: one of `prompts.STRATEGIES`.
        seed: of templates and wordings.
        rules: limits of captions.
        concurrency: questions asked at a time.
        left_out: images that are not among the subjects, with the reason, for the report.
        stop: the event the backend listens to, so that no thread sleeps on after Ctrl-C.
        progress: show a bar.

    Raises:
        InputError: the endpoint cannot be used; earlier captions are kept.
        Interrupted: Ctrl-C was pressed; earlier captions are kept.
    """
    refuse_existing(out)
    if concurrency < 1:
        raise InputError(f"concurrency is {concurrency}; it has to be 1 or more")
    rules = rules or Rules()
    questions = plan_questions(subjects, strategy, seed)
    with Journal(sidecar_path(out, "partial.jsonl"), _collect_settings(backend, strategy, seed, rules)) as journal:
        jobs = _list_jobs(subjects, questions, journal)
        CaptionWorkers(backend, rules, journal, stop or threading.Event()).run(jobs, concurrency, progress)
        captions = [journal.done[path, ask.slot] for path, asked in questions.items() for ask in asked]
    report = build_report(subjects, captions, left_out or {})
    if not report.captions:
        raise InputError(
            f"none of the {len(captions)} answers can be used, the first is {captions[0].problem!r}; see "
            f"{journal.path}, and delete it to ask again"
        )
    write_text(sidecar_path(out, "report.json"), json.dumps(report.as_dict(), indent=1, ensure_ascii=False) + "\n")
    refuse_existing(out)
    write_text(out, json.dumps(build_annotations(subjects, captions), indent=1, ensure_ascii=False) + "\n")
    journal.path.unlink()
    return report


def build_annotations(subjects: Sequence[Subject], captions: Sequence[Caption]) -> list[dict[str, Any]]:
    """Return TAG-PEDES's entries; images without a caption have none, an unknown view no `cam_id`."""
    texts: dict[str, list[str]] = {}
    for caption in captions:
        if not caption.problem:
            texts.setdefault(caption.file_path, []).append(caption.text)
    return [
        {
            "file_path": subject.file_path,
            "id": subject.pid,
            "captions": texts[subject.file_path],
            **({} if subject.view is None else {"cam_id": int(subject.view)}),
        }
        for subject in subjects
        if subject.file_path in texts
    ]


def _collect_settings(backend: Backend, strategy: str, seed: int, rules: Rules) -> dict[str, Any]:
    words = {"min words": rules.fewest, "max words": rules.most, "strict": rules.strict}
    return {**backend.settings, "strategy": strategy, "seed": seed, **words}


def _list_jobs(
    subjects: Sequence[Subject], questions: Mapping[str, tuple[Question, ...]], journal: Journal
) -> list[Job]:
    jobs = []
    for subject in subjects:
        done = {ask: journal.done.get((subject.file_path, ask.slot)) for ask in questions[subject.file_path]}
        for ask, caption in done.items():
            if caption and caption.asked != ask.digest(subject.attributes):
                raise InputError(
                    f"{journal.path} was begun with other attributes or templates of {subject.file_path}: use the same "
                    "to continue, or delete it to start again"
                )
        left = tuple(ask for ask, caption in done.items() if caption is None)
        others = tuple(caption.text for caption in done.values() if caption and not caption.problem)
        jobs += [Job(subject, left, others)] if left else []
    return jobs
