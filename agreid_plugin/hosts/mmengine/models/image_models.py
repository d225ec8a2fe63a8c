"""VDT, ViSA and the baseline, VIF-AGReID's too, as models of the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from agreid_plugin.errors import InputError, said_of
from agreid_plugin.hosts.mmengine.config.arguments import checked
from agreid_plugin.hosts.mmengine.models import baseline
from agreid_plugin.hosts.mmengine.models.backbones import HostBackbone, core_of
from agreid_plugin.hosts.mmengine.models.base import ReIDModel, accuracy
from agreid_plugin.hosts.mmengine.models.baseline import ForeignBackbone
from agreid_plugin.hosts.mmengine.models.build import Config, build, build_objectives, head_maker
from agreid_plugin.hosts.mmengine.registry import MODELS
from agreid_plugin.losses import identity_objectives
from agreid_plugin.methods import vdt, visa
from agreid_plugin.nn.size_checks import whole
from agreid_plugin.nn.view_token_vit import DecoupledEncoder
from agreid_plugin.types import Batch, HeadOutputs, View

PAPER = "paper"  # the variant of a backbone that names none


@MODELS.register_module()
@checked(vdt.VDT, given=("backbone", "head", "view_head", "objectives"))
class VDT(ReIDModel):
    """VDT.

    Args:
        num_ids: identities in the training set.
        backbone: `VDTBackbone`.
        head: of identities and of views, `BNNeck` without one; width and classes are filled in.
        objectives: name -> loss of the identity head; the method's own without any.
        data_preprocessor: see `ReIDModel`.
        init_cfg: mmengine's initialization.
        options: further arguments of `agreid_plugin.methods.vdt.VDT`, as `view_weight`.
    """

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
        core = core_of("agreid_plugin.VDT", backbone, DecoupledEncoder, ["agreid_plugin.VDTBackbone"])
        make = head_maker(head)
        with said_of("VDT"):
            heads = make(core.width, whole("num_ids", num_ids)), make(core.width, len(View))
            method = vdt.VDT(core, *heads, build_objectives(objectives), **options)
        super().__init__(method, data_preprocessor, init_cfg)


@MODELS.register_module()
@checked(visa.ViSA, given=("backbone", "identities", "make_head", "objectives"))
class ViSA(ReIDModel):
    """ViSA.

    Args:
        num_ids: identities in the training set.
        backbone: `ViSABackbone`.
        head: of identities, local features and views, `BNNeck` without one; width and classes are filled in.
        objectives: name -> loss of both identity heads; the method's own without any.
        data_preprocessor: see `ReIDModel`.
        init_cfg: mmengine's initialization.
        options: further arguments of `agreid_plugin.methods.visa.ViSA`: `view`, `view_weight`, `balance_weight`, and
            `variant`, which is the backbone's without any.
    """

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
        core = core_of("agreid_plugin.ViSA", backbone, visa.ViSABackbone, ["agreid_plugin.ViSABackbone"])
        make, own = head_maker(head), backbone.get("variant", PAPER) if isinstance(backbone, Mapping) else None
        if own and options.setdefault("variant", own) != own:
            raise InputError(f"ViSA: variant={options['variant']!r}, but its backbone has {own!r}: give both the same")
        with said_of("ViSA"):
            method = visa.ViSA(
                core,
                whole("num_ids", num_ids),
                make_head=lambda classes: make(core.width, classes),
                objectives=build_objectives(objectives),
                **options,
            )
        super().__init__(method, data_preprocessor, init_cfg)


@MODELS.register_module()
@checked()
class Baseline(ReIDModel):
    """Any backbone with one head. With VIAL among the objectives, and PLRM among the transforms, it is VIF-AGReID.

    Args:
        num_ids: identities in the training set.
        backbone: one of ours, or of another toolbox as `dict(type='mmpretrain.ResNet', ...)`.
        width: width of the features of another toolbox's backbone.
        head: `BNNeck` without one; width and classes are filled in.
        objectives: name -> loss; cross-entropy and soft-margin triplets without any.
        data_preprocessor: see `ReIDModel`.
        init_cfg: mmengine's initialization.
    """

    def __init__(
        self,
        num_ids: int,
        backbone: Config,
        width: int | None = None,
        head: Config | None = None,
        objectives: Mapping[str, Config] | None = None,
        data_preprocessor: Config | None = None,
        init_cfg: Config | None = None,
    ):
        with said_of("Baseline"):
            wrapped = _backbone(build("backbone", backbone), backbone, width)
            neck = head_maker(head)(wrapped.out_channels, whole("num_ids", num_ids))
            method = baseline.Baseline(wrapped, neck, build_objectives(objectives) or identity_objectives())
        super().__init__(method, data_preprocessor, init_cfg)

    def accuracies(self, outputs: HeadOutputs, batch: Batch) -> dict[str, Tensor]:
        """Return how often the identity is right, for the log."""
        return accuracy("cls_accuracy", outputs.logits, batch.pids)


def _backbone(backbone: nn.Module, config: Config | nn.Module, width: int | None) -> HostBackbone | ForeignBackbone:
    name = config["type"] if isinstance(config, Mapping) else type(backbone).__name__
    if not isinstance(backbone, HostBackbone):
        if width is None:
            raise InputError(f"width=None, but it has to say how wide the features of backbone {name} are")
        return ForeignBackbone(backbone, str(name), whole("width", width))
    if width not in (None, backbone.out_channels):
        raise InputError(f"width={width}, but the features of backbone {name} have {backbone.out_channels}")
    return backbone
