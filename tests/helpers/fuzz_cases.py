"""Damaged files for the tests of tests/fuzz, and what has to hold when they are read.

Damage is drawn by hypothesis. As the suite runs them, the tests try about 300 cases in all, always the same ones. More,
others each time, and the seed that repeats them:

    tools/fuzz                      # 2,000 cases
    tools/fuzz 20000 --seed 7       # 20,000 cases, those of seed 7

which sets AGREID_FUZZ_CASES, the number of cases in all, and AGREID_FUZZ_SEED, and runs `pytest tests/fuzz`.
"""

from __future__ import annotations

import json
import math
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import reduce
from itertools import pairwise
from operator import getitem
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from agreid_plugin.errors import InputError

set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "hypothesis")  # or it makes a folder in the repository

CASES = int(os.environ.get("AGREID_FUZZ_CASES", "300"))
LONGEST = 10.0  # seconds of computing for a case; far more than any takes
WAITING = 12  # times as many by the clock, as others may be using the machine

ODD_NUMBERS = [True, False, 0, 1, -1, 7, 2**31, 2**63 - 1, 2**63, -(2**70), 10**40, 0.5, 1e308, math.inf, math.nan]
ODD_TEXTS = [
    *("", " ", "1", "-1", "--5", "\u00b2", "0" * 5000, "9" * 5000, "a" * 70_000, "unknown", "null"),
    *("a\nb", "a\x00b", "\x1b[2J", "a\u2028b", "\u0661\u0662", "\U0001f600", "\ud800", "$(id)", "%s{}{0}"),
    *("/etc/passwd", "../../x.jpg", "images/../../x.jpg", "C:\\x.jpg", "c:/x.jpg", "\\\\host\\x.jpg", "~/x", ".", ".."),
]
ODD = [None, [], {}, [[]], [None], {"": {}}, [1, "a"], {"a": [{}]}, *ODD_NUMBERS, *ODD_TEXTS]


def fuzz(share: float = 1.0) -> Callable[[Any], Any]:
    """Run a hypothesis test with a share of the cases."""
    given_seed = os.environ.get("AGREID_FUZZ_SEED")
    plan = settings(
        max_examples=max(1, math.ceil(CASES * share)),
        derandomize=given_seed is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return (lambda test: plan(test)) if given_seed is None else (lambda test: seed(int(given_seed))(plan(test)))


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail what does not come to an end: after so many seconds of computing, or many more of waiting."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"not done in {seconds} s")

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, seconds), signal.SIGALRM: (signal.ITIMER_REAL, WAITING * seconds)}
    before = {number: signal.signal(number, ring) for number in timers}
    for timer, limit in timers.values():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def refusal(read: Callable[[], Any], *names: str) -> str:
    """Read, and return the line of a refusal, which says one of the names, or nothing when all went well."""
    with within(LONGEST):
        try:
            read()
        except InputError as error:
            line = str(error)
        else:
            return ""
    assert len(line.splitlines()) == 1, line
    assert len(line) < 10_000, line
    assert any(name in line for name in names), line
    return line


@st.composite
def damaged(draw: st.DrawFn, original: bytes) -> bytes:
    """A file that was cut, flipped, filled, or written in another encoding."""
    how = draw(st.sampled_from(["cut", "flip", "flip", "insert", "remove", "repeat", "encode", "empty"]))
    place = draw(st.integers(0, len(original)))
    length = draw(st.integers(1, 64))
    if how == "cut":
        return original[:place]
    if how == "flip":
        return _flipped(original, draw(st.lists(st.integers(0, 8 * len(original) - 1), min_size=1, max_size=8)))
    if how == "insert":
        odd = st.sampled_from([b"\x00", b"\xef\xbb\xbf", b"\xff", b"\n", b"\r", b'"', b",", b"\xed\xa0\x80", b"\x1a"])
        return original[:place] + draw(odd | st.binary(max_size=64)) + original[place:]
    if how == "remove":
        return original[:place] + original[place + length :]
    if how == "repeat":
        return original[:place] + original[max(0, place - length) :]
    if how == "encode":
        return draw(st.sampled_from(["utf-16", "utf-32", "utf-8-sig", "cp037"]).map(original.decode("latin-1").encode))
    return draw(st.sampled_from([b"", b"\x00", b"\xef\xbb\xbf", b"\n", b" " * 100]))


def _flipped(original: bytes, bits: list[int]) -> bytes:
    content = bytearray(original)
    for bit in bits:
        content[bit // 8] ^= 1 << bit % 8
    return bytes(content)


@st.composite
def changed(draw: st.DrawFn, content: Any) -> Any:
    """Plain data of which one part, at any depth, is missing, has another name, is there twice or is something else."""
    *parents, last = draw(st.sampled_from(list(_places(content))))
    if not parents:
        return draw(st.sampled_from(ODD))
    copy = deepcopy(content)
    holder = reduce(getitem, parents[1:], copy)
    how = draw(st.sampled_from(["replace", "replace", "replace", "replace", "remove", "rename", "add"]))
    if how == "replace":
        holder[last] = draw(st.sampled_from(ODD))
    elif how == "remove":
        del holder[last]
    elif isinstance(holder, list):
        holder.append(holder[last] if how == "rename" else draw(st.sampled_from(ODD)))
    else:
        name = draw(st.sampled_from(ODD_TEXTS))
        holder[name] = holder.pop(last) if how == "rename" else draw(st.sampled_from(ODD))
    return copy


def _places(content: Any, place: tuple = (None,)) -> Iterator[tuple]:
    """Yield where each part is: the keys that lead there, from nowhere."""
    yield place
    inside = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in inside:
        yield from _places(value, (*place, key))


def damaged_json(original: bytes) -> st.SearchStrategy[bytes]:
    """A JSON file that is damaged, says something odd, or is odd as JSON."""
    said = changed(json.loads(original)).map(lambda content: json.dumps(content).encode())
    # Few as they are, they are tried in every run.
    odd = [b"[" * 60_000 + b"]" * 60_000, b'{"a":' * 60_000, b"9" * 5000, b'{"a": 1, "a": 2}', _key_twice(original)]
    return st.sampled_from(odd) | damaged(original) | said | said


def _key_twice(original: bytes) -> bytes:
    place = original.index(b"{") + 1
    end = original.index(b":", place)
    return original[:place] + original[place:end] + b": 0, " + original[place:]


def billion_laughs(names: str) -> str:
    """YAML of lists that hold the list before nine times: short to write down, endless to spell out."""
    lists = (f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise(names))
    return f"{names[0]}: &{names[0]} [x, x]\n" + "".join(lists)


def damaged_yaml(original: bytes) -> st.SearchStrategy[bytes]:
    """A YAML file that is damaged, says something odd, or is odd as YAML."""
    said = changed(yaml.safe_load(original)).map(lambda content: yaml.safe_dump(content).encode("utf-8", "replace"))
    laughs = billion_laughs("abcdefghi")
    odd = [
        *(b"[" * 60_000, b"- " * 60_000, b"Mine: {A: &a {query: *a, source: me}}", b"&a [*a]"),
        b"Mine: {A: {source: me}, A: {source: you}}",
        *(b"Mine: 2024-99-99", b"? [a]\n: b", b"Mine: !!python/object/apply:os.system [exit 1]", b"Mine: {<<: 1}"),
        *(laughs.encode(), f"{laughs}Mine: {{A: *i, B: {{source: me, hide: *i}}}}".encode()),
    ]
    return st.sampled_from(odd) | damaged(original) | said | said
