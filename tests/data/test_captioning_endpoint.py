"""A model behind an address: what is sent, what is tried again, what ends the asking."""

import base64
import io
import json
import shutil
import threading
import time
from collections.abc import Iterator

import pytest
import trees
from caption_server import certificate, completion, serve
from PIL import Image

from agreid_plugin.captioning.endpoint import (
    Answer,
    CancelledError,
    Endpoint,
    EndpointError,
    QuestionRefusedError,
    data_url,
)
from agreid_plugin.errors import InputError

PICTURE = "data:image/png;base64,AAAA"

pytestmark = pytest.mark.usefixtures("without_proxy")


def endpoint(url: str, **options) -> Endpoint:
    return Endpoint(url, "vlm", **{"retries": 2, "backoff": 0.01, "timeout": 5, **options})


def asked(reply, **options) -> tuple[Answer, int]:
    """Ask a server that replies like this; return the answer and how many requests it took."""
    with serve(reply) as model:
        answer = endpoint(model.url, **options).ask("Who?", PICTURE)
    return answer, len(model.requests)


def failure(reply, kind: type[Exception] = EndpointError, **options) -> tuple[str, int]:
    with serve(reply) as model, pytest.raises(kind) as error:
        endpoint(model.url, **options).ask("Who?", PICTURE)
    message = str(error.value)
    assert "\n" not in message
    if kind is EndpointError:
        assert f"{model.url}/chat/completions" in message
    return message, len(model.requests)


def test_a_request_is_a_chat_completion_with_an_image():
    with serve() as model:
        given = Endpoint(model.url + "/", "vlm", key=" secret\n", fields={"temperature": 0, "max_tokens": None})
        assert given.ask("Who?", PICTURE).text.endswith("number 1.")
    assert model.paths == ["/v1/chat/completions"]
    assert model.headers[0]["Authorization"] == "Bearer secret"
    assert model.requests == [
        {
            "model": "vlm",
            "temperature": 0,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Who?"},
                        {"type": "image_url", "image_url": {"url": PICTURE}},
                    ],
                }
            ],
        }
    ]


def test_without_a_key_none_is_sent_and_the_whole_address_will_do():
    with serve() as model:
        endpoint(model.url + "/chat/completions").ask("Who?", PICTURE)
    assert "Authorization" not in model.headers[0]
    assert model.paths == ["/v1/chat/completions"]
    assert model.requests[0]["max_tokens"] == 300


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("A man.", Answer("A man.")),
        (None, Answer("")),
        ([{"type": "text", "text": "A "}, {"type": "text", "text": "man."}], Answer("A man.")),
    ],
)
def test_answers_of_every_shape_are_read(content, answer):
    assert asked(lambda *_: (200, completion(content)))[0] == answer


def test_an_answer_without_its_end_is_known():
    assert asked(lambda *_: (200, completion("A man in a", "length")))[0].cut


@pytest.mark.parametrize("status", [429, 500, 503, 408])
def test_busy_is_tried_again(status):
    answer, requests = asked(lambda number, _: (status, "busy") if number < 3 else "A man.")
    assert answer.text == "A man."
    assert requests == 3


def test_retry_after_holds_all_threads_back():
    times = []

    def reply(number, _body):
        times.append(time.monotonic())
        return (429, "slow down", {"Retry-After": "0.3"}) if number == 1 else "A man."

    with serve(reply) as model:
        shared = endpoint(model.url)
        first = threading.Thread(target=shared.ask, args=("Who?", PICTURE))
        first.start()
        end = time.monotonic() + 30
        while not shared.pace._not_before and time.monotonic() < end:  # until the first has been told
            time.sleep(0.005)
        shared.ask("Who?", PICTURE)
        first.join()
    assert len(times) == 3
    assert min(times[1:]) - times[0] >= 0.3


def test_a_broken_server_is_given_up_with_its_words():
    message, requests = failure(lambda *_: (500, json.dumps({"error": {"message": "out of\nmemory"}})))
    assert "gave no usable answer in 3 tries: HTTP 500: out of memory" in message
    assert requests == 3


@pytest.mark.parametrize("text", ["<html>\nhello", "{}", '{"choices": []}', '{"choices": [{"message": 3}]}', "[1]", ""])
def test_nonsense_is_given_up_and_shown(text):
    message, requests = failure(lambda *_: (200, text))
    assert "not the JSON of a chat completion" in message
    assert " ".join(text.split()) in message
    assert requests == 3


def test_nonsense_once_does_not_matter():
    assert asked(lambda number, _: (200, "{") if number == 1 else "A man.") == (Answer("A man."), 2)


def test_a_slow_server_is_given_up():
    awake = threading.Event()

    def reply(*_):
        awake.wait(60)
        return "A man."

    message, requests = failure(reply, timeout=1.0, retries=1)
    awake.set()
    assert "in 2 tries: no answer within 1 s" in message
    assert requests == 2


