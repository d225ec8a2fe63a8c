"""SVPR-ReID as a model of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agreid_plugin.errors import error_context, require_int
from agreid_plugin.hosts.mmengine.config.arguments import check_arguments
from agreid_plugin.hosts.mmengine.data.attributes import get_schema
from agreid_plugin.hosts.mmengine.models.backbones import build_pair
from agreid_plugin.hosts.mmengine.models.base import ReIDModel
from agreid_plugin.hosts.mmengine.models.build import Config, build_objectives, get_head_maker
from agreid_plugin.hosts.mmengine.registry import MODELS
from agreid_plugin.methods import svpr


@MODELS.register_module()
@check_arguments(svpr.SVPR)
class SVPR(ReIDModel):
    """SVPR-ReID.

    Args:
        num_ids: identities in the training set.
        clip: arguments of the towers; see `build_towers`.
        image: a network of any library in the place of CLIP's image tower; see `build_pair`.
        attributes: what is learned of attributes, None for nothing; see `get_schema`.
        head: of identities and of views, `BNNeck` without one; width and classes are filled in.
        objectives: name -> loss of a head of identities; the method's own without any.
        data_preprocessor: see `ReIDModel`.
        init_cfg: mmengine's initialization.
        options: further arguments of `agreid_plugin.methods.svpr.SVPR`, as `variant` and `view`.
    """

    def __init__(
        self,
        num_ids: int,
        clip: Config,
        attributes: Sequence[Any] | Config | None = None,
        head: Config | None = None,
        objectives: Mapping[str, Config] | None = None,
        data_preprocessor: Config | None = None,
        image: Config | None = None,
        init_cfg: Config | None = None,
        **options: Any,
    ):
        with error_context("SVPR"):
            towers, schema = build_pair(clip, image), get_schema(attributes)
            parts = (require_int("num_ids", num_ids), get_head_maker(head), build_objectives(objectives), schema)
            method = svpr.SVPR(towers.image, towers.text, *parts, **options)
        super().__init__(method, data_preprocessor, init_cfg)
