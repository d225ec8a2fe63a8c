"""Files that fast-reid reads by itself, read so that none of them runs code or is half taken for something else."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import yaml
from torch import nn

from agreid_plugin.errors import InputError, first_line
from agreid_plugin.hosts.safe_torch import SafeTorch

TAG = "!!python/name:os.system"
MISFITS = (RuntimeError, LookupError, AttributeError, TypeError, ValueError)
"""What the host raises on weights of another network than it builds."""


def reads_objects(load: Callable[..., Any]) -> bool:
    """Tell whether a reader of configurations makes objects of Python that a file asks for."""
    logger = logging.getLogger("fastreid.config.config")
    with TemporaryDirectory() as folder:
        path = Path(folder, "probe.yml")
        path.write_text(f"SEED: {TAG} ''\n")
        logger.disabled = True  # or it would warn of the probe
        try:
            load(str(path), allow_unsafe=True)
        except (InputError, yaml.YAMLError):
            return False
        finally:
            logger.disabled = False
    return True


def load_yaml_with_base(filename: str, allow_unsafe: bool = False) -> dict[str, Any]:  # noqa: ARG001 - the host's
    """Read a configuration file with its bases as plain YAML, whatever the caller allows."""
    read = importlib.import_module("agreid_plugin.hosts.fastreid.config.loading").read_with_bases
    merged: dict[str, Any] = {}
    for _, content in read(Path(filename)):
        _merge(content, merged)
    return merged


def _merge(content: dict[str, Any], into: dict[str, Any]) -> None:
    for key, value in content.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(value, into[key])
        else:
            into[key] = value


def saying_what_misfits(build: Callable[..., nn.Module], safe: SafeTorch) -> Callable[..., nn.Module]:
    """Return a builder of backbones that says in one line what is wrong with the file of `PRETRAIN_PATH`.

    Args:
        build: the host's.
        safe: by which its backbones read files.
    """

    def build_backbone(cfg) -> nn.Module:
        node, before = cfg.MODEL.BACKBONE, safe.files_read
        try:
            return build(cfg)
        except InputError:
            raise
        except MISFITS as error:
            if safe.files_read == before:
                raise
            raise InputError(
                f"MODEL.BACKBONE.PRETRAIN_PATH {node.PRETRAIN_PATH} is not for {node.NAME}: {misfit(error)}"
            ) from error

    return build_backbone


def misfit(error: Exception) -> str:
    """Return the line of an error on loading weights that tells most: torch begins with one that tells nothing."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line.startswith("size mismatch")), first_line(error))


def backbone_modules() -> list[ModuleType]:
    """Return the modules of the host's backbones that read files of weights."""
    names = (
        *("resnet", "osnet", "resnest", "resnext", "shufflenet", "mobilenet", "mobilenetv3", "repvgg"),
        *("vision_transformer", "regnet.regnet", "regnet.effnet"),
    )
    return [importlib.import_module(f"fastreid.modeling.backbones.{name}") for name in names]
