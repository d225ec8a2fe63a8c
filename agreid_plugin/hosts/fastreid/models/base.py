"""Models and methods as meta-architectures: building, registration, heads, batches, and encoding in chunks."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import getitem
from typing import Any, ClassVar

import torch
from fastreid import modeling
from fastreid.config import get_cfg
from fastreid.engine.hooks import HookBase
from fastreid.evaluation import inference_context
from fastreid.layers import pooling
from fastreid.modeling.backbones import build_backbone
from fastreid.modeling.heads import REID_HEADS_REGISTRY, build_heads
from fastreid.modeling.losses.cross_entroy_loss import log_accuracy
from fastreid.modeling.meta_arch import META_ARCH_REGISTRY, Baseline
from torch import Tensor, nn

from agreid_plugin.engine.compilation import resolve_options
from agreid_plugin.errors import InputError, error_context, first_line, unknown
from agreid_plugin.hosts.fastreid.config.loading import Key, declare, key_error_context, with_value
from agreid_plugin.hosts.fastreid.config.signatures import keys_from, options_from
from agreid_plugin.hosts.fastreid.data.batches import from_host
from agreid_plugin.hosts.fastreid.models.backbones import (
    CLIP_BACKBONE,
    HostBackbone,
    build_text_tower,
    build_towers,
)
from agreid_plugin.hosts.fastreid.models.losses import build_objectives, declare_architecture
from agreid_plugin.hosts.fastreid.models.released import ReleasedModelSpec
from agreid_plugin.inference.weights import require_loaded
from agreid_plugin.nn.bnneck import BNNeck
from agreid_plugin.nn.clip import CLIP
from agreid_plugin.nn.gradient_cache import TwoStageMethod
from agreid_plugin.nn.network_adapters import adapt_network
from agreid_plugin.nn.network_tower import NetworkTower
from agreid_plugin.nn.view_token_vit import PlainEncoder
from agreid_plugin.types import VIEW_SOURCES, Batch, HeadOutputs, ReIDMethod

_logger = logging.getLogger("fastreid.train")

OUR_HEAD = "BNNeckHead"
VIEW = "view"  # the option that all methods share one key for
KEYS = (
    Key("MODEL.VIEW", "given", "Where the view of a test image comes from, if the method needs it: given | predicted."),
    Key(
        "SOLVER.CACHED_CHUNK",
        0,
        "Images of a process encoded at once, with the gradients of its whole batch: less memory, more time; 0: all.",
    ),
    Key(
        "SOLVER.COMPILE",
        "",
        "Backend of torch.compile for the network in training steps, as inductor; empty: not compiled.",
    ),
)
declare(KEYS)


class HostMethod:
    """Mixin before a method's class that makes it a meta-architecture: the host's dictionaries and normalization.

    Where a method needs more of the host than most do, it says so in the class methods and attributes below.
    """

    group: ClassVar[str] = ""
    """The group of configuration keys that have the options of the method's constructor."""
    left_out: ClassVar[Collection[str]] = ()
    """Options that are no keys of the group."""
    core_type: ClassVar[type[nn.Module]] = nn.Module
    """The type of the method's backbone."""
    suitable: ClassVar[str] = ""
    """The backbones that the method takes beside those of its type, in words; empty where it takes no other."""
    takes_any_backbone: ClassVar[bool] = False
    """Whether the backbone may be the host's or another library's, whose width is `MODEL.BACKBONE.FEAT_DIM`."""
    own_losses: ClassVar[Mapping[str, str]] = {}
    """Losses that the method has built in -> the key of the weight below `group`, empty if there is none."""
    computed_with: ClassVar[Mapping[str, str]] = {}
    """The attributes that hold losses of the method's own -> the module without which one is not computed."""
    released: ClassVar[ReleasedModelSpec | None] = None
    """The model of the method's released code, if its checkpoints can be converted."""

    def __init__(self, cfg):
        parts = self.build_parts(cfg)
        with key_error_context(self.group):
            super().__init__(*parts, **self.read_options(cfg))
        self.keep_normalization(cfg)

    @classmethod
    def build_parts(cls, cfg) -> tuple[Any, ...]:
        """Return the constructor's first arguments: the backbone, and what `head_parts` gives."""
        return find_core(cfg, cls), *head_parts(cfg)

    @classmethod
    def count_extra_tokens(cls, _cfg) -> int:
        """Return how many tokens the method adds between the blocks of a ViT."""
        return 0

    @classmethod
    def build_core(cls, _cfg, vit: nn.Module) -> nn.Module:
        """Build the method's backbone around a ViT, or around a network of another library that is adapted to it."""
        return cls.core_type(vit)

    @classmethod
    def read_options(cls, cfg) -> dict[str, Any]:
        """Return the constructor's options from their keys; `view` is that of `MODEL.VIEW`."""
        method = cls.method_class()
        options = options_from(reduce(getitem, cls.group.split("."), cfg), method, {VIEW, *cls.left_out})
        return options | ({VIEW: view_source(cfg)} if VIEW in inspect.signature(method).parameters else {})

    @classmethod
    def method_class(cls) -> type[ReIDMethod]:
        """Return the class of the method, which knows no host."""
        return next(base for base in cls.__mro__ if issubclass(base, ReIDMethod) and not issubclass(base, HostMethod))

    @classmethod
    def learns_attributes(cls, _cfg) -> bool:
        """Return whether the model of a configuration learns the attributes of its training sets."""
        return False

    @classmethod
    def training_hooks(cls, _cfg) -> list[HookBase]:
        """Return what the method does in the course of a training beside its steps."""
        return []

    @classmethod
    def skip_stages(cls, _model: nn.Module) -> None:
        """Give a model what its steps need of the hooks' work before them, unlearned, for steps that are only timed."""

    @classmethod
    def weight_files(cls, _cfg) -> dict[str, str]:
        """Return role -> file of the weights that a configuration names in keys of the method's own."""
        return {}

    def keep_normalization(self, cfg) -> None:
        """Keep mean and deviation of the pixels, which the host's checkpoints do not hold."""
        for name, values in (("pixel_mean", cfg.MODEL.PIXEL_MEAN), ("pixel_std", cfg.MODEL.PIXEL_STD)):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1), persistent=False)

    @property
    def device(self) -> torch.device:
        """The device that the host moves images to."""
        return self.pixel_mean.device

    def forward(self, inputs: dict[str, Any] | Tensor) -> dict[str, Tensor] | Tensor:
        """Return the losses in training, the features otherwise."""
        if not self.training:
            return self.embed(self.infer(inputs))
        batch = self.normalized(inputs)
        outputs = self.compiled(self, batch)
        self.log_accuracies(outputs, batch)
        return self.losses(outputs, batch)

    def run_network(self, batch: Batch) -> Any:
        """Return the method's outputs."""
        return super().forward(batch)

    compiled: Callable[[HostMethod, Batch], Any] = staticmethod(run_network)  # see `compile_network`

    def log_accuracies(self, outputs: Any, batch: Batch) -> None:
        """Log how often identities are right in training; `outputs.identity` has their logits."""
        log_accuracy(outputs.identity.logits.detach(), batch.pids)

    def infer(self, inputs: dict[str, Any] | Tensor) -> Any:
        """Return the outputs for test images, made of no more than the method may see of them."""
        return super().forward(self.normalized(inputs).only(self.inference_inputs))

    def normalized(self, inputs: dict[str, Any] | Tensor) -> Batch:
        """Return the host's dictionary, or only images, as a batch for the method."""
        batch = from_host(inputs if isinstance(inputs, dict) else {"images": inputs})
        return batch.with_(images=(batch.images - self.pixel_mean) / self.pixel_std)


