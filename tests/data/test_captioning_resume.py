"""Runs that stop: nothing is lost, nothing asked twice, nothing mixed up."""

import json
import os
import signal
import threading
import time

import pytest
import trees
from caption_server import numbered, press_ctrl_c, serve
from caption_subjects import backend, sidecar, with_file

from agreid_plugin.captioning import AttributeBackend, Interrupted, Rules, write_captions
from agreid_plugin.errors import InputError

pytest_plugins = ("caption_fixtures",)
pytestmark = pytest.mark.usefixtures("without_proxy")


def test_ctrl_c_keeps_what_is_done_and_nothing_is_asked_again(caption_subjects, captions_out, capfd):
    def reply(number, body):
        if number == 5:
            press_ctrl_c()  # the answers on their way still count
        return numbered(number, body)

    before = signal.getsignal(signal.SIGINT)
    with serve(reply) as model:
        with pytest.raises(Interrupted) as stopped:
            write_captions(caption_subjects, backend(model), captions_out, concurrency=2)
        assert signal.getsignal(signal.SIGINT) is before
        first = len(model.requests)
        assert 5 <= first < 12
        partial = sidecar(captions_out, "partial.jsonl")
        assert f"interrupted; {first} captions are kept in {partial}" in str(stopped.value)
        assert "the same command continues" in str(stopped.value)
        assert "Ctrl-C again" in capfd.readouterr().err
        assert not captions_out.exists()
        write_captions(caption_subjects, backend(model), captions_out, concurrency=2)
    assert len(model.requests) == 12
    assert len(set(model.questions)) == 12
    assert [len(entry["captions"]) for entry in json.loads(captions_out.read_text())] == [2] * 6


def test_a_second_ctrl_c_does_not_wait(caption_subjects, captions_out):
    asleep = threading.Event()

    def reply(number, body):
        if number == 3:
            press_ctrl_c()
            os.kill(os.getpid(), signal.SIGINT)
            asleep.wait(60)
        return numbered(number, body)

    start = time.monotonic()
    with serve(reply) as model:
        with pytest.raises(Interrupted, match="2 captions are kept"):
            write_captions(caption_subjects, backend(model), captions_out)
        assert time.monotonic() - start < 30
        asleep.set()
        time.sleep(0.05)
        write_captions(caption_subjects, backend(model), captions_out)
    assert len(model.requests) in (13, 14)  # the one that was dropped is asked again, or the next one, too


def test_an_endpoint_that_fails_keeps_what_is_done(caption_subjects, captions_out):
    kept = pytest.raises(InputError, match=r"HTTP 500: down; 3 captions are kept in .*partial\.jsonl")
    with serve(lambda number, body: numbered(number, body) if number <= 3 else (500, "down")) as model, kept:
        write_captions(caption_subjects, backend(model), captions_out)
    with serve() as model:  # on another port
        write_captions(caption_subjects, backend(model), captions_out)
    assert len(model.requests) == 9


def test_a_killed_run_goes_on_after_its_last_whole_line(caption_subjects, captions_out):
    partial = sidecar(captions_out, "partial.jsonl")
    with serve(lambda number, body: numbered(number, body) if number <= 3 else (401, "")) as model:
        with pytest.raises(InputError, match="HTTP 401"):
            write_captions(caption_subjects, backend(model), captions_out)
        partial.write_bytes(partial.read_bytes()[:-10])
        model.reply = numbered
        write_captions(caption_subjects, backend(model), captions_out)
    assert len(model.requests) == 4 + 10  # the third caption was lost
    assert len(json.loads(captions_out.read_text())) == 6


def begin(caption_subjects, captions_out) -> None:
    """Make three captions and fail."""
    failing = pytest.raises(InputError, match="HTTP 404")
    with serve(lambda number, body: numbered(number, body) if number <= 3 else (404, "")) as model, failing:
        write_captions(caption_subjects, backend(model), captions_out)


def test_other_settings_do_not_continue(caption_subjects, captions_out):
    begin(caption_subjects, captions_out)
    with serve() as model:
        for options, words in (
            ({"seed": 4}, "begun with seed 0, not 4"),
            ({"strategy": "prompt"}, "begun with strategy 'paper', not 'prompt'"),
            ({"rules": Rules(strict=True)}, "begun with strict False, not True"),
        ):
            with pytest.raises(InputError, match=f"{words}: use the same settings to continue, or delete it"):
                write_captions(caption_subjects, backend(model), captions_out, **options)
        with pytest.raises(InputError, match="begun with backend 'endpoint', not 'attributes'"):
            write_captions(caption_subjects, AttributeBackend(), captions_out)
        described = with_file(caption_subjects, captions_out.parent, {"1": {"age": "old"}})
        with pytest.raises(InputError, match=r"begun with other attributes or templates of 0001_c1\.jpg"):
            write_captions(described, backend(model), captions_out)
        assert not model.requests
        write_captions(caption_subjects, backend(model), captions_out)


def test_a_run_that_made_nothing_binds_nobody(caption_subjects, captions_out):
    with serve(lambda *_: (401, "")) as model, pytest.raises(InputError, match="HTTP 401") as error:
        write_captions(caption_subjects, backend(model), captions_out)
    assert "kept" not in str(error.value)
    assert not sidecar(captions_out, "partial.jsonl").exists()
    sidecar(captions_out, "partial.jsonl").write_text('{"settings": {"seed": 9}}\n')  # killed before its first caption
    with serve() as model:
        write_captions(caption_subjects, backend(model), captions_out, seed=1)


def test_a_damaged_journal_is_told(caption_subjects, captions_out):
    begin(caption_subjects, captions_out)
    partial = sidecar(captions_out, "partial.jsonl")
    lines = partial.read_text().splitlines()
    partial.write_text("\n".join([*lines[:2], "rubbish", *lines[2:]]) + "\n")
    with serve() as model, pytest.raises(InputError, match=r"partial\.jsonl: line 3 is damaged"):
        write_captions(caption_subjects, backend(model), captions_out)


def test_a_finished_file_is_never_overwritten(caption_subjects, captions_out):
    trees.write_text(captions_out, "mine")
    with serve() as model, pytest.raises(InputError, match="exists and is not overwritten: name another --out"):
        write_captions(caption_subjects, backend(model), captions_out)
    assert captions_out.read_text() == "mine"
    assert not model.requests
