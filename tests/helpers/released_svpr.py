"""State dicts of our SVPR-ReID in the names of the released code, by rules written by hand from its list of keys."""

import torch
from released_format import copied, under
from torch import Tensor

from agreid_plugin.data.attributes import AttributeSchema

HEADS = {"head": "header", "cvpr_head": "header_cvpr", "local_head": "header_local", "view_head": "header_view"}
ATTENTION = {"query": "q_", "key": "k_", "value": "v_", "proj": "proj"}


def released_svpr(ours: dict[str, Tensor], schema: AttributeSchema) -> dict[str, Tensor]:
    """Return an SVPR-ReID's state dict as the released code would have it, what is dead there drawn at random."""
    state = {
        "use_cvpr_token": ours["backbone.cvpr.token"][None, None],
        "local_weight": ours["backbone.cvpr.local_weight"],
        **towers(ours),
        **text(under(ours, "backbone.text."), under(ours, "backbone.vdfe.token.")),
        **decoupling(under(ours, "backbone.vdfe.decoupling.")),
        **asmoe(under(ours, "backbone.asmoe."), schema),
        **cvpr(under(ours, "backbone.cvpr.")),
    }
    for head, released in HEADS.items():
        state |= {f"{released}.bottleneck.{leaf}": value for leaf, value in under(ours, f"{head}.norm.").items()}
        if f"{head}.classifier.weight" in ours:
            state[f"{released}.classifier.weight"] = ours[f"{head}.classifier.weight"]
    return copied(state)


def towers(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    state = {f"BACKBONE.visual.{name}": value for name, value in under(ours, "backbone.image.visual.").items()}
    state |= {f"BACKBONE.{name}": value for name, value in under(ours, "backbone.text.tower.text.").items()}
    state["BACKBONE.visual.new_positional_embedding"] = ours["backbone.vdfe.token.position"][None]
    return state | {"BACKBONE.logit_scale": torch.randn(())}


def text(side: dict[str, Tensor], token: dict[str, Tensor]) -> dict[str, Tensor]:
    embedding = side["tower.text.token_embedding.weight"]
    length = len(side["tower.text.positional_embedding"])
    return {
        "TextNet.text_prompt": side["attribute_prompts"][None],
        "TextNet.view_prompt": side["view_prompts"][None],
        "TextNet.view_promptlearner.token_prefix_suffix": torch.randn(1, length, embedding.shape[1]),
        "TextNet.view_promptlearner.token_view": torch.randn(1, length, embedding.shape[1]),
        "TextNet.view_promptlearner.token_embedding.weight": embedding,
        **attention("TextNet.CA_text2prompt", under(token, "attention.")),
        **moved(token, {"fusion": "TextNet.view_fusion"}),
        **inverse("inverseNet_P2I", under(token, "inverse.")),
    }


def decoupling(part: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {
        "of_view": "CA_view2cls",
        "of_cls": "CA_cls2view",
        "after.0": "norm",
        "after.1": "mlp.0",
        "after.3": "mlp.2",
    }
    return {"VBD.alpha": part["scale"], **moved(part, {name: f"VBD.{other}" for name, other in names.items()})}


def asmoe(part: dict[str, Tensor], schema: AttributeSchema) -> dict[str, Tensor]:
    width, state = part["prompts"].shape[1], {}
    for place, name in enumerate(schema.names):
        owner = f"ASMOE.attributsHeader.{name}"
        state[f"{owner}.classifier.weight"] = part[f"heads.classifiers.{place}.weight"]
        for leaf, value in under(part, "heads.norm.").items():
            own = value[place * width : (place + 1) * width] if value.dim() else value
            state[f"{owner}.bottleneck.{leaf}"] = own
    for name, value in under(part, "experts.experts.").items():
        number, rest = name.split(".", 1)
        state[f"ASMOE.attributesMOE.experts.{number}.mlp.{rest}"] = value
    router = {"fusion.score.0": "layers.0", "fusion.score.2": "layers.1"}
    return {
        **state,
        **inverse("inverseNet_T2I", under(part, "inverse.")),
        **attention("ASMOE.cross_attention", under(part, "attention.")),
        **moved(part, {"experts.gate": "ASMOE.attributesMOE.gate"}),
        **moved(part, {name: f"ASMOE.attributesRouter.{other}" for name, other in router.items()}),
        **norm("ASMOE.attributesRouter.norm_layer", width),
        "ASMOE.attributesPrompt": part["prompts"][None],
    }


def cvpr(part: dict[str, Tensor]) -> dict[str, Tensor]:
    width = len(part["token"])
    state = {
        **attention("CVPRNet.vt_fuse", under(part, "entry.")),
        **moved(part, {"scores.query": "CVPRNet.attn_masker.q_", "scores.key": "CVPRNet.attn_masker.k_"}),
        **moved(part, {"gate": "CVPRNet.gate_fc.0"}),
        **norm("CVPRNet.ln_norm", width),
    }
    names = {"norm1": "norm1", "norm2": "norm2", "norm3": "norm4", "patch_norm": "norm3", "attn": "attn"}
    names |= {"mlp.fc1": "mlp.layers.0", "mlp.fc2": "mlp.layers.1"}
    block = {
        **moved(under(part, "block."), names),
        **attention("cross_attn", under(part, "block.to_patches.")),
        **attention("cross_attn2", under(part, "block.to_query.")),
        **norm("mlp.norm_layer", width),
    }
    for stage in range(3):
        state |= {f"CVPRNet.blocks.{stage}.{name}": value for name, value in block.items()}
    return state


def attention(owner: str, part: dict[str, Tensor]) -> dict[str, Tensor]:
    width = part["proj.weight"].shape[0]
    return {
        **moved(part, {name: f"{owner}.{other}" for name, other in ATTENTION.items()}),
        **norm(f"{owner}.normy", width),
    }


def inverse(owner: str, part: dict[str, Tensor]) -> dict[str, Tensor]:
    width = part["0.weight"].shape[1]
    return {**moved(part, {"0": f"{owner}.layers.0", "3": f"{owner}.layers.1"}), **norm(f"{owner}.norm_layer", width)}


def norm(owner: str, width: int) -> dict[str, Tensor]:
    """A norm that nothing reads."""
    return {f"{owner}.weight": torch.randn(width), f"{owner}.bias": torch.randn(width)}


def moved(part: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    return {
        f"{other}.{leaf}": value for name, other in names.items() for leaf, value in under(part, f"{name}.").items()
    }