def register_method(
    group: str, *builders: Callable[..., Any], left_out: Collection[str] = ()
) -> Callable[[type[HostMethod]], type[HostMethod]]:
    """Register a class as a meta-architecture; the options of its method's constructor are keys.

    Options are the arguments behind `*`. A key has the argument's name in capitals, its default, and the sentence of
    the docstring.

    Args:
        group: the group of keys, as `MODEL.VDT`.
        builders: functions whose options are keys of the group as well, as one that builds the backbone.
        left_out: options that the class gives by itself.
    """

    def register(kind: type[HostMethod]) -> type[HostMethod]:
        kind.group, kind.left_out = group, left_out
        for function in (*builders, kind.method_class()):
            declare(keys_from(group, function, {VIEW, *left_out}, label=kind.__name__))
        declare_architecture(kind.__name__, {loss: key and f"{group}.{key}" for loss, key in kind.own_losses.items()})
        META_ARCH_REGISTRY.register(kind)
        return kind

    return register


def get_method_class(cfg) -> type[HostMethod]:
    """Return the class of a configuration's meta-architecture, one that asks for nothing where it is the host's."""
    architecture = META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE)
    return architecture if isinstance(architecture, type) and issubclass(architecture, HostMethod) else HostMethod


def view_source(cfg) -> str:
    """Return where the view of a test image comes from."""
    if cfg.MODEL.VIEW not in VIEW_SOURCES:
        raise unknown("MODEL.VIEW", cfg.MODEL.VIEW, VIEW_SOURCES)
    return cfg.MODEL.VIEW


