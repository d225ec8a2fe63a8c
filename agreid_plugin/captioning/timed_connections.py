"""HTTP connections whose time-out is a deadline for the answer, to its last byte, and not for each read."""

from __future__ import annotations

import io
import time
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from socket import socket
from typing import Any
from urllib.request import HTTPHandler, HTTPSHandler, Request


class _TimedReader(io.RawIOBase):
    """What a socket receives until its time-out, counted from now on and not from each byte, has passed."""

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
