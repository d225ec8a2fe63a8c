"""Client of an OpenAI-compatible chat endpoint: retries, back-off, and a deadline for the whole answer."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from random import random
from socket import socket
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from PIL import Image

from agreid_plugin.errors import InputError, first_line

PATH = "/chat/completions"
MAX_WAIT = 60.0  # seconds between two tries
MAX_ANSWER_BYTES = 2**24  # bytes
MAX_SHOWN = 200  # characters of a server's answer in a message
AS_IS = ("JPEG", "PNG")  # formats every server reads
_ABOUT_THIS_IMAGE = (400, 413, 422)  # the server understood who asks and for what, but not this question


class _TimedReader(io.RawIOBase):
    """Reader of a socket whose time-out counts from its creation, and not from each byte."""

    def __init__(self, sock: socket):
        self._socket, self._file = sock, sock.makefile("rb", buffering=0)
        self._end = time.monotonic() + (sock.gettimeout() or 0.0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


class _TimedResponse(HTTPResponse):
    """An answer, headers and all, that has to be there before its connection's time-out has passed."""

    def __init__(self, sock: socket, *args: Any, **kwargs: Any):
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_TimedReader(sock))


class _TimedConnection(HTTPConnection):
    response_class = _TimedResponse


class _TimedSecureConnection(HTTPSConnection):
    response_class = _TimedResponse


class TimedConnections(HTTPHandler, HTTPSHandler):
    """Connections of both kinds, whose time-out is that of the answer."""

    def http_open(self, request: Request) -> HTTPResponse:
        """Open a connection of http."""
        return self.do_open(_TimedConnection, request)

    def https_open(self, request: Request) -> HTTPResponse:
        """Open a connection of https."""
        return self.do_open(_TimedSecureConnection, request)


class EndpointError(InputError):
    """The endpoint cannot be used: no use in asking it on."""


class QuestionRefusedError(Exception):
    """The endpoint would not take this one question."""


class CancelledError(Exception):
    """The run was stopped while a question waited."""


@dataclass(frozen=True)
class Answer:
    """A model's answer, and whether it was cut off."""

    text: str
    cut: bool = False


def data_url(path: str | Path) -> str:
    """Return an image file as a `data:` address, in a format every server reads."""
    with Image.open(path) as image:
        if image.format in AS_IS:
            kind, content = image.format, Path(path).read_bytes()
        else:
            buffer, kind = io.BytesIO(), "PNG"
            image.convert("RGB").save(buffer, kind)
            content = buffer.getvalue()
    return f"data:image/{kind.lower()};base64,{base64.b64encode(content).decode()}"


