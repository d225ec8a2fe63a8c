"""Hosts by name: which one reads a configuration, whether it is installed, and its modules of ours."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from agreid_plugin.errors import InputError

HOSTS = {"fastreid": "fast-reid", "mmengine": "mmengine"}
"""Package of a host, and of ours for it -> what people call it."""


INSTALL = {
    "fastreid": "fast-reid is not installed: pip install --no-deps fastreid==1.4.0 (README, 'Your own environment')",
    "mmengine": "mmengine is not installed: pip install 'mmengine>=0.10.6' (README, 'Your own environment')",
    "mmcv": "mmcv is not installed: pip install 'mmcv-lite>=2.1' (README, 'Your own environment')",
    "mmpretrain": "mmpretrain is not installed: pip install 'mmpretrain>=1.2' 'mmcv-lite>=2.1' "
    "(README, 'Your own environment')",
}
"""What a host's absence is answered with."""


MMENGINE_ENDINGS = (".py", ".json")
"""Endings of configurations that mmengine reads; all others are fast-reid's."""


class MissingHostError(ModuleNotFoundError, InputError):
    """A host that is not installed: an error of the user's to put right, and an import that failed."""


def installed(host: str) -> bool:
    """Tell whether a host is here, without importing it."""
    return find_spec(host) is not None


def require(host: str) -> None:
    """Refuse to go on without a host, in one line that says what to install."""
    if not installed(host):
        raise MissingHostError(INSTALL[host], name=host)


def load_host(host: str, part: str = "host") -> ModuleType:
    """Import a module of a host: by default the one that satisfies `engine.run.Host`.

    This is the only place that looks a host up by name.

    Args:
        host: one of `HOSTS`.
        part: the module below `agreid_plugin.hosts.<host>`, as `inference` or `commands.explain`.
    """
    return import_module(f"agreid_plugin.hosts.{host}.{part}")


def load_plugins() -> None:
    """Load what other packages register, as datasets of their own: they come with fast-reid, and not without it."""
    if installed("fastreid"):
        load_host("fastreid", "compat").install()


def input_error_in(error: BaseException) -> str | None:
    """Return the line of an `InputError`, also of one from a worker process, which arrives inside a traceback."""
    text = str(error)
    if f"{InputError.__name__}: " in text:
        return text.rsplit(f"{InputError.__name__}: ", 1)[1].strip()
    if isinstance(error, InputError):
        return text
    if isinstance(error, ModuleNotFoundError):
        return INSTALL.get(error.name or "")
    return None


def find_host(config: str | Path) -> str:
    """Return which host reads a configuration, by the ending of its name."""
    return "mmengine" if Path(config).suffix in MMENGINE_ENDINGS else "fastreid"
