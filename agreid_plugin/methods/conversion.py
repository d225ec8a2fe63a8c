"""Checkpoints of the released codes in our names.

The released ViSA trains 36 M parameters that reach no output; they are dropped, and listed. Its view classifier counts
aerial as 1 and ground as 0; here it is the other way round, as everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agreid_plugin.errors import InputError

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Converted:
    """A state dict in our names, and what of the released one has no place in it.

    Attributes:
        state: name -> tensor. Classifiers that the released file lacks are not in it.
        unused: what a part is and why nothing reads it -> the released keys of it.
    """

    state: dict[str, Tensor]
    unused: dict[str, tuple[str, ...]]

    @property
    def dropped(self) -> tuple[str, ...]:
        """The released keys that have no place."""
        return tuple(key for keys in self.unused.values() for key in keys)


@dataclass(frozen=True)
class Rules:
    """How one method's names change.

    Attributes:
        method: its name.
        telling: a key that only this method's released checkpoints have.
        ours: one that only its checkpoints in our names have.
        dead: pattern of tensors that reach no output, and what they are.
        renames: pattern and replacement; the first that matches a whole key is taken.
    """

    method: str
    telling: str
    ours: str
    dead: tuple[tuple[str, str], ...]
    renames: tuple[tuple[str, str], ...]


VIT = r"(cls_token|pos_embed|patch_embed\..*|blocks\..*|norm\..*)"
HEADS = (
    (r"heads\.(.*)", r"head.\1"),
    (r"local_heads\.(.*)", r"local_head.\1"),
    (r"view_heads\.(.*)", r"view_head.\1"),
)
VDT = Rules(
    "vdt",
    telling="backbone.view_token",
    ours="backbone.view_tokens",
    dead=(),
    renames=((rf"backbone\.{VIT}", r"backbone.vit.\1"), *HEADS),
)
VISA = Rules(
    "visa",
    telling="backbone.base.view_token_sky",
    ours="backbone.encoder.view_tokens",
    dead=(
        (r"backbone\.base\.blocks\.{last}\..*", "last block of `base`: its copy in `b1` is what runs"),
        (r"backbone\.base\.norm\..*", "final norm of `base`: its copy in `b1` is what runs"),
        (r"backbone\.view_gcn\..*", "graph layer of the specific branch: both branches run `share_gcn`"),
        (r"backbone\.image_pe", "position embedding of the fusion: nothing reads it"),
        (
            r"backbone\.\w+_experts\.\d+\.prm\.cross_attn\.[qk]_proj\..*",
            "query and key projections of the experts: a softmax over one key is 1",
        ),
    ),
    renames=(
        (r"backbone\.b1\.0\.(.*)", r"backbone.encoder.vit.blocks.{last}.\1"),
        (r"backbone\.b1\.1\.(.*)", r"backbone.encoder.vit.norm.\1"),
        (rf"backbone\.base\.{VIT}", r"backbone.encoder.vit.\1"),
        (r"backbone\.norm_share\.(.*)", r"backbone.fusion.invariant.norm.\1"),
        (r"backbone\.norm_view\.(.*)", r"backbone.fusion.specific.norm.\1"),
        (r"backbone\.final_attn_token_to_image\.attn\.(.*)", r"backbone.fusion.fusion.attn.\1"),
        (r"backbone\.final_attn_token_to_image\.mlp\.(.*)", r"backbone.fusion.fusion.mlp.\1"),
        (r"backbone\.final_attn_token_to_image\.norm2\.(.*)", r"backbone.fusion.fusion.norm1.\1"),
        (r"backbone\.final_attn_token_to_image\.norm3\.(.*)", r"backbone.fusion.fusion.norm2.\1"),
        *HEADS,
    ),
)
EXPERT_PARTS = {
    "prm.cross_attn.v_proj": "value",
    "prm.cross_attn.out_proj": "out",
    "prm.attn.qkv": "qkv",
    "prm.attn.proj": "proj",
    "prm.mlp.fc1": "fc1",
    "prm.mlp.fc2": "fc2",
    "prm.norm1": "norm1",
    "prm.norm2": "norm2",
    "prm.norm3": "norm3",
}
EXPERT_GROUPS = ("share", "sky", "ground")


def convert_vdt(state: State) -> Converted:
    """Convert a released VDT's state dict."""
    rest = _checked(state, VDT)
    made = {"backbone.view_tokens": rest.pop("backbone.view_token")}
    return _finished(made, rest, {}, VDT.renames)


def convert_visa(state: State) -> Converted:
    """Convert a released ViSA's state dict, for `variant: released`."""
    rest = _checked(state, VISA)
    last = str(max(_numbers(rest, "backbone.base.blocks")))
    unused = {what: _taken_out(rest, pattern.replace("{last}", last)) for pattern, what in VISA.dead}
    made = {**_view_tokens(rest), **_experts(rest), **_routers(rest), **_fusion(rest)}
    renames = [(pattern, replacement.replace("{last}", last)) for pattern, replacement in VISA.renames]
    return _finished(made, rest, {what: keys for what, keys in unused.items() if keys}, renames)


CONVERTERS: dict[str, Callable[[State], Converted]] = {"vdt": convert_vdt, "visa": convert_visa}


