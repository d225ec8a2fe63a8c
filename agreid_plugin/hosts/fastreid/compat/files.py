"""Files of weights and configurations: no code in them is run, and checkpoints are written atomically."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import torch
import yaml
from torch import nn

from agreid_plugin.errors import InputError, first_line, input_error_like
from agreid_plugin.hosts.fastreid.compat.names import host, replace
from agreid_plugin.hosts.host_fixes import HostFixes
from agreid_plugin.hosts.safe_torch import SafeTorch

HOST_FIXES = HostFixes()
fix = partial(HOST_FIXES.add, "fastreid")

CALLERS = ("modeling.meta_arch.baseline", "modeling.meta_arch.mgn")
"""Where the host builds backbones."""
TAG = "!!python/name:os.system"
MISFIT_ERRORS = (RuntimeError, LookupError, AttributeError, TypeError, ValueError)
"""Errors of the host on weights of another network than it builds."""


@fix(
    "the host's checkpoint loader runs pickled code on torch < 2.6, and fails without a reason on a plain state dict",
    lambda: host("utils.checkpoint").Checkpointer._load_file.__module__.startswith("fastreid."),
)
def safe_checkpoints() -> None:
    """Load tensors and plain values only, from the host's format or a plain state dict."""
    from agreid_plugin.nn.checkpoints import read_checkpoint

    host("utils.checkpoint").Checkpointer._load_file = lambda self, f: read_checkpoint(f)  # noqa: ARG005


@fix(
    "a crash leaves half a checkpoint or marker, and a full disk ends the run",
    lambda: host("utils.checkpoint").Checkpointer.save.__module__.startswith("fastreid."),
)
def atomic_checkpoints() -> None:
    """Write files atomically, and go on without where the disk is full."""
    from agreid_plugin.hosts.fastreid.engine.loop import save

    host("utils.checkpoint").Checkpointer.save = save


@fix(
    "the host's backbones run code in files of pretrained weights on torch < 2.6, and fail without a reason otherwise",
    lambda: any(module.torch is torch for module in _backbone_modules()),
)
def safe_pretrained_weights() -> None:
    """Load tensors and plain values only, and name a file that is for another network."""
    safe = SafeTorch()
    for module in _backbone_modules():
        module.torch = safe
    host("modeling.backbones.mobilenetv3").load_state_dict_from_url = safe.hub.load_state_dict_from_url
    build = _explain_misfits(host("modeling.backbones.build").build_backbone, safe)
    replace("build_backbone", build, "modeling.backbones.build", "modeling.backbones", "modeling", *CALLERS)


@fix(
    "the host's configurations may hold YAML tags that run code",
    lambda: _reads_objects(host("config").CfgNode.load_yaml_with_base),
)
def plain_yaml() -> None:
    """Read configurations, those of teachers and bases too, as plain YAML."""
    host("config").CfgNode.load_yaml_with_base = staticmethod(_load_plain_yaml)


def _reads_objects(load: Callable[..., Any]) -> bool:
    """Return whether a reader of configurations makes Python objects that a file asks for."""
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


def _load_plain_yaml(filename: str, allow_unsafe: bool = False) -> dict[str, Any]:  # noqa: ARG001 - the host's signature
    """Read a configuration file with its bases as plain YAML, also where the caller allows more."""
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


def _explain_misfits(build: Callable[..., nn.Module], safe: SafeTorch) -> Callable[..., nn.Module]:
    """Return a builder of backbones whose error names a file of `PRETRAIN_PATH` that does not fit.

    Args:
        build: the host's.
        safe: the stand-in of torch that its backbones read files with.
    """

    def build_backbone(cfg) -> nn.Module:
        node, before = cfg.MODEL.BACKBONE, safe.files_read
        try:
            return build(cfg)
        except InputError:
            raise
        except MISFIT_ERRORS as error:
            if safe.files_read == before:
                raise
            path, reason = node.PRETRAIN_PATH, misfit_reason(error)
            raise input_error_like(
                error, f"MODEL.BACKBONE.PRETRAIN_PATH {path} is not for {node.NAME}: {reason}"
            ) from error

    return build_backbone


@fix(
    "RegNet and EfficientNet look for their files below the working folder, and keep what another one has set",
    lambda: "merge_from_file" not in vars(host("modeling.backbones.regnet.config").cfg),
)
def networks_described_by_files() -> None:
    """Read the description of a RegNet or EfficientNet from the host's package, upon its defaults."""
    node = host("modeling.backbones.regnet.config").cfg
    defaults, package = node.clone(), Path(importlib.import_module("fastreid").__file__).parent

    def merge_from_file(path: str) -> None:
        with (package.parent / path).open(encoding="utf-8") as file:
            found = type(node).load_cfg(file)
        node.merge_from_other_cfg(defaults)
        node.merge_from_other_cfg(found)

    vars(node)["merge_from_file"] = merge_from_file  # on the one object: setattr would make it a key


def misfit_reason(error: Exception) -> str:
    """Return the most telling line of an error on loading weights, which is not torch's first."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line.startswith("size mismatch")), first_line(error))


def _backbone_modules() -> list[ModuleType]:
    """Return the modules of the host's backbones that read files of weights."""
    names = (
        *("resnet", "osnet", "resnest", "resnext", "shufflenet", "mobilenet", "mobilenetv3", "repvgg"),
        *("vision_transformer", "regnet.regnet", "regnet.effnet"),
    )
    return [importlib.import_module(f"fastreid.modeling.backbones.{name}") for name in names]
