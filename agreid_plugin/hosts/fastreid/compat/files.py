"""Files, of others and the host's own: no code in them is run, and none is there by half."""

from __future__ import annotations

import torch

from agreid_plugin.hosts.fastreid.compat import safe_files
from agreid_plugin.hosts.fastreid.compat.mending import host, replace
from agreid_plugin.hosts.host_fixes import Patches

CALLERS = ("modeling.meta_arch.baseline", "modeling.meta_arch.mgn")
"""Where the host builds backbones."""

PATCHES = Patches()
patch = PATCHES.add


@patch(
    "after",
    "the host's checkpoint loader runs pickled code on torch < 2.6, and fails without a reason on a plain state dict",
    lambda: host("utils.checkpoint").Checkpointer._load_file.__module__.startswith("fastreid."),
)
def safe_checkpoints() -> None:
    """Load tensors and plain values only, from the host's format or a plain state dict."""
    from agreid_plugin.nn.checkpoints import read_checkpoint

    host("utils.checkpoint").Checkpointer._load_file = lambda self, path: read_checkpoint(path)  # noqa: ARG005


@patch(
    "after",
    "the host's checkpoints and their marker are torn by a crash, and a full disk ends the run",
    lambda: host("utils.checkpoint").Checkpointer.save.__module__.startswith("fastreid."),
)
def whole_checkpoints() -> None:
    """Write files that are there in full or not at all, and go on where the disk takes none."""
    from agreid_plugin.hosts.fastreid.engine.checkpoints import save

    host("utils.checkpoint").Checkpointer.save = save


@patch(
    "after",
    "the host's backbones run code in files of pretrained weights on torch < 2.6, and fail without a reason otherwise",
    lambda: any(module.torch is torch for module in safe_files.backbone_modules()),
)
def safe_pretrained_weights() -> None:
    """Load tensors and plain values only, and say which file is for another network."""
    from agreid_plugin.hosts.safe_torch import SafeTorch

    safe = SafeTorch()
    for module in safe_files.backbone_modules():
        module.torch = safe
    host("modeling.backbones.mobilenetv3").load_state_dict_from_url = safe.hub.load_state_dict_from_url
    build = safe_files.saying_what_misfits(host("modeling.backbones.build").build_backbone, safe)
    replace("build_backbone", build, "modeling.backbones.build", "modeling.backbones", "modeling", *CALLERS)


@patch(
    "after",
    "the host's configurations may hold YAML tags that run code",
    lambda: safe_files.reads_objects(host("config").CfgNode.load_yaml_with_base),
)
def plain_yaml() -> None:
    """Read configurations, those of teachers and bases too, as plain YAML."""
    host("config").CfgNode.load_yaml_with_base = staticmethod(safe_files.load_yaml_with_base)
