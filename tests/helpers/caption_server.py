"""A real HTTP server on this machine that stands for a model's endpoint, and remembers what it was asked."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Reply = str | tuple[int, str] | tuple[int, str, dict[str, str]] | Iterator[bytes]
SENTENCE = "A young woman with long black hair wears a white shirt and blue jeans, number {}."


def completion(text: Any, finish: str = "stop") -> str:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]})


class Model:
    """Answers requests by a function of (number of the request from 1, its body).

    A plain text is a good answer; pieces of bytes are sent as they come, in place of status, headers and all.
    """

    def __init__(self, reply: Callable[[int, dict[str, Any]], Reply]):
        self.reply = reply
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()

    @property
    def questions(self) -> list[tuple[str, str]]:
        """What was asked: (text, image) of each request."""
        parts = [request["messages"][0]["content"] for request in self.requests]
        return [(text["text"], image["image_url"]["url"]) for text, image in parts]

    def take(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Reply:
        with self._lock:
            self.requests.append(body)
            self.headers.append(headers)
            self.paths.append(path)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            number = len(self.requests)
        try:
            return self.reply(number, body)
        finally:
            with self._lock:
                self._at_once -= 1


def press_ctrl_c() -> None:
    """Press Ctrl-C, and wait until the run under way knows; a second press would end it at once."""
    os.kill(os.getpid(), signal.SIGINT)
    end = time.monotonic() + 5
    while signal.getsignal(signal.SIGINT) is not signal.default_int_handler and time.monotonic() < end:
        time.sleep(0.005)


def numbered(number: int, _body: dict[str, Any]) -> str:
    """A good answer, each time another one."""
    return SENTENCE.format(number)


def certificate(folder: Path) -> Path:
    """Make a certificate of this machine, which has signed it itself, and its key, in one file."""
    path = folder / "machine.pem"
    told = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(path)]
    made = subprocess.run(["openssl", "req", "-x509", *key, *told], capture_output=True, text=True, check=True)
    with path.open("a") as file:
        file.write(made.stdout)
    return path


@contextmanager
def serve(reply: Callable[[int, dict[str, Any]], Reply] = numbered, secured_by: Path | None = None) -> Iterator[Model]:
    model = Model(reply)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = model.take(self.path, dict(self.headers), body)
            try:
                if isinstance(answer, Iterator):
                    for piece in answer:
                        self.wfile.write(piece)
                    return
                status, text, *more = (200, completion(answer)) if isinstance(answer, str) else answer
                self.send_response(status)
                for name, value in (more[0] if more else {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())
            except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
                pass  # who asked did not wait

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if secured_by is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(secured_by)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    model.url = f"http{'s' if secured_by else ''}://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