def find_core(cfg, method: type[HostMethod]) -> nn.Module:
    """Build the backbone of the configuration and return a method's core, which it is or which is built around it."""
    core = build_network(cfg)
    if isinstance(core, method.core_type):
        return core
    with backbone_error_context(cfg, method.suitable):
        adapted = adapt_network(core, cfg.INPUT.SIZE_TRAIN, method.count_extra_tokens(cfg))
    return method.build_core(cfg, adapted)


def build_network(cfg) -> nn.Module:
    """Build the network of `MODEL.BACKBONE`, without what makes it a backbone of the host."""
    backbone = build_backbone(cfg)
    core = backbone.core if isinstance(backbone, HostBackbone) else backbone
    return core.vit if isinstance(core, PlainEncoder) else core


def find_towers(cfg, method: type[HostMethod], needs_tokens: bool = True, shared: bool = False) -> CLIP:
    """Build CLIP's towers, or the network of another backbone and CLIP's text tower.

    Args:
        cfg: the configuration.
        method: the method that takes them.
        needs_tokens: whether tokens of the method join those of the network.
        shared: whether images are compared with texts, which needs a projection to the same width.
    """
    if cfg.MODEL.BACKBONE.NAME == CLIP_BACKBONE:
        return build_towers(cfg)
    text, network = build_text_tower(cfg), build_network(cfg)
    with backbone_error_context(cfg, method.suitable):
        image = NetworkTower(network, cfg.INPUT.SIZE_TRAIN, text.embed_dim if shared else None)
        if needs_tokens and not image.depth:
            raise InputError(f"{image.name} has no class token and blocks that take tokens")
    return CLIP(image, text)


@contextmanager
def backbone_error_context(cfg, suitable: str) -> Iterator[None]:
    """Put the names of backbone and architecture before what a network cannot give, and behind it what suits."""
    try:
        yield
    except InputError as error:
        raise InputError(
            f"MODEL.BACKBONE.NAME {cfg.MODEL.BACKBONE.NAME} does not suit MODEL.META_ARCHITECTURE "
            f"{cfg.MODEL.META_ARCHITECTURE}: {error}; use {suitable}"
        ) from error


def head_parts(cfg) -> tuple[int, Callable[[int, int], nn.Module], nn.ModuleDict]:
    """Return identities, what makes heads, and their losses: what methods take after the backbone."""
    return cfg.MODEL.HEADS.NUM_CLASSES, partial(make_head, cfg), build_objectives(cfg)


