"""Methods as models of the host: `loss`, `predict` and `tensor` around a `ReIDMethod`, and registration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from mmengine.model import BaseModule
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from agreid_plugin.engine.compilation import resolve_options
from agreid_plugin.errors import InputError, error_context, require_int, unknown
from agreid_plugin.hosts.mmengine.config.arguments import check_arguments
from agreid_plugin.hosts.mmengine.data.batches import is_sentence, to_batch
from agreid_plugin.hosts.mmengine.engine.checkpoint_reader import rename_from_fastreid
from agreid_plugin.hosts.mmengine.models.backbones import find_core
from agreid_plugin.hosts.mmengine.models.build import Config, build, build_objectives, get_head_maker
from agreid_plugin.hosts.mmengine.models.retrieval import PrototypeModel
from agreid_plugin.hosts.mmengine.registry import MODELS, SCOPE
from agreid_plugin.types import Batch, ReIDMethod

MODES = ("loss", "predict", "tensor")
PREPROCESSOR = {"type": "agreid_plugin.ReIDPreprocessor"}


def _run_network(method: ReIDMethod, batch: Batch) -> Any:
    return method(batch)


class ReIDModel(PrototypeModel):
    """A method as a model of the host.

    Args:
        method: the method.
        data_preprocessor: stacks and normalizes images; `ReIDPreprocessor` without one.
        init_cfg: mmengine's initialization.
    """

    compiled: Callable[[ReIDMethod, Batch], Any] = staticmethod(_run_network)

    def __init__(self, method: ReIDMethod, data_preprocessor: Config | None = None, init_cfg: Config | None = None):
        preprocessor = build("data_preprocessor", PREPROCESSOR if data_preprocessor is None else data_preprocessor)
        super().__init__(preprocessor, init_cfg)
        self.method = method

    def forward(
        self,
        inputs: Tensor | None,
        data_samples: Sequence[BaseDataElement] | None = None,
        mode: str = "tensor",
    ) -> dict[str, Tensor] | list[BaseDataElement] | Tensor:
        """Return losses, the samples with their `feature`, or features: (B, D).

        Args:
            inputs: images as the data preprocessor gives them, (B, 3, rows, cols); None for sentences only.
            data_samples: what is known of each image; sentences, which have none, may stand among them.
            mode: `loss`, `predict` or `tensor`.
        """
        if mode not in MODES:
            raise unknown("mode", mode, MODES)
        if mode == "loss":
            return self.loss(inputs, data_samples or ())
        if mode == "predict" and self.prototype_vecs is not None:
            return self._match_prototypes(inputs, data_samples)
        if mode == "tensor" and data_samples is None and inputs is not None:
            return self.extract_feat(inputs)
        features = self.features(inputs, data_samples or ())
        return features if mode == "tensor" else self._attach_features(features, data_samples)

    def compile_network(self, **options: Any) -> None:
        """Have training steps run the method, from images to outputs, compiled; options are those of `torch.compile`.

        Losses, the optimizer's step and tests stay as they are. Parameters keep their names.
        """
        options = resolve_options("compile", next(self.parameters()).device, **options)
        self.compiled = torch.compile(_run_network, **options)

    def loss(self, images: Tensor, samples: Sequence[BaseDataElement]) -> dict[str, Tensor]:
        """Return the terms to minimize, `loss_*`, and how often the model is right, `*_accuracy`."""
        batch = self.training_batch(images, samples)
        outputs = self.compiled(self.method, batch)
        return self.method.losses(outputs, batch) | self.accuracies(outputs, batch)

    def features(self, images: Tensor | None, samples: Sequence[BaseDataElement]) -> Tensor:
        """Return one feature a sample, made of no more than the method may see of it: (B, D)."""
        texts = [place for place, sample in enumerate(samples) if is_sentence(sample)]
        shown = [place for place, sample in enumerate(samples) if not is_sentence(sample)]
        if texts and "tokens" not in self.method.inference_inputs:
            raise InputError(f"{type(self).__name__} reads no sentences: test it with protocols of images only")
        if images is None and not texts:
            raise InputError("there is neither an image nor a sentence to make a feature of")
        found = []
        if images is not None:
            found.append(self._embed_batch(to_batch(images, [samples[place] for place in shown]).with_(tokens=None)))
        if texts:
            found.append(self._embed_batch(to_batch(None, [samples[place] for place in texts])))
        return torch.cat(found)[torch.tensor([*shown, *texts]).argsort()] if len(found) > 1 else found[0]

    def training_batch(self, images: Tensor | None, samples: Sequence[BaseDataElement]) -> Batch:
        """Return images with the labels of their samples, which must be all that the method learns from."""
        batch = to_batch(images, samples)
        for name in sorted(self.method.training_inputs):
            if getattr(batch, name) is None:
                raise InputError(
                    f"{type(self).__name__} learns from {name}, but the data loader gives none: see the training set "
                    "and its pipeline"
                )
        return batch

    def accuracies(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return how often the identity is right, for the log."""
        return compute_accuracy("cls_accuracy", outputs.identity.logits, batch.pids)

    def init_weights(self) -> None:
        """Initialize what other toolboxes made as they say; mmengine's own way stops at modules that are not its."""
        super().init_weights()
        for module in _find_outermost(self.method):
            module.init_weights()

    def _embed_batch(self, batch: Batch) -> Tensor:
        return self.method.embed(self.method(batch.only(self.method.inference_inputs)))

    @staticmethod
    def _attach_features(features: Tensor, samples: Sequence[BaseDataElement] | None) -> list[BaseDataElement]:
        if samples is None:
            samples = [BaseDataElement() for _ in features]
        for sample, feature in zip(samples, features.float(), strict=True):
            sample.set_data({"feature": feature})
        return list(samples)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        rename_from_fastreid(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)


