"""Runner of other people's scripts: `python -m agreid_plugin.tool SCRIPT ...` runs one in a host that is fixed first.

Scripts of a host import the host before they read a configuration that imports this package. Bad input is one line and
exit code 2, and modules of the working folder can be imported, as by `custom_imports`.
"""

from __future__ import annotations

import os
import runpy
import sys

from agreid_plugin.host import input_error_in


def main() -> int:
    """Run the script that the command line names, with the arguments behind it, and return the exit code."""
    if len(sys.argv) < 2 or not os.path.isfile(sys.argv[1]):
        sys.stderr.write("usage: python -m agreid_plugin.tool SCRIPT [ARGUMENT ...]: name a script that is there\n")
        return 2
    del sys.argv[0]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception as error:
        message = input_error_in(error)
        if message is None:
            raise
        sys.stderr.write(f"{sys.argv[0]}: error: {message}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