TIMEOUT = 0.3
STATUS = b"HTTP/1.0 200 One byte after the other\r\n"
BODY = completion("A young man in a white shirt.").encode()
DRIPS = {  # what is sent at once, what drips, and what is sent after it
    "status": (b"", STATUS, b"\r\n" + BODY),
    "headers": (STATUS, b"Server: one that takes its time\r\n", b"\r\n" + BODY),
    "body": (STATUS + b"\r\n", BODY, b""),
    "error": (b"HTTP/1.0 500 Oh\r\n\r\n", BODY, b""),
}


def dripping(first: bytes, drops: bytes, last: bytes) -> Iterator[bytes]:
    """Send an answer of which no single byte takes as long as `TIMEOUT`, and all of them much longer."""
    yield first
    for byte in drops:
        time.sleep(TIMEOUT / 15)
        yield bytes([byte])
    yield last


@pytest.mark.parametrize(("part", "secured"), [*((part, False) for part in DRIPS), ("headers", True), ("body", True)])
def test_a_server_that_drips_is_given_up(tmp_path, monkeypatch, part, secured):
    file = None
    if secured:
        if shutil.which("openssl") is None:
            pytest.skip("openssl makes the certificate")
        file = certificate(tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
    reason = "HTTP 500" if part == "error" else f"no answer within {TIMEOUT} s"
    with serve(lambda number, _: dripping(*DRIPS[part]) if number < 3 else "A man.", file) as model:
        with pytest.raises(EndpointError, match=f"gave no usable answer in 2 tries: {reason}$"):
            endpoint(model.url, timeout=TIMEOUT, retries=1).ask("Who?", PICTURE)
        assert endpoint(model.url, timeout=60).ask("Who?", PICTURE).text == "A man."
    assert len(model.requests) == 3


def test_an_answer_without_end_is_given_up(monkeypatch):
    limit = len(completion("A man."))
    monkeypatch.setattr("agreid_plugin.captioning.endpoint.MAX_ANSWER_BYTES", limit)
    assert asked(lambda *_: "A man.") == (Answer("A man."), 1)
    message, requests = failure(lambda *_: (200, completion("A man.") + " "), retries=1)
    assert message.endswith(f"in 2 tries: an answer of more than {limit} bytes")
    assert requests == 2


def test_nobody_there():
    with serve() as model:
        pass
    with pytest.raises(EndpointError, match=r"127\.0\.0\.1.* in 1 try: Connection refused"):
        endpoint(model.url, retries=0).ask("Who?", PICTURE)


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (401, {}, ["HTTP 401: no", "--api-key-env"]),
        (403, {}, ["HTTP 403: no", "--api-key-env"]),
        (404, {}, ["HTTP 404: no", "'vlm'", "/v1", "--model"]),
        (405, {}, ["HTTP 405: no", "check --endpoint"]),
        (302, {"Location": "http://127.0.0.1:1/elsewhere"}, ["moved to http://127.0.0.1:1/elsewhere"]),
    ],
)
def test_what_no_retry_mends_ends_at_once(status, headers, words):
    message, requests = failure(lambda *_: (status, "no", headers))
    assert requests == 1
    for word in words:
        assert word in message


def test_a_question_may_be_refused():
    message, requests = failure(lambda *_: (400, '{"detail": "bad picture"}'), QuestionRefusedError)
    assert message == "HTTP 400: bad picture"
    assert requests == 1


def test_waiting_ends_when_stopped():
    stop = threading.Event()
    start = time.monotonic()
    threading.Timer(0.1, stop.set).start()
    with serve(lambda *_: (500, "")) as model, pytest.raises(CancelledError):
        endpoint(model.url, backoff=30, stop=stop).ask("Who?", PICTURE)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("url", ["localhost:8000/v1", "file:///etc/passwd", "http://", "http://a b/v1"])
def test_an_address_has_to_be_one(url):
    with pytest.raises(InputError, match="is no address; it should be like http://localhost:8000/v1"):
        Endpoint(url, "vlm")


def test_images_are_sent_as_they_are_or_as_png(tmp_path):
    (tmp_path / "a.jpg").write_bytes(trees.JPEG)
    head, _, content = data_url(tmp_path / "a.jpg").partition(",")
    assert head == "data:image/jpeg;base64"
    assert base64.b64decode(content) == trees.JPEG
    Image.new("RGB", (3, 5), (9, 8, 7)).save(tmp_path / "b.bmp")
    head, _, content = data_url(tmp_path / "b.bmp").partition(",")
    assert head == "data:image/png;base64"
    image = Image.open(io.BytesIO(base64.b64decode(content)))
    assert image.format == "PNG"
    assert image.getpixel((0, 0)) == (9, 8, 7)
