"""The `fastreid` command."""

from agreid_plugin.cli.main import main

__all__ = ["main"]
