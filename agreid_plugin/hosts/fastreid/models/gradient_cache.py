"""Large batches on small machines: `SOLVER.CACHED_CHUNK`; see `agreid_plugin.nn.gradient_cache`."""

from __future__ import annotations

import logging

from fastreid.modeling.meta_arch import META_ARCH_REGISTRY
from torch import nn

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.config.loading import Key, declare
from agreid_plugin.nn.gradient_cache import TwoStageMethod

_logger = logging.getLogger("fastreid.train")

KEYS = (
    Key(
        "SOLVER.CACHED_CHUNK",
        0,
        "Images of a process encoded at once, with the gradients of its whole batch: less memory, more time; 0: all.",
    ),
)
declare(KEYS)


def set_chunk(cfg, model: nn.Module) -> None:
    """Have a model encode as many images at once as the configuration says, or refuse one that cannot.

    The host's training loops need not know: see `encode_in_chunks`.

    Args:
        cfg: the configuration.
        model: the model, before a wrapper for many processes holds it.
    """
    chunk = cfg.SOLVER.CACHED_CHUNK
    if chunk < 0:
        raise InputError(f"SOLVER.CACHED_CHUNK is {chunk}; use 0 for the whole batch at once")
    if not chunk:
        return
    if not isinstance(model, TwoStageMethod):
        raise InputError(
            f"SOLVER.CACHED_CHUNK is {chunk}, but MODEL.META_ARCHITECTURE {cfg.MODEL.META_ARCHITECTURE} does not keep "
            f"apart what can be computed in chunks: set it to 0 (it works with {', '.join(suitable()) or 'none'})"
        )
    model.chunk = chunk
    _logger.info("batches are encoded in chunks of %d, with the gradients of the whole", chunk)


def suitable() -> list[str]:
    """Return the names of the meta-architectures that can be trained in chunks."""
    known = META_ARCH_REGISTRY._obj_map.items()
    return sorted(name for name, kind in known if isinstance(kind, type) and issubclass(kind, TwoStageMethod))