class _NoRedirects(HTTPRedirectHandler):
    """Following a redirect would hand the key to an address the user never named."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        return None


class _Pace:
    """Earliest time of the next request, for all threads: after a server asks to wait, every thread does."""

    def __init__(self, stop: threading.Event):
        self.stop = stop
        self._lock = threading.Lock()
        self._not_before = 0.0

    def hold(self, seconds: float) -> None:
        with self._lock:
            self._not_before = max(self._not_before, time.monotonic() + seconds)

    def wait(self, seconds: float = 0.0) -> None:
        """Wait these seconds, and as long as a server asked to."""
        until = max(time.monotonic() + seconds, self._not_before)
        while (left := until - time.monotonic()) > 0:
            self.stop.wait(left)
            if self.stop.is_set():
                break
            until = max(until, self._not_before)
        if self.stop.is_set():
            raise CancelledError


class Endpoint:
    """An OpenAI-compatible chat endpoint that takes images. Safe to use from several threads.

    Args:
        url: its address, what stands before `/chat/completions`.
        model: the model's name there.
        key: the API key, empty if none is needed.
        timeout: seconds until an answer has to be there, to its last byte.
        retries: tries after the first, when the endpoint is busy, unreachable or talks nonsense.
        backoff: seconds before the second try; they double with each.
        max_tokens: the longest answer.
        fields: further fields of the request, or others; None removes one.
        stop: set from outside, ends all waiting.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str = "",
        timeout: float = 120.0,
        retries: int = 5,
        backoff: float = 1.0,
        max_tokens: int = 300,
        fields: Mapping[str, Any] | None = None,
        stop: threading.Event | None = None,
    ):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or " " in url:
            raise InputError(f"endpoint {url!r} is no address; it should be like http://localhost:8000/v1")
        self.url = url.rstrip("/").removesuffix(PATH) + PATH
        self.model = model
        self.retries, self.backoff, self.timeout = retries, backoff, timeout
        self._fields = {"model": model, "max_tokens": max_tokens, **(fields or {})}
        self._headers = {"Content-Type": "application/json", "User-Agent": "agreid-plugin"}
        if key.strip():
            self._headers["Authorization"] = f"Bearer {key.strip()}"
        self._opener = build_opener(TimedConnections, _NoRedirects)
        self.pace = _Pace(stop or threading.Event())

    def ask(self, text: str, image: str) -> Answer:
        """Ask about an image, given as an address; try again as long as it may help.

        Raises:
            EndpointError: the endpoint does not answer, or not as such an endpoint should.
            Refused: it answers, but will not have this question.
            GaveUpWaiting: the run was stopped.
        """
        body = self._body(text, image)
        for tried in range(self.retries + 1):
            self.pace.wait()
            try:
                return _read_answer(self._post(body))
            except HTTPError as error:
                reason, pause = self._reason(error), _get_retry_after(error)
            except (OSError, HTTPException, _MalformedAnswerError) as error:
                reason, pause = _explain(error, self.timeout), 0.0
            if tried < self.retries:
                self._back_off(tried, pause)
        times = "1 try" if self.retries == 0 else f"{self.retries + 1} tries"
        raise EndpointError(f"{self.url} gave no usable answer in {times}: {reason}")

    def _body(self, text: str, image: str) -> bytes:
        content = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": image}}]
        fields = {**self._fields, "messages": [{"role": "user", "content": content}]}
        return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()

    def _post(self, body: bytes) -> bytes:
        request = Request(self.url, body, self._headers, method="POST")
        with self._opener.open(request, timeout=self.timeout) as response:
            content = response.read(MAX_ANSWER_BYTES + 1)
        if len(content) > MAX_ANSWER_BYTES:
            raise _MalformedAnswerError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        return content

    def _reason(self, error: HTTPError) -> str:
        """Return why a request failed if another try may help, else raise what ends the asking."""
        code, details = error.code, _read_error(error)
        reason = f"HTTP {code}{f': {details}' if details else ''}"
        if code in (408, 409, 425, 429) or code >= 500:
            return reason
        if code in _ABOUT_THIS_IMAGE:
            raise QuestionRefusedError(reason)
        advice = {
            401: "the API key is missing or wrong; name its environment variable with --api-key-env",
            403: "the API key may not use this model; name another with --api-key-env",
            404: f"no such address or no model {self.model!r}; check --endpoint, which often ends in /v1, and --model",
        }
        if 300 <= code < 400:
            advice[code] = f"it has moved to {error.headers.get('Location')}; give that address with --endpoint"
        raise EndpointError(f"{self.url}: {reason}; {advice.get(code, 'check --endpoint and --model')}") from None

    def _back_off(self, tried: int, pause: float) -> None:
        if pause:
            self.pace.hold(pause)
        # A little chance keeps threads that failed together from trying together.
        self.pace.wait(min(self.backoff * 2**tried, MAX_WAIT) * (1 + 0.25 * random()))


class _MalformedAnswerError(Exception):
    """An answer that is none."""


def _read_answer(content: bytes) -> Answer:
    text = content.decode("utf-8", "replace")
    try:
        choice = json.loads(text)["choices"][0]
        answer = choice["message"].get("content") or ""
        if not isinstance(answer, str):  # some servers give a list of parts
            answer = "".join(part.get("text", "") for part in answer)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        shown = " ".join(text.split())[:MAX_SHOWN]
        raise _MalformedAnswerError(f"not the JSON of a chat completion: {shown or 'nothing'}") from None
    return Answer(answer, cut=choice.get("finish_reason") == "length")


def _read_error(error: HTTPError) -> str:
    """Return a server's message about an error, in one line."""
    try:
        text = error.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
    except (OSError, HTTPException):
        return ""
    try:
        content = json.loads(text)
        found = content.get("error", content.get("detail", content.get("message", text)))
        text = found.get("message", text) if isinstance(found, dict) else str(found)
    except (ValueError, AttributeError, RecursionError):
        pass  # not JSON: the text itself
    return " ".join(str(text).split())[:MAX_SHOWN]


def _get_retry_after(error: HTTPError) -> float:
    try:
        return min(max(float(error.headers.get("Retry-After", 0)), 0.0), MAX_WAIT)
    except ValueError:  # a date
        return 0.0


def _explain(error: Exception, timeout: float) -> str:
    cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
    if isinstance(cause, TimeoutError):
        return f"no answer within {timeout:g} s"
    return getattr(cause, "strerror", None) or first_line(cause)
