"""torch.compile for training steps of either host: known backends, a compiler that works, draws as without it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from agreid_plugin.errors import InputError, first_line, require_known

INDUCTOR = "inductor"  # torch's default


def check_backend(key: str, backend: Any) -> None:
    """Refuse the name of a backend that torch does not know; a function is taken for one."""
    if isinstance(backend, str):
        require_known(f"{key}: backend", backend, torch.compiler.list_backends(exclude_tags=()))


def resolve_options(key: str, device: torch.device, **options: Any) -> dict[str, Any]:
    """Return arguments for `torch.compile`, with which a small function has been compiled and called.

    Without `mode` or `options` of the user's, Inductor draws random numbers as uncompiled code does, so that losses are
    the same up to rounding.

    Args:
        key: what the user calls the setting, for complaints.
        device: where the model is.
        options: what the user has given.
    """
    backend = options.setdefault("backend", INDUCTOR)
    check_backend(key, backend)
    if backend == INDUCTOR and not {"mode", "options"} & options.keys():
        options["options"] = {"fallback_random": True}
    try:
        torch.compile(_add_one, **options)(torch.zeros(2, device=device))
    except Exception as error:  # whatever a backend raises, of Inductor within one of torch's own
        reason = first_line(getattr(error, "inner_exception", error))
        raise InputError(
            f"{key}: torch.compile does not work here: {reason} (Inductor needs a C++ compiler, on a GPU Triton, too: "
            "install what is missing, or train without)"
        ) from error
    return options


def _add_one(values: Tensor) -> Tensor:
    return values + 1
