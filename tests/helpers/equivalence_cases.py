"""Methods and losses whose batch of 32 one process has, or two with 16 each: float64, nothing drawn at random."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from fastreid.config import get_cfg
from fastreid.modeling import build_model
from fastreid.modeling.losses import triplet_loss
from fastreid.utils.events import EventStorage
from small_mmengine import BACKBONES, CLIP, SENTENCES, model
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from agreid_plugin.hosts.fastreid.data.batches import to_host
from agreid_plugin.hosts.fastreid.models.losses import LOSSES, build_objectives
from agreid_plugin.losses import FeatureLoss, IdentityLoss, LogitLoss, OrthogonalLoss, OutputLoss, TripletLoss
from agreid_plugin.methods.clip_reid import CLIPBaseline, CLIPReID
from agreid_plugin.nn.bnneck import BNNeck
from agreid_plugin.nn.clip import tokenize
from agreid_plugin.nn.clip_build import build_clip
from agreid_plugin.types import UNKNOWN, Batch, HeadOutputs

IMAGES, IDENTITIES, SHARES = 32, 8, 2
NOTHING_DRAWN = {"sample": "argmax", "noise": 0.0, "text_dropout": 0.0}
RELEASED = {**BACKBONES["ViSA"], "variant": "released"}
TBPS = {"block": "vit", "tse": False, "view_loss": False, "ortho_loss": False, "id_loss": False, "text_dropout": 0.0}


def batch() -> Batch:
    """32 images of 8 people, two or more of each in either half; views and attributes are known unevenly."""
    generator = torch.Generator().manual_seed(3)
    half = IMAGES // 2
    views = torch.tensor([0] * 12 + [1] * 4 + [0] * 3 + [1] * 13)
    attributes = torch.stack([torch.randint(0, values, (IMAGES,), generator=generator) for values in (2, 3)], dim=1)
    attributes[:half, 0] = UNKNOWN
    attributes[half + 1 :, 1] = UNKNOWN
    attributes[3, 0] = 1
    return Batch(
        images=torch.randn(IMAGES, 3, 32, 16, generator=generator, dtype=torch.float64),
        pids=torch.arange(IMAGES) * 5 % IDENTITIES,
        views=views,
        platforms=views,
        attributes=attributes,
        tokens=tokenize([SENTENCES[number % len(SENTENCES)] for number in range(IMAGES)], CLIP["text_length"]),
    )


def share(whole: Batch, number: int) -> Batch:
    """One of two processes' half."""
    half = IMAGES // SHARES
    return whole.with_(**{name: value[half * number :][:half] for name, value in whole.present().items()})


class Terms(nn.Module):
    """What DDP wraps: from a batch to the terms of a loss."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, given: Batch) -> dict[str, Tensor]:
        return self.inner.losses(self.inner(given), given)


# Methods


def method(name: str, **options) -> nn.Module:
    return model(name, num_ids=IDENTITIES, **options).method


def clip_method(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    clip = build_clip(**CLIP)
    if kind is CLIPBaseline:
        return CLIPBaseline(clip.image, IDENTITIES)
    made = CLIPReID(clip.image, clip.text, IDENTITIES)
    made.prompts.mul_(50)
    made.keep_texts()
    return made


class InFastReID(nn.Module):
    """VIF-AGReID as fast-reid's trainer calls it: a dictionary of a batch in, losses out."""

    def __init__(self):
        super().__init__()
        cfg = get_cfg()
        cfg.merge_from_list(
            [
                *("MODEL.META_ARCHITECTURE", "VIF", "MODEL.BACKBONE.NAME", "build_plain_vit_backbone"),
                *("MODEL.BACKBONE.DEPTH", "tiny", "MODEL.BACKBONE.STRIDE_SIZE", (8, 8), "MODEL.VIT.PATCH_SIZE", 8),
                *("MODEL.VIT.WIDTH", 16, "MODEL.VIT.HEADS", 2, "MODEL.VIT.LAYERS", 2),
                *("MODEL.HEADS.NAME", "BNNeckHead", "MODEL.HEADS.NUM_CLASSES", IDENTITIES, "MODEL.DEVICE", "cpu"),
                *("MODEL.BACKBONE.PRETRAIN", False, "MODEL.BACKBONE.DROP_PATH_RATIO", 0.0),
                *("INPUT.SIZE_TRAIN", (32, 16), "INPUT.SIZE_TEST", (32, 16)),
            ]
        )
        torch.manual_seed(0)
        self.model = build_model(cfg)

    def forward(self, given: Batch) -> dict[str, Tensor]:
        with EventStorage():
            return self.model(to_host(given.with_(images=given.images * 127.5)))

    def losses(self, outputs: dict[str, Tensor], _given: Batch) -> dict[str, Tensor]:
        return outputs