@REID_HEADS_REGISTRY.register()
class BNNeckHead(nn.Module):
    """`BNNeck` as a head of the host: pools a backbone's map, and gives the host's outputs."""

    def __init__(self, cfg):
        super().__init__()
        self.pool = getattr(pooling, cfg.MODEL.HEADS.POOL_LAYER)()
        self.neck = BNNeck(cfg.MODEL.BACKBONE.FEAT_DIM, cfg.MODEL.HEADS.NUM_CLASSES)

    def forward(self, features: Tensor, targets: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        """Return the host's dictionary in training, the embedding otherwise: (B, D, rows, cols)."""
        outputs = self.neck(self.pool(features).flatten(1), targets)
        if not self.training:
            return outputs.embedding
        logits = outputs.logits
        return {"cls_outputs": logits, "pred_class_logits": logits, "features": outputs.features}


class HostHead(nn.Module):
    """A head of the host for a method of ours."""

    def __init__(self, head: nn.Module):
        super().__init__()
        self.head = head

    def forward(self, features: Tensor, labels: Tensor | None = None) -> HeadOutputs:
        """Run the head on one feature an image: (B, D)."""
        outputs = self.head(features[..., None, None], labels)
        if isinstance(outputs, Tensor):
            return HeadOutputs(features, outputs)
        return HeadOutputs(outputs["features"], outputs["features"], outputs["cls_outputs"])


def make_head(cfg, width: int, classes: int) -> nn.Module:
    """Make the head that `MODEL.HEADS.NAME` says for features of a width, which may have its own number of classes."""
    if cfg.MODEL.HEADS.NAME == OUR_HEAD:
        return BNNeck(width, classes)
    own = cfg.clone()
    own.defrost()
    own.MODEL.BACKBONE.FEAT_DIM, own.MODEL.HEADS.NUM_CLASSES = width, classes
    return HostHead(build_heads(own))


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
            f"apart what can be computed in chunks: set it to 0 (it works with {', '.join(list_chunkable()) or 'none'})"
        )
    model.chunk = chunk
    _logger.info("batches are encoded in chunks of %d, with the gradients of the whole", chunk)


def compile_network(cfg, model: nn.Module) -> None:
    """Have training steps run a model's network compiled, where `SOLVER.COMPILE` names a backend.

    Of a method of ours that is all from images to outputs, of the host's `Baseline` the backbone, in tests as well.
    Losses and the optimizer's step stay as they are. Parameters keep their names.
    """
    key, backend = "SOLVER.COMPILE", cfg.SOLVER.COMPILE
    if not backend:
        return
    options = resolve_options(key, model.device, backend=backend)
    if isinstance(model, HostMethod):
        model.compiled = torch.compile(HostMethod.run_network, **options)  # of any instance: a deep copy runs itself
    elif isinstance(model, Baseline):
        model.backbone.compile(**options)
    else:  # as MGN: torch would compile the blocks of its trunk one by one
        raise InputError(f"{key}: MODEL.META_ARCHITECTURE {cfg.MODEL.META_ARCHITECTURE} cannot be compiled")


def list_chunkable() -> list[str]:
    """Return the names of the meta-architectures that can be trained in chunks."""
    known = META_ARCH_REGISTRY._obj_map.items()
    return sorted(name for name, kind in known if isinstance(kind, type) and issubclass(kind, TwoStageMethod))


def build_model(cfg) -> torch.nn.Module:
    """Build the model of a configuration as the host does, the width of its features asked for or checked."""
    cfg = with_feature_width(cfg)
    model = modeling.build_model(cfg)
    check_feature_width(cfg, model)
    set_chunk(cfg, model)
    return model


def build_for_inference(cfg) -> torch.nn.Module:
    """Build the model of a configuration; without a number of classes its classifier, which is not used, has one."""
    return build_model(with_value(cfg, "MODEL.HEADS.NUM_CLASSES", cfg.MODEL.HEADS.NUM_CLASSES or 1))


def teacher_defaults(student):
    """Return the defaults of a Distiller's teacher, which has the classes of its student unless its recipe has some."""
    return with_value(get_cfg(), "MODEL.HEADS.NUM_CLASSES", student.MODEL.HEADS.NUM_CLASSES)