def _checked(state: State, rules: Rules) -> dict[str, Tensor]:
    """Return a copy without the prefix of data-parallel training, or refuse what is not the method's."""
    plain = {key.removeprefix("module."): value for key, value in state.items()}
    if rules.telling in plain:
        return plain
    raise InputError(f"no released {rules.method} checkpoint: {_instead(plain, rules)}")


def _instead(plain: State, rules: Rules) -> str:
    """Say what a state dict is that is not the released method's."""
    for each in (VDT, VISA):
        if each.telling in plain:
            return f"it is a released {each.method} checkpoint, convert it as {each.method}"
        if each.ours in plain:
            return f"it is a {each.method} checkpoint in the names of this package already, use it as it is"
    found = f"it has {', '.join(list(plain)[:3])}, ..." if plain else "it is empty"
    return f"{rules.telling} is missing, {found}"


def _finished(made: dict[str, Tensor], rest: State, unused: dict[str, tuple[str, ...]], renames) -> Converted:
    unknown = []
    for key, value in rest.items():
        name = _renamed(key, renames)
        if name is None:
            unknown.append(key)
        else:
            made[name] = value
    if unknown:
        more = f", ... ({len(unknown)} in all)" if len(unknown) > 3 else ""
        raise InputError(f"the released model has no {', '.join(unknown[:3])}{more}")
    return Converted({_of_neck(key): _of_views(key, value) for key, value in made.items()}, unused)


def _renamed(key: str, renames) -> str | None:
    for pattern, replacement in renames:
        if found := re.fullmatch(pattern, key):
            return found.expand(replacement)
    return None


def _of_neck(key: str) -> str:
    """Return a head's key in the names of `BNNeck`."""
    return re.sub(r"head\.bottleneck\.0\.", "head.norm.", re.sub(r"head\.weight$", "head.classifier.weight", key))


def _of_views(key: str, value: Tensor) -> Tensor:
    return value.flip(0) if key == "view_head.weight" else value


def _numbers(rest: State, owner: str) -> list[int]:
    """Return the numbers under which a list of modules stands in the checkpoint."""
    pattern = re.compile(rf"{re.escape(owner)}\.(\d+)\.")
    numbers = sorted({int(found[1]) for key in rest if (found := pattern.match(key))})
    if not numbers:
        raise InputError(f"the checkpoint is incomplete: {owner}.0 is missing")
    return numbers


def _view_tokens(rest: dict[str, Tensor]) -> dict[str, Tensor]:
    tokens = [f"backbone.base.view_token_{view}" for view in EXPERT_GROUPS[1:]]
    return {"backbone.encoder.view_tokens": _joined(rest, tokens, lambda values: torch.cat(values, dim=1))}


def _experts(rest: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stack the experts' tensors into those of one bank."""
    numbers = _numbers(rest, "backbone.share_experts")
    owners = [f"backbone.{group}_experts.{number}" for group in EXPERT_GROUPS for number in numbers]
    made = {"backbone.queries.experts.tokens": _joined(rest, [f"{owner}.prompt" for owner in owners], torch.cat)}
    for part, name in EXPERT_PARTS.items():
        for leaf in ("weight",) if part == "prm.attn.qkv" else ("weight", "bias"):
            keys = [f"{owner}.{part}.{leaf}" for owner in owners]
            made[f"backbone.queries.experts.{name}.{leaf}"] = _joined(rest, keys, torch.stack)
    return made


def _routers(rest: dict[str, Tensor]) -> dict[str, Tensor]:
    made = {}
    for leaf in ("weight", "bias"):
        share, *by_view = (f"backbone.{group}_router.gate.{leaf}" for group in EXPERT_GROUPS)
        made[f"backbone.queries.shared_router.{leaf}"] = _taken(rest, share).unsqueeze(0)
        made[f"backbone.queries.view_router.{leaf}"] = _joined(rest, by_view, torch.stack)
    return made


def _fusion(rest: dict[str, Tensor]) -> dict[str, Tensor]:
    graph = _taken(rest, "backbone.share_gcn.gcn_weights")
    return {
        "backbone.fusion.invariant.graph.weight": graph,
        "backbone.fusion.specific.graph.weight": graph,
        "backbone.fusion.token": _taken(rest, "backbone.out_token").squeeze(0),
    }


def _taken(rest: dict[str, Tensor], key: str) -> Tensor:
    if key not in rest:
        raise InputError(f"the checkpoint is incomplete: {key} is missing")
    return rest.pop(key)


def _taken_out(rest: dict[str, Tensor], pattern: str) -> tuple[str, ...]:
    """Remove the tensors whose keys match, and return the keys."""
    keys = tuple(key for key in rest if re.fullmatch(pattern, key))
    for key in keys:
        del rest[key]
    return keys


def _joined(rest: dict[str, Tensor], keys: Sequence[str], join: Callable[[list[Tensor]], Tensor]) -> Tensor:
    """Take tensors of one shape and join them."""
    values = [_taken(rest, key) for key in keys]
    for key, value in zip(keys, values, strict=True):
        if value.shape != values[0].shape:
            raise InputError(
                f"the checkpoint is damaged: {key} is {tuple(value.shape)}, but {keys[0]} is {tuple(values[0].shape)}"
            )
    return join(values)
