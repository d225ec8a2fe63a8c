"""Key mapping of released checkpoints: whose a checkpoint is, and new names for its tensors; for all converters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from agreid_plugin.errors import InputError

State = Mapping[str, Tensor]
Renames = Iterable[tuple[str, str]]  # pattern and replacement; the first that matches a full key is taken
DeadKeys = Iterable[tuple[str, str]]  # pattern of tensors that reach no output, and what they are


@dataclass(frozen=True)
class Converted:
    """A state dict in our names, and the released tensors without a place in it.

    Attributes:
        state: name -> tensor. Classifiers that the released file lacks are not in it.
        unused: description of a part, and why nothing reads it -> its released keys.
        attributes: attribute -> number of its values, in the file's order; empty where the method learns none.
    """

    state: dict[str, Tensor]
    unused: dict[str, tuple[str, ...]]
    attributes: dict[str, int] = field(default_factory=dict)

    @property
    def dropped(self) -> tuple[str, ...]:
        """The released keys that have no place."""
        return tuple(key for keys in self.unused.values() for key in keys)


@dataclass(frozen=True)
class MethodKeys:
    """Keys that identify a method's checkpoints: one of released files only, one of files in our names only."""

    released: str
    ours: str


METHOD_KEYS = {
    "vdt": MethodKeys("backbone.view_token", "backbone.view_tokens"),
    "visa": MethodKeys("backbone.base.view_token_sky", "backbone.encoder.view_tokens"),
    "svpr": MethodKeys("TextNet.view_prompt", "backbone.text.view_prompts"),
    "tag-clip": MethodKeys("visual.view_token", "image.view_token"),
}


def require_released(state: State, method: str) -> dict[str, Tensor]:
    """Return a copy without the prefix of data-parallel training, or refuse what is not the method's."""
    plain = {key.removeprefix("module."): value for key, value in state.items()}
    if METHOD_KEYS[method].released in plain:
        return plain
    raise InputError(f"no released {method} checkpoint: {_identify(plain, method)}")


def _identify(plain: State, method: str) -> str:
    """Describe a state dict that is not the released method's."""
    for name, signs in METHOD_KEYS.items():
        if signs.released in plain:
            return f"it is a released {name} checkpoint, convert it as {name}"
        if signs.ours in plain:
            return f"it is a {name} checkpoint in the names of this package already, use it as it is"
    found = f"it has {', '.join(list(plain)[:3])}, ..." if plain else "it is empty"
    return f"{METHOD_KEYS[method].released} is missing, {found}"


def rename_keys(rest: State, renames: Renames) -> dict[str, Tensor]:
    """Return the tensors under their new names, or refuse keys that no rule matches."""
    renames = tuple(renames)
    names = {key: name for key in rest if (name := _rename_key(key, renames)) is not None}
    unknown = [key for key in rest if key not in names]
    if unknown:
        more = f", ... ({len(unknown)} in all)" if len(unknown) > 3 else ""
        raise InputError(f"the released model has no {', '.join(unknown[:3])}{more}")
    return {names[key]: value for key, value in rest.items()}


def _rename_key(key: str, renames: Renames) -> str | None:
    for pattern, replacement in renames:
        if found := re.fullmatch(pattern, key):
            return found.expand(replacement)
    return None


def list_numbers(rest: State, owner: str) -> list[int]:
    """Return the indices of a module list in the checkpoint."""
    pattern = re.compile(rf"{re.escape(owner)}\.(\d+)\.")
    found = sorted({int(match[1]) for key in rest if (match := pattern.match(key))})
    if not found:
        raise InputError(f"the checkpoint is incomplete: {owner}.0 is missing")
    return found


def take_key(rest: dict[str, Tensor], key: str) -> Tensor:
    """Remove a tensor, which must be there, and return it."""
    if key not in rest:
        raise InputError(f"the checkpoint is incomplete: {key} is missing")
    return rest.pop(key)


def join_keys(rest: dict[str, Tensor], keys: Sequence[str], join: Callable[[list[Tensor]], Tensor]) -> Tensor:
    """Remove tensors of one shape and return them joined."""
    values = [take_key(rest, key) for key in keys]
    for key, value in zip(keys, values, strict=True):
        if value.shape != values[0].shape:
            raise InputError(
                f"the checkpoint is damaged: {key} is {tuple(value.shape)}, but {keys[0]} is {tuple(values[0].shape)}"
            )
    return join(values)


def drop_dead(rest: dict[str, Tensor], dead: DeadKeys) -> dict[str, tuple[str, ...]]:
    """Remove the tensors that reach no output, and return their keys by description."""
    found = {what: _drop_matching(rest, pattern) for pattern, what in dead}
    return {what: keys for what, keys in found.items() if keys}


def _drop_matching(rest: dict[str, Tensor], pattern: str) -> tuple[str, ...]:
    """Remove the tensors whose keys match, and return the keys."""
    keys = tuple(key for key in rest if re.fullmatch(pattern, key))
    for key in keys:
        del rest[key]
    return keys
