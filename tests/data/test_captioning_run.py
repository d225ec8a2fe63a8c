"""Whole runs: annotations that can be read back, bad answers kept out, a report that counts."""

import json
import threading
from pathlib import Path

import pytest
from caption_server import SENTENCE, numbered, serve
from caption_subjects import NAMES, backend, sidecar, with_file

from agreid_plugin.captioning import AttributeBackend, Rules, load_subjects, write_captions, write_prompts
from agreid_plugin.data.datasets import load
from agreid_plugin.errors import InputError
from agreid_plugin.types import View

pytest_plugins = ("caption_fixtures",)
pytestmark = pytest.mark.usefixtures("without_proxy")


def test_annotations_are_read_back_by_the_parser_of_text_sets(caption_subjects, captions_out, tmp_path):
    with serve() as model:
        report = write_captions(caption_subjects, backend(model), captions_out)
    dataset = load("TAG-PEDES", tmp_path)
    assert [(Path(r.path).name, r.pid, r.view) for r in dataset.records] == [
        (name, int(name[:4]), View.AERIAL if "c1" in name else View.GROUND) for name in NAMES
    ]
    said = [caption for record in dataset.records for caption in record.captions]
    assert said == [SENTENCE.format(number) for number in range(1, 13)]  # one thread asks in order
    assert not sidecar(captions_out, "partial.jsonl").exists()
    assert (report.images, report.identities, report.captions, report.retried) == (6, 3, 12, 0)
    assert report.mean_words == 16
    assert report.kinds == {"prompt": 6, "template": 6}
    assert json.loads(sidecar(captions_out, "report.json").read_text()) == report.as_dict()


def test_an_unknown_view_has_no_cam_id(caption_subjects, captions_out):
    alone = load_subjects("folder", Path(caption_subjects[0].path).parent)
    with serve() as model:
        write_captions(alone, backend(model), captions_out)
    assert all(entry.keys() == {"file_path", "id", "captions"} for entry in json.loads(captions_out.read_text()))


def test_questions_about_an_image_come_with_it(caption_subjects, captions_out):
    described = with_file(caption_subjects, captions_out.parent, {"2": {"gender": "female"}})
    with serve() as model:
        write_captions(described, backend(model), captions_out)
    assert len({image for _, image in model.questions}) == 6
    assert sum("based on the attribute: gender: female" in text for text, _ in model.questions) == 2


def test_several_are_asked_at_a_time(caption_subjects, captions_out):
    together = threading.Barrier(4, timeout=5)

    def reply(number, body):
        if number <= 4:
            together.wait()  # breaks unless four requests are there at once
        return numbered(number, body)

    with serve(reply) as model:
        write_captions(caption_subjects, backend(model), captions_out, concurrency=4)
    assert model.most_at_once == 4
    assert len(set(model.questions)) == len(model.requests) == 12
    assert [len(entry["captions"]) for entry in json.loads(captions_out.read_text())] == [2] * 6


def test_a_bad_answer_is_asked_for_once_more_and_then_kept_out(caption_subjects, captions_out):
    """The first image's first answer is bad once, the second image's first answer twice."""
    replies = {1: "I'm sorry, I can't.", 4: "", 5: "A man."}
    with serve(lambda number, body: replies.get(number) or (numbered(number, body) if number != 4 else "")) as model:
        report = write_captions(caption_subjects, backend(model), captions_out)
    assert len(model.requests) == 14
    texts = [text for text, _ in model.questions]
    assert "could not be used (refusal)" in texts[1]
    assert texts[1].startswith(texts[0])
    assert "could not be used (empty)" in texts[4]
    assert [len(entry["captions"]) for entry in json.loads(captions_out.read_text())] == [2, 1, 2, 2, 2, 2]
    assert (report.retried, report.kept_out, report.captions) == (2, {"too short": 1}, 11)
    (remark,) = report.remarks
    assert remark == {
        "file_path": "0001_c2.jpg",
        "kind": "prompt",
        "text": "A man.",
        "kept_out": "too short: 2 words",
    }


def test_an_image_without_any_caption_is_left_out(caption_subjects, captions_out):
    with serve(lambda number, body: "" if number <= 4 else numbered(number, body)) as model:
        report = write_captions(caption_subjects, backend(model), captions_out)
    assert [entry["file_path"] for entry in json.loads(captions_out.read_text())] == NAMES[1:]
    assert report.left_out == {"0001_c1.jpg": "empty"}
    assert report.empty == 2
    assert ["answers", "kept", "out:", "empty", "2"] in [line.split() for line in report.lines()]


