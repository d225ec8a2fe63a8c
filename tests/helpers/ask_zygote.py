"""A command line that has a zygote run the `fastreid` command: the same folder, variables, output, signals and end.

It imports nothing but Python's own, so that starting it costs nothing. Arguments: the address, modules to import first
with commas between them, and those of the command.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def ask(address: str, argv: list[str], files: list, modules: str = "", **options: object) -> Iterator:
    """Have the command run; gives two lines: when it has begun the number of its process, and how it ended."""
    environment = {**os.environ, "ASKED_BY": str(os.getppid())}
    request = {"argv": argv, "modules": modules, "folder": os.getcwd(), "environment": environment, **options}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(request).encode()], [file.fileno() for file in files])
        yield connection.makefile()


if __name__ == "__main__":
    address, modules, *argv = sys.argv[1:]
    with ask(address, argv, [sys.stdin, sys.stdout, sys.stderr], modules) as answers:
        process = int(answers.readline())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(process, number))
        code = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # the process is gone, and this one ends as it did
    if code < 0:
        with suppress(OSError):  # of SIGKILL, which nobody handles
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
