"""What a process of the tests does to be quicker, with nothing computed in another way."""

import gc
from importlib.util import find_spec

from agreid_plugin.engine.distributed import worker

HOSTS = ("agreid_plugin.hosts.fastreid.host", "agreid_plugin.hosts.mmengine.host")


def import_hosts_once() -> None:
    """Have the server that starts a command's processes import both hosts, not each process anew.

    It imports what the first test that needs it asks for, and serves all the others, too.
    """
    native = worker.choose_context
    worker.choose_context = lambda modules: native([*HOSTS, *modules])


def leave_imports_alone() -> None:
    """Have Python's garbage collector pass over all that is there now, mostly hosts and torch.

    mmengine has it run whenever a dataset is read, and half a million objects take it a quarter of a second.
    """
    gc.collect()
    gc.freeze()


def format_once() -> None:
    """Have mmengine format the text of a configuration once, not for its log, its folder and every checkpoint anew."""
    if find_spec("yapf") is None:
        return
    from yapf.yapflib import yapf_api

    native, formatted = yapf_api.FormatCode, {}

    def remembered(text: str, **options: object) -> tuple[str, bool]:
        key = (text, repr(options))
        if key not in formatted:
            formatted[key] = native(text, **options)
        return formatted[key]

    yapf_api.FormatCode = remembered