def test_no_answer_of_use_writes_nothing(caption_subjects, captions_out):
    with serve(lambda *_: "I cannot help with that.") as model:
        for _ in range(2):
            with pytest.raises(InputError, match="none of the 12 answers can be used, the first is 'refusal'"):
                write_captions(caption_subjects, backend(model), captions_out)
    assert len(model.requests) == 24  # two a question, and none the second time
    assert not captions_out.exists()


def test_a_refused_image_does_not_end_the_run(caption_subjects, captions_out):
    with serve(lambda number, body: (400, "filtered") if number in (1, 6) else numbered(number, body)) as model:
        report = write_captions(caption_subjects, backend(model), captions_out)
    assert len(model.requests) == 12
    assert report.kept_out == {"refused": 2}
    assert report.captions == 10


def test_refusing_every_question_ends_the_run(caption_subjects, captions_out):
    refused = pytest.raises(InputError, match="refuses every question, HTTP 400: vlm takes no images")
    with serve(lambda *_: (400, "vlm takes no images")) as model, refused:
        write_captions(caption_subjects, backend(model), captions_out)
    assert len(model.requests) <= 4
    assert not sidecar(captions_out, "partial.jsonl").exists()


def test_the_report_counts_what_is_doubtful(caption_subjects, captions_out):
    described = with_file(
        caption_subjects, captions_out.parent, {str(pid): {"gender": "male", "Upper Color": "Red"} for pid in (1, 2, 5)}
    )
    replies = {
        1: "A man in a red coat and black shoes is seen from above.",
        2: "A man in a blue coat and black shoes walks.",
        3: "A woman in a red coat and black shoes walks. She has a bag.",
        5: "A man in a red coat with black shoes on the street.",
    }
    same = "A man in a red coat with white boots."
    with serve(lambda number, _: replies.get(number, same if number % 2 else same.replace("white", f"{number}"))) as m:
        report = write_captions(described, backend(m), captions_out)
    assert report.flags == {"viewpoint": 1, "background": 1, "contradiction": 2, "sentences": 1, "foreign": 0}
    assert report.repeated == 3  # requests 7, 9, 11: identities 2 and 5
    assert len(report.remarks) == 7
    assert report.remarks[1]["contradiction"] == ["upper color is red, the text says blue"]
    table = "\n".join(report.lines())
    for title in ("contradicting attributes", "words for the viewpoint", "repeated on another identity", "mean words"):
        assert title in table


def test_strict_keeps_doubtful_captions_out(caption_subjects, captions_out):
    aerial = "A man in a red coat is seen from a drone."
    with serve(lambda number, body: aerial if number in (1, 3, 4) else numbered(number, body)) as model:
        report = write_captions(caption_subjects, backend(model), captions_out, rules=Rules(strict=True))
    assert len(model.requests) == 14
    assert report.kept_out == {"viewpoint": 1}
    assert aerial not in captions_out.read_text()


def test_captions_from_attributes_need_no_model(caption_subjects, captions_out, tmp_path):
    people = {"1": {"gender": "male", "upper": "coat", "age": "old"}, "2": {"sex": "F", "upper color": "red", "bag": 1}}
    people["0005"] = {"hair": "long", "lower": "jeans", "shoes": "boots"}
    report = write_captions(with_file(caption_subjects, tmp_path, people), AttributeBackend(), captions_out)
    entries = json.loads(captions_out.read_text())
    assert all(len(set(entry["captions"])) == 2 for entry in entries)
    assert all("elderly man" in text and "coat" in text for text in entries[0]["captions"])
    assert report.flags["contradiction"] == 0
    again = captions_out.with_name("again.json")
    write_captions(with_file(caption_subjects, tmp_path, people), AttributeBackend(), again, concurrency=3)
    assert json.loads(again.read_text()) == entries


def test_prompts_can_be_written_instead(caption_subjects, captions_out):
    target = write_prompts(caption_subjects, captions_out, "template", seed=2)
    assert target == sidecar(captions_out, "prompts.jsonl")
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert [(line["file_path"], line["slot"], line["strategy"]) for line in lines] == [
        (name, 0, "template") for name in NAMES
    ]
    assert lines[0]["prompt"].startswith("Generate a description about the overall appearance")
