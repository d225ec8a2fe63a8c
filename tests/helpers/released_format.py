"""State dicts of ours in the names of the released codes, by rules written by hand from their list of keys."""

import torch
from torch import Tensor

EXPERT_PARTS = {
    "value": "prm.cross_attn.v_proj",
    "out": "prm.cross_attn.out_proj",
    "qkv": "prm.attn.qkv",
    "proj": "prm.attn.proj",
    "fc1": "prm.mlp.fc1",
    "fc2": "prm.mlp.fc2",
    "norm1": "prm.norm1",
    "norm2": "prm.norm2",
    "norm3": "prm.norm3",
}
GROUPS = ("share", "sky", "ground")


def released_vdt(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a VDT's state dict as the released code would have it."""
    state = heads(ours)
    state["backbone.view_token"] = ours["backbone.view_tokens"]
    for name, value in under(ours, "backbone.vit.").items():
        state[f"backbone.{name}"] = value
    return copied(state)


def released_visa(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a ViSA's state dict as the released code would have it, with what is dead there drawn at random."""
    state = {**heads(ours), **base(ours), **experts(ours), **fusion(ours)}
    tokens = ours["backbone.encoder.view_tokens"]
    state["backbone.base.view_token_sky"], state["backbone.base.view_token_ground"] = tokens[:, :1], tokens[:, 1:]
    for leaf in ("weight", "bias"):
        (state[f"backbone.share_router.gate.{leaf}"],) = ours[f"backbone.queries.shared_router.{leaf}"]
        sky, ground = ours[f"backbone.queries.view_router.{leaf}"]
        state[f"backbone.sky_router.gate.{leaf}"], state[f"backbone.ground_router.gate.{leaf}"] = sky, ground
    return copied(state)


def under(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}


def heads(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    state = {}
    for head in ("head", "local_head", "view_head"):
        for name, value in under(ours, f"{head}.norm.").items():
            state[f"{head}s.bottleneck.0.{name}"] = value
        if f"{head}.classifier.weight" in ours:
            state[f"{head}s.weight"] = ours[f"{head}.classifier.weight"]
    state["view_heads.weight"] = state["view_heads.weight"].flip(0)  # there, aerial is 1
    return state


def base(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """The encoder: the last block and the final norm are in `b1`, dead ones in `base`."""
    vit = under(ours, "backbone.encoder.vit.")
    last = max(int(name.split(".")[1]) for name in vit if name.startswith("blocks."))
    state = {f"backbone.base.{name}": value for name, value in vit.items()}
    for place, part in enumerate((f"blocks.{last}.", "norm.")):
        for name, value in under(vit, part).items():
            state[f"backbone.b1.{place}.{name}"] = value
            state[f"backbone.base.{part}{name}"] = torch.randn_like(value)
    return state


def experts(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """One module an expert, with the query and key projections that do nothing."""
    bank, state = under(ours, "backbone.queries.experts."), {}
    count, _, width = bank["tokens"].shape
    for number in range(count):
        group, place = divmod(number, count // len(GROUPS))
        owner = f"backbone.{GROUPS[group]}_experts.{place}"
        state[f"{owner}.prompt"] = bank["tokens"][number : number + 1]
        for part, released in EXPERT_PARTS.items():
            for leaf, value in under(bank, f"{part}.").items():
                state[f"{owner}.{released}.{leaf}"] = value[number]
        for dead in ("q_proj", "k_proj"):
            state[f"{owner}.prm.cross_attn.{dead}.weight"] = torch.randn(width, width)
            state[f"{owner}.prm.cross_attn.{dead}.bias"] = torch.randn(width)
    return state


def fusion(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Graphs and fusion; both branches run one graph layer."""
    part = under(ours, "backbone.fusion.")
    token, graph = part["token"], part["invariant.graph.weight"]
    assert torch.equal(graph, part["specific.graph.weight"])
    state = {
        "backbone.out_token": token.unsqueeze(0),
        "backbone.share_gcn.gcn_weights": graph,
        "backbone.view_gcn.gcn_weights": torch.randn_like(graph),
        "backbone.image_pe": torch.randn(1, ours["backbone.encoder.vit.pos_embed"].shape[1] - 2, len(token)),
    }
    for ours_part, released in (
        ("invariant.norm", "norm_share"),
        ("specific.norm", "norm_view"),
        ("fusion.attn", "final_attn_token_to_image.attn"),
        ("fusion.mlp", "final_attn_token_to_image.mlp"),
        ("fusion.norm1", "final_attn_token_to_image.norm2"),
        ("fusion.norm2", "final_attn_token_to_image.norm3"),
    ):
        for name, value in under(part, f"{ours_part}.").items():
            state[f"backbone.{released}.{name}"] = value
    return state


def randomize(model: torch.nn.Module) -> None:
    """Give every tensor of a model values that tell it from all others, and that keep it sound."""
    generator = torch.Generator().manual_seed(0)
    for name, value in model.state_dict().items():
        if name.endswith("running_var"):
            value.uniform_(0.5, 1.5, generator=generator)
        elif value.is_floating_point():
            value.normal_(1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.2, generator=generator)