METHODS: dict[str, Callable[[], nn.Module]] = {
    "VDT": lambda: method("VDT"),
    "ViSA": lambda: method("ViSA"),
    "ViSA, released": lambda: method("ViSA", variant="released", backbone=RELEASED),
    "SVPR": lambda: method("SVPR-attributes"),
    "SVPR, dot": lambda: method("SVPR-attributes", orthogonality="dot"),
    "VIF": lambda: method("VIF"),
    "VIF in fast-reid": InFastReID,
    "TAG-CLIP": lambda: method("TAGCLIP", **NOTHING_DRAWN),
    "TAG-CLIP, SDM": lambda: method("TAGCLIP", **NOTHING_DRAWN, objective="sdm"),
    "TBPS-CLIP": lambda: method("TAGCLIP", **TBPS, at=[]),
    "CLIP baseline": lambda: clip_method(CLIPBaseline),
    "CLIP-ReID": lambda: clip_method(CLIPReID),
}


def prepared(made: nn.Module, own_statistics: bool = False) -> Terms:
    """In float64 without dropout; batch norms go by their running statistics unless they have their own."""
    for module in made.double().train().modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, _BatchNorm) and not own_statistics:
            module.eval()
    return Terms(made)


# Losses


class Parts(nn.Module):
    """Everything that a loss may be computed on, made of images by linear layers."""

    def __init__(self, objective: nn.Module):
        super().__init__()
        torch.manual_seed(0)
        widths = {"features": 6, "view_features": 6, "text_features": 6, "logits": IDENTITIES, "view_logits": 2}
        widths |= {"shared": 3, "aerial": 3, "hair": 2, "bag": 3}
        self.layers = nn.ModuleDict({name: nn.Linear(16, width) for name, width in widths.items()})
        self.objective = objective

    def forward(self, given: Batch) -> SimpleNamespace:
        made = {name: layer(given.images[:, 0, 0]) for name, layer in self.layers.items()}
        certain = nn.functional.one_hot(given.pids, IDENTITIES) * (given.pids < 2)[:, None]
        made["logits"] = made["logits"] + 1e5 * certain  # whose loss is zero to the last bit
        routers = [(made["shared"].softmax(1), None), (made["aerial"].softmax(1), given.views == 0)]
        return SimpleNamespace(**made, routers=routers, attribute_logits=[made["hair"], made["bag"]])

    def losses(self, outputs: SimpleNamespace, given: Batch) -> dict[str, Tensor]:
        unused = sum(0 * values.sum() for values in vars(outputs).values() if isinstance(values, Tensor))
        return {"loss": self.objective(outputs, given) + unused}


def registered(name: str) -> nn.Module:
    (objective,) = build_objectives(get_cfg(), [name]).values()
    return objective


class TheHosts(nn.Module):
    """fast-reid's own triplet loss, as its Baseline computes it."""

    def forward(self, outputs: SimpleNamespace, given: Batch) -> Tensor:
        return triplet_loss(outputs.features, given.pids, 0.3, False, True)


class Necked(nn.Module):
    """Classes learned behind the batch norm of a neck."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head, self.loss = nn.Linear(16, 6), BNNeck(6, IDENTITIES), IdentityLoss()

    def forward(self, given: Batch) -> HeadOutputs:
        return self.head(self.layer(given.images[:, 0, 0]), given.pids)

    def losses(self, outputs: HeadOutputs, given: Batch) -> dict[str, Tensor]:
        return {"loss": self.loss(outputs.logits, given.pids)}


WHOLE: dict[str, Callable[[], nn.Module]] = {name: lambda name=name: registered(name) for name in LOSSES}
WHOLE |= {
    "CrossEntropyLoss over B": lambda: LogitLoss(IdentityLoss(smoothing=0.1)),
    "TripletLoss, weighted": lambda: FeatureLoss(TripletLoss(hard_mining=False)),
    "OrthogonalLoss, dot": lambda: OutputLoss(OrthogonalLoss(kind="dot"), ("features", "view_features")),
}
LOCAL: dict[str, Callable[[], nn.Module]] = {
    "triplets of a process": lambda: FeatureLoss(TripletLoss(gather=False)),
    "fast-reid's own triplets": TheHosts,
}


# Processes


def learned(terms: nn.Module, given: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the terms and the gradients of their sum, by names without a wrapper's."""
    found = terms(given)
    sum(found.values()).backward()
    gradients = {name.removeprefix("module."): each.grad for name, each in terms.named_parameters()}
    values = {name: value.detach() for name, value in found.items()}
    return values, {name: value for name, value in gradients.items() if value is not None}


def cases() -> dict[str, Callable[[], Terms]]:
    """Return all that two processes compute."""
    methods = {name: lambda make=make: prepared(make()) for name, make in METHODS.items()}
    losses = {name: lambda make=make: prepared(Parts(make())) for name, make in {**WHOLE, **LOCAL}.items()}
    return {**methods, **losses, "own statistics": lambda: prepared(Necked(), own_statistics=True)}


def compute(folder: str) -> None:
    """One of two processes: every case on its half, gradients averaged."""
    torch.set_num_threads(1)
    rank, found = dist.get_rank(), {}
    for name, make in cases().items():
        wrapped = DistributedDataParallel(make())
        found[name] = learned(wrapped, share(batch(), rank))
        if name == "own statistics":
            found["buffers"] = dict(wrapped.module.named_buffers())
    torch.save(found, Path(folder, f"{rank}.pt"))
