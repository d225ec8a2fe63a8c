"""Weight files of other libraries' networks: which tensors fit, and whether that is enough."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from agreid_plugin.errors import InputError
from agreid_plugin.hosts.fastreid.compat.files import misfit_reason
from agreid_plugin.nn.checkpoints import read_tensors
from agreid_plugin.nn.vit_weights import ENOUGH, Fit

PREFIXES = ("", "module.", "backbone.", "backbone.core.", "core.", "visual.", "module.visual.", "model.", "base.")
"""What wrappers put before the names of a network's tensors."""

COUNTERS = "num_batches_tracked"
"""How names of tensors end that old files do not have and nothing reads."""


def load_external(core: nn.Module, path: str | Path, adapt: Callable[[dict[str, Tensor]], dict]) -> Fit:
    """Load a file into a network of another library and return how it fitted.

    Args:
        core: the network.
        path: a state dict by torch or safetensors, bare or in a checkpoint, or a TorchScript archive as OpenAI's CLIP.
        adapt: turns a file's tensors into those of the network: names and the size of position embeddings.

    Raises:
        InputError: the file is missing, cannot be read, or is for another model.
    """
    wanted = [name for name in core.state_dict() if not name.endswith(COUNTERS)]
    stored = {name: _widened(value) for name, value in read_tensors(path).items()}
    prefix = max(PREFIXES, key=lambda each: sum(each + name in stored for name in wanted))
    own = {name.removeprefix(prefix): value for name, value in stored.items() if name.startswith(prefix)}
    try:
        adapted = adapt(own)
        found = {name: adapted[name] for name in core.state_dict() if name in adapted}
        missing = tuple(name for name in wanted if name not in found)
        if len(missing) > (1 - ENOUGH) * len(wanted):
            raise InputError(
                f"{path} fits {len(wanted) - len(missing)} of the model's {len(wanted)} tensors (not "
                f"{', '.join(missing[:3])}, ...): it is for another model"
            )
        core.load_state_dict(found, strict=False)
    except InputError:
        raise
    except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{path} is for another model: {misfit_reason(error)}") from error
    unused = tuple(name for name in adapted if name not in found)
    return Fit(str(path), len(wanted) - len(missing), len(wanted), missing, unused)


def _widened(value: Tensor) -> Tensor:
    return value.float() if value.is_floating_point() else value  # files of CLIP are half precision
