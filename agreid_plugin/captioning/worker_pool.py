"""Several threads asking at a time; one writes down. Ends gently on Ctrl-C and when the endpoint fails."""

from __future__ import annotations

import queue
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tqdm import tqdm

from agreid_plugin.captioning.answers import Rules, Verdict, hint, judge
from agreid_plugin.captioning.backends import Backend
from agreid_plugin.captioning.endpoint import EndpointError, GaveUpWaiting, Refused
from agreid_plugin.captioning.images import Subject
from agreid_plugin.captioning.journal import Caption, Journal
from agreid_plugin.captioning.prompts import Ask
from agreid_plugin.errors import InputError

REFUSED = "refused: "
MOST_REFUSED = 3  # questions refused at the start before the settings must be wrong


class Interrupted(KeyboardInterrupt):
    """Someone pressed Ctrl-C; the message says what is kept and how to go on."""


@dataclass(frozen=True)
class Job:
    """The questions about one image that nobody has answered yet, and the captions it has."""

    subject: Subject
    asks: tuple[Ask, ...]
    said: tuple[str, ...]


class Crew:
    """Threads that ask, and the one that runs it, which alone writes down.

    Args:
        backend: who answers.
        rules: what captions have to keep to.
        journal: where they are written down.
        stop: ends the run when set.
    """

    def __init__(self, backend: Backend, rules: Rules, journal: Journal, stop: threading.Event):
        self.backend, self.rules, self.journal, self.stop = backend, rules, journal, stop
        self._results: queue.Queue[Caption | Exception | None] = queue.Queue()
        self._trusted = any(not caption.problem for caption in journal.done.values())
        self._refused: list[Caption] = []  # before the endpoint took any question

    def run(self, jobs: Sequence[Job], concurrency: int, progress: bool) -> None:
        """Do all jobs; ends early when stopped or when the endpoint fails, with everything written down."""
        waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        count = min(concurrency, len(jobs))
        total = sum(len(job.asks) for job in jobs)
        with _ctrl_c_sets(self.stop) as pressed:
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
        """Write down what the threads find until all have ended; return the first error."""
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
        """Write a caption down; a refusal before any success is held back, as it may be the settings, not the image."""
        if caption.problem.startswith(REFUSED) and not self._trusted:
            self._refused.append(caption)
            if len(self._refused) >= MOST_REFUSED:
                return EndpointError(f"the endpoint refuses every question, {caption.problem.removeprefix(REFUSED)}")
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
        except (queue.Empty, GaveUpWaiting):
            pass  # nothing left to do
        except Exception as error:  # the main thread tells it
            self._results.put(error)
        finally:
            self._results.put(None)

    def _describe(self, job: Job) -> Iterator[Caption]:
        said = list(job.said)
        for ask in job.asks:
            if self.stop.is_set():
                return
            verdict, retried = self._ask(job.subject, ask, said)
            if not verdict.problem:
                said.append(verdict.text)
            digest = ask.digest(job.subject.attributes)
            yield Caption(
                job.subject.file_path, ask.slot, ask.kind, digest, verdict.text, verdict.problem, verdict.flags, retried
            )

    def _ask(self, subject: Subject, ask: Ask, said: Sequence[str]) -> tuple[Verdict, bool]:
        """Ask once, and once more with a hint if the answer cannot be used."""
        verdict = self._try(subject, ask, said)
        if not verdict.problem or verdict.problem.startswith(REFUSED):
            return verdict, False
        return self._try(subject, ask, said, hint(verdict, self.rules)), True

    def _try(self, subject: Subject, ask: Ask, said: Sequence[str], advice: str = "") -> Verdict:
        try:
            answer = self.backend.answer(subject, ask, said, advice)
        except Refused as refusal:
            return Verdict("", f"{REFUSED}{refusal}")
        self._trusted = True
        return judge(answer.text, ask.kind, subject.attributes, said, self.rules, answer.cut)


@contextmanager
def _ctrl_c_sets(stop: threading.Event) -> Iterator[threading.Event]:
    """Let the first Ctrl-C end the run gently and the second one at once; yields whether one was pressed."""
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
