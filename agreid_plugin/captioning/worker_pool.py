"""Thread pool for caption questions with one writer, which ends gracefully on Ctrl-C and when the endpoint fails."""

from __future__ import annotations

import queue
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tqdm import tqdm

from agreid_plugin.captioning.answers import Rules, Verdict, check_answer, write_hint
from agreid_plugin.captioning.backends import Backend
from agreid_plugin.captioning.endpoint import CancelledError, EndpointError, QuestionRefusedError
from agreid_plugin.captioning.images import Subject
from agreid_plugin.captioning.journal import Caption, Journal
from agreid_plugin.captioning.prompts import Question
from agreid_plugin.errors import InputError

REFUSED_PREFIX = "refused: "
MAX_REFUSED = 3  # questions refused at the start before the settings must be wrong


class Interrupted(KeyboardInterrupt):
    """Ctrl-C was pressed; the message says what is kept and how to continue."""


@dataclass(frozen=True)
class Job:
    """Open questions about one image, and the captions that it has."""

    subject: Subject
    asks: tuple[Question, ...]
    others: tuple[str, ...]


class CaptionWorkers:
    """Worker threads that ask; the thread that runs them is the only one to write.

    Args:
        backend: gives the answers.
        rules: limits of captions.
        journal: keeps the captions.
        stop: ends the run when set.
    """

    def __init__(self, backend: Backend, rules: Rules, journal: Journal, stop: threading.Event):
        self.backend, self.rules, self.journal, self.stop = backend, rules, journal, stop
        self._results: queue.Queue[Caption | Exception | None] = queue.Queue()
        self._trusted = any(not caption.problem for caption in journal.done.values())
        self._refused: list[Caption] = []  # before the endpoint took any question

    def run(self, jobs: Sequence[Job], concurrency: int, progress: bool) -> None:
        """Do all jobs; ends early when stopped or when the endpoint fails, with every answer kept."""
        waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        count = min(concurrency, len(jobs))
        total = sum(len(job.asks) for job in jobs)
        with _stop_on_interrupt(self.stop) as pressed:
            for _ in range(count):
                threading.Thread(target=self._work, args=(waiting,), daemon=True).start()
            bar = tqdm(total=total, desc="captions", unit="caption", disable=not progress)
            try:
                with bar:
                    error = self._collect(count, bar)
            except KeyboardInterrupt:
                raise Interrupted(self._kept("interrupted")) from None
        if pressed.is_set():
            raise Interrupted(self._kept("interrupted"))
        if error is not None:
            raise InputError(self._kept(str(error))) if isinstance(error, InputError) else error

    def _kept(self, why: str) -> str:
        count = len(self.journal.done)
        if not count:
            return why
        return f"{why}; {count} captions are kept in {self.journal.path}, the same command continues from there"

    def _collect(self, workers: int, bar: tqdm) -> Exception | None:
        """Write the threads' results until all have ended; return the first error."""
        error = None
        while workers:
            found = self._results.get()
            if found is None:
                workers -= 1
            elif isinstance(found, Caption):
                bar.update()
                error = error or self._keep(found)
            else:
                error = error or found
            if error:
                self.stop.set()
        for caption in () if self.stop.is_set() else self._refused:
            self.journal.add(caption)
        return error

    def _keep(self, caption: Caption) -> Exception | None:
        """Write a caption; a refusal before any success is held back, as the settings may be the cause."""
        if caption.problem.startswith(REFUSED_PREFIX) and not self._trusted:
            self._refused.append(caption)
            if len(self._refused) >= MAX_REFUSED:
                reason = caption.problem.removeprefix(REFUSED_PREFIX)
                return EndpointError(f"the endpoint refuses every question, {reason}")
            return None
        for earlier in (*self._refused, caption):
            self.journal.add(earlier)
        self._refused.clear()
        return None

    def _work(self, waiting: queue.SimpleQueue[Job]) -> None:
        try:
            while not self.stop.is_set():
                for caption in self._describe(waiting.get_nowait()):
                    self._results.put(caption)
        except (queue.Empty, CancelledError):
            pass  # nothing left to do
        except Exception as error:  # the main thread reports it
            self._results.put(error)
        finally:
            self._results.put(None)

    def _describe(self, job: Job) -> Iterator[Caption]:
        others = list(job.others)
        for ask in job.asks:
            if self.stop.is_set():
                return
            verdict, retried = self._ask(job.subject, ask, others)
            if not verdict.problem:
                others.append(verdict.text)
            digest = ask.digest(job.subject.attributes)
            yield Caption(
                job.subject.file_path, ask.slot, ask.kind, digest, verdict.text, verdict.problem, verdict.flags, retried
            )

    def _ask(self, subject: Subject, ask: Question, others: Sequence[str]) -> tuple[Verdict, bool]:
        """Ask once, and once more with a hint if the answer cannot be used."""
        verdict = self._try(subject, ask, others)
        if not verdict.problem or verdict.problem.startswith(REFUSED_PREFIX):
            return verdict, False
        return self._try(subject, ask, others, write_hint(verdict, self.rules)), True

    def _try(self, subject: Subject, ask: Question, others: Sequence[str], advice: str = "") -> Verdict:
        try:
            answer = self.backend.answer(subject, ask, others, advice)
        except QuestionRefusedError as refusal:
            return Verdict("", f"{REFUSED_PREFIX}{refusal}")
        self._trusted = True
        return check_answer(answer.text, ask.kind, subject.attributes, others, self.rules, answer.cut)


@contextmanager
def _stop_on_interrupt(stop: threading.Event) -> Iterator[threading.Event]:
    """Let the first Ctrl-C end the run gracefully and the second one at once; yields whether one was pressed."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return

    def on_press(*_: object) -> None:
        pressed.set()
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stderr.write("\nwaiting for the answers on their way; Ctrl-C again drops them\n")

    before = signal.signal(signal.SIGINT, on_press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
