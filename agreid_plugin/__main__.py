"""`python -m agreid_plugin` is the `fastreid` command."""

import sys

from agreid_plugin.cli import main

if __name__ == "__main__":
    sys.exit(main())
