"""Tiny models of the mmengine host for tests, and batches as its loaders give them: 32x16 images, width 16."""

import torch
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement

from agreid_plugin.nn.clip import tokenize
from agreid_plugin.types import UNKNOWN, Batch

VIT = {"size": "tiny", "image_size": (32, 16), "patch_size": 8, "width": 16, "depth": 2, "heads": 2, "drop_path": 0.0}
CLIP = {
    "image_size": (32, 16),
    "patch_size": 8,
    "width": 16,
    "layers": 3,
    "heads": 2,
    "text_width": 24,
    "text_layers": 2,
    "text_heads": 2,
    "embed_dim": 8,
    "text_length": 48,
}
ROWS = [["hair", ["long", "short"]], ["bag", ["none", "hand", "back"]]]
IDENTITIES = 3
VIEWS = (0, 1, 1, 0, 1, 0)
PIDS = (0, 0, 1, 1, 2, 2)
ATTRIBUTES = ((0, 2), (0, 2), (1, -1), (1, 0), (-1, 1), (0, 1))
SENTENCES = ("a man in red", "a person", "a woman", "someone with a bag", "a man with a hat", "two shoes")
LABELS = {"pid": 7, "camera": 3, "view": 1, "platform": UNKNOWN, "sample_idx": 4, "gt_label": 2}

BACKBONES = {
    "ViT": {"type": "agreid_plugin.ViTBackbone", "vit": VIT},
    "VDT": {"type": "agreid_plugin.VDTBackbone", "vit": VIT},
    "ViSA": {"type": "agreid_plugin.ViSABackbone", "vit": VIT, "experts": 3, "tokens": 2, "neighbors": 3},
}
OBJECTIVES = {
    "cls": {"type": "agreid_plugin.IdentityLoss", "over_nonzero": True},
    "triplet": {"type": "agreid_plugin.TripletLoss"},
}
VIF = {"type": "agreid_plugin.VIF", "objectives": OBJECTIVES, "lambda_": 0.7}

CONFIGS = {
    "VDT": {"type": "agreid_plugin.VDT", "backbone": BACKBONES["VDT"], "objectives": OBJECTIVES},
    "ViSA": {"type": "agreid_plugin.ViSA", "backbone": BACKBONES["ViSA"], "objectives": OBJECTIVES},
    "SVPR": {"type": "agreid_plugin.SVPR", "clip": {**CLIP, "freeze": ["text"]}, "objectives": OBJECTIVES},
    "VIF": {**VIF, "backbone": BACKBONES["ViT"]},
    "TAGCLIP": {"type": "agreid_plugin.TAGCLIP", "clip": CLIP, "at": [1], "tse_width": 10, "freeze_patches": False},
}
RESNET = {"type": "mmpretrain.ResNet", "depth": 18}
WITH_MMPRETRAIN = {"ResNet": {**VIF, "backbone": RESNET, "width": 512}}
CONFIGS["SVPR-attributes"] = {**CONFIGS["SVPR"], "attributes": ROWS}


def model(name: str, **changes):
    """Build one of `CONFIGS`, or `WITH_MMPRETRAIN`, for three identities."""
    torch.manual_seed(0)
    return MODELS.build({**(CONFIGS | WITH_MMPRETRAIN)[name], "num_ids": IDENTITIES, **changes})


def batch() -> Batch:
    """Six images of three people with everything that can be known of them; pixels from 0 to 255."""
    images = torch.rand(len(PIDS), 3, 32, 16, generator=torch.Generator().manual_seed(1)) * 255
    return Batch(
        images=images,
        pids=torch.tensor(PIDS),
        views=torch.tensor(VIEWS),
        platforms=torch.tensor(VIEWS),  # a drone in the air, a fixed camera on the ground
        cameras=torch.zeros(len(PIDS), dtype=torch.long),
        attributes=torch.tensor(ATTRIBUTES),
        tokens=tokenize(list(SENTENCES), CLIP["text_length"]),
    )


def loaded(given: Batch, training: bool = True) -> dict:
    """Return a batch as a loader of the host gives it."""
    samples = []
    for place in range(len(given)):
        labels = {"view": given.views, "platform": given.platforms, "camera": given.cameras}
        info = {name: None if values is None else int(values[place]) for name, values in labels.items()}
        sample = BaseDataElement(
            metainfo={"img_path": f"{place}.png", "sample_idx": place, "caption_number": None, **info}
        )
        if given.pids is not None:
            sample.set_data({"gt_label": int(given.pids[place])})
        for name in ("attributes", "tokens") if training else ():
            if getattr(given, name) is not None:
                sample.set_data({name: getattr(given, name)[place]})
        samples.append(sample)
    return {"inputs": list(given.images), "data_samples": samples}


def sentences(tokens: torch.Tensor) -> dict:
    """Return captions as a loader gives them after a test set's images."""
    samples = [BaseDataElement(metainfo={"img_path": "0.png", "caption_number": place}) for place in range(len(tokens))]
    for sample, row in zip(samples, tokens, strict=True):
        sample.set_data({"tokens": row})
    return {"inputs": [None] * len(tokens), "data_samples": samples}


def run(host_model, data: dict, mode: str):
    """Call a model as mmengine's loops do."""
    return host_model._run_forward(host_model.data_preprocessor(data, mode == "loss"), mode=mode)
