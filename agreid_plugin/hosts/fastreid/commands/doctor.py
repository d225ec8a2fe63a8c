"""Checks of fast-reid for `fastreid doctor`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import fastreid
import torch
from fastreid.config import get_cfg
from fastreid.solver import build_optimizer

from agreid_plugin.errors import Finding
from agreid_plugin.hosts.fastreid.compat import HOST_FIXES

SCRIPTS = ("fastreid.evaluation.rank_cylib.setup", "fastreid.evaluation.rank_cylib.test_cython")
"""Files in the host's package that are programs: importing them runs them."""


def host_modules() -> Iterator[str]:
    """Yield the name of every module of the host."""
    for module in pkgutil.walk_packages(fastreid.__path__, "fastreid."):
        if module.name not in SCRIPTS:
            yield module.name


def diagnose() -> list[Finding]:
    """Run every check."""
    return [_modules_import(), _faults_are_gone(), _weights_move()]


def _modules_import() -> Finding:
    failed, names = [], list(host_modules())
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            failed.append(f"{name} ({error})")
    if failed:
        return Finding(False, f"{len(failed)} of the host's {len(names)} modules do not import: {'; '.join(failed)}")
    return Finding(True, f"all {len(names)} modules of the host import")


def _faults_are_gone() -> Finding:
    left = [fix.name for fix in HOST_FIXES.all if fix.needed()]
    return Finding(not left, f"faults of the host left: {', '.join(left) or 'none'}")


def _weights_move() -> Finding:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(4, 2).to(device)
    optimizer, _ = build_optimizer(get_cfg(), model)
    before = model.weight.detach().clone()
    optimizer.zero_grad()
    model(torch.ones(1, 4, device=device)).sum().backward()
    optimizer.step()
    moved = not torch.equal(before, model.weight)
    return Finding(moved, f"one optimizer step on {device} {'changes' if moved else 'does NOT change'} the weights")