def build_teacher(cfg) -> torch.nn.Module:
    """Build a model whose weights come from elsewhere, the width of its features asked for where it is not given."""
    return modeling.build_model(with_feature_width(with_value(cfg, "MODEL.BACKBONE.PRETRAIN", False)))


def require_teachers(cfg, models: Sequence[nn.Module]) -> None:
    """Refuse weights that do not fill their teacher; the host goes on with a classifier that is as drawn."""
    paths = cfg.KD.MODEL_WEIGHTS
    for path, model in zip(paths, models[len(models) - len(paths) :], strict=True):
        left_out = require_loaded(model, path)
        for name in left_out if cfg.MODEL.HEADS.NUM_CLASSES > 1 else ():  # 1 is that of an evaluation
            shape = tuple(model.state_dict()[name].shape)
            raise InputError(
                f"KD.MODEL_WEIGHTS {path} has no {name} of the teacher's shape, {shape}: teacher and student need the "
                "same identities"
            )


def takes_any_backbone(cfg) -> bool:
    """Return whether a meta-architecture takes whatever backbone is named, as the host's do; others need their own."""
    method = get_method_class(cfg)
    return method is HostMethod or method.takes_any_backbone


def with_feature_width(cfg):
    """Return the configuration with the width of the backbone's features where `MODEL.BACKBONE.FEAT_DIM` is 0.

    The backbone is built once more to be asked, from random weights that do not touch the random numbers of the run.
    Most of our meta-architectures take the width from theirs, and need no number.
    """
    if cfg.MODEL.BACKBONE.FEAT_DIM or not takes_any_backbone(cfg):
        return cfg
    asked = with_value(cfg, "MODEL.BACKBONE.PRETRAIN", False)
    try:
        with torch.random.fork_rng(devices=()):
            width = _feature_width(asked, build_backbone(asked), torch.device("cpu"))
    except RuntimeError as error:
        raise InputError(
            f"MODEL.BACKBONE.FEAT_DIM is 0, but {cfg.MODEL.BACKBONE.NAME} cannot be asked for its width, give it: "
            f"{first_line(error)}"
        ) from error
    return with_value(cfg, "MODEL.BACKBONE.FEAT_DIM", width)


def check_feature_width(cfg, model: torch.nn.Module) -> None:
    """Check `MODEL.BACKBONE.FEAT_DIM`, which the host takes on trust, against what the backbone gives."""
    if not isinstance(model, Baseline):
        return
    width = _feature_width(cfg, model.backbone, model.device)
    if width != cfg.MODEL.BACKBONE.FEAT_DIM:
        raise InputError(
            f"MODEL.BACKBONE.FEAT_DIM is {cfg.MODEL.BACKBONE.FEAT_DIM}, but {cfg.MODEL.BACKBONE.NAME} "
            f"{cfg.MODEL.BACKBONE.DEPTH} gives {width}: set it to {width}"
        )


def _feature_width(cfg, backbone: torch.nn.Module, device: torch.device) -> int:
    """Return the width of what a head gets of the backbone's map after its pooling."""
    where = f"MODEL.BACKBONE.NAME {cfg.MODEL.BACKBONE.NAME} in MODEL.META_ARCHITECTURE {cfg.MODEL.META_ARCHITECTURE}"
    with inference_context(backbone), torch.no_grad(), error_context(where):
        _, width, rows, cols = backbone(torch.zeros(1, 3, *cfg.INPUT.SIZE_TEST, device=device)).shape
    pooling, name = cfg.MODEL.HEADS.POOL_LAYER, cfg.MODEL.BACKBONE.NAME
    if pooling == "Identity" and rows * cols > 1:
        raise InputError(
            f"MODEL.HEADS.POOL_LAYER Identity leaves the {rows}x{cols} map of {name}, of which a head takes a corner: "
            "use GlobalAvgPool"
        )
    return width * rows * cols if pooling == "Flatten" else width