class BackboneModel(ReIDModel):
    """A method on a backbone with heads, built from a configuration.

    Args:
        num_ids: identities in the training set.
        backbone: of a type that the method takes.
        head: `BNNeck` without one; width and classes are filled in.
        objectives: name -> loss of the heads; the method's own without any.
        data_preprocessor: see `ReIDModel`.
        init_cfg: mmengine's initialization.
        options: further arguments of the method.
    """

    method_type: ClassVar[type[ReIDMethod]]  # see `register_method`
    core_type: ClassVar[type[nn.Module]]
    backbones: ClassVar[Sequence[str]]

    def __init__(
        self,
        num_ids: int,
        backbone: Config,
        head: Config | None = None,
        objectives: Mapping[str, Config] | None = None,
        data_preprocessor: Config | None = None,
        init_cfg: Config | None = None,
        **options: Any,
    ):
        name = type(self).__name__
        core = find_core(f"{SCOPE}.{name}", backbone, self.core_type, self.backbones)
        with error_context(name):
            parts = (core, require_int("num_ids", num_ids), get_head_maker(head), build_objectives(objectives))
            method = self.method_type(*parts, **self.resolve_options(backbone, options))
        super().__init__(method, data_preprocessor, init_cfg)

    @staticmethod
    def resolve_options(_backbone: Config, options: dict[str, Any]) -> dict[str, Any]:
        """Return the method's options, where some follow from the backbone's configuration."""
        return options


def register_method(
    method: type[ReIDMethod], core_type: type[nn.Module], *backbones: str
) -> Callable[[type[BackboneModel]], type[BackboneModel]]:
    """Register a class as a model: the options of its method's constructor, those behind `*`, are arguments.

    Args:
        method: the method, which knows no host.
        core_type: what it takes as its backbone.
        backbones: types of a configuration that have such a core.
    """

    def register(kind: type[BackboneModel]) -> type[BackboneModel]:
        kind.method_type, kind.core_type, kind.backbones = method, core_type, backbones
        return MODELS.register_module(module=check_arguments(method)(kind))

    return register


def compute_accuracy(name: str, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return by this name how often the largest logit is the label's, from 0 to 1: (B, C), (B,) -> ()."""
    return {name: (logits.detach().argmax(dim=1) == labels).float().mean()}


def _find_outermost(module: nn.Module) -> Iterator[BaseModule]:
    """Yield mmengine's modules that are in no other of its modules."""
    for child in module.children():
        if isinstance(child, BaseModule):
            yield child
        else:
            yield from _find_outermost(child)
