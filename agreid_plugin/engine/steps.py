"""Training steps kept in files, to be taken again: `nan_step_12.pth` in a run's folder and `fastreid replay`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agreid_plugin.data.atomic_write import whole_file
from agreid_plugin.data.rng import restore_random_state
from agreid_plugin.engine.step_watch import all_finite, described
from agreid_plugin.errors import InputError, first_line
from agreid_plugin.nn.checkpoints import read_checkpoint, require_file
from agreid_plugin.types import Batch

KIND = "training step"
NEEDED = {
    "kind": str,
    "host": str,
    "iteration": int,
    "process": int,
    "terms": dict,
    "batch": dict,
    "model": dict,
    "random": dict,
    "autocast": str,
    "config": str,
}
SHOWN = 3  # images spelled out in a line about many


@dataclass(frozen=True)
class Step:
    """A step as it was kept.

    Attributes:
        host: `fastreid` or `mmengine`.
        iteration: its number, from 1.
        process: which one of many it was taken in.
        terms: name -> the loss that came of it.
        batch: what was learned from, pixels from 0 to 255.
        model: the state dict of the model before the step.
        random: the state of every random generator before the step.
        autocast: the number type of mixed precision, empty without.
        config: the configuration: YAML of fast-reid, JSON of mmengine.
    """

    host: str
    iteration: int
    process: int
    terms: Mapping[str, float]
    batch: Batch
    model: Mapping[str, Tensor]
    random: Mapping[str, Any]
    autocast: str
    config: str


def write_step(folder: str | Path, step: Step) -> str:
    """Write a step into a run's folder; return how to take it again, or why that cannot be."""
    path = Path(folder) / f"nan_step_{step.iteration}.pth"
    batch = {
        name: value.detach().cpu() if isinstance(value, Tensor) else list(value)
        for name, value in step.batch.present().items()
    }
    try:
        with whole_file(path) as draft:
            torch.save({**vars(step), "kind": KIND, "batch": batch}, draft)
    except (OSError, RuntimeError) as error:
        return f"the step could not be kept in {path}: {first_line(error)}"
    return f"to see where: fastreid replay {path}"


def read_step(path: str | Path) -> Step:
    """Read a step, without running code stored in the file.

    Raises:
        InputError: the file is missing, cannot be read, or holds something else.
    """
    require_file(path)
    content = read_checkpoint(path)
    wrong = [name for name, kind in NEEDED.items() if not isinstance(content.get(name), kind)]
    if wrong or content["kind"] != KIND or not _is_sound(content):
        raise InputError(f"{path} is no step that a run kept (nan_step_*.pth), or is damaged")
    parts = {name: value for name, value in content.items() if name in NEEDED and name != "kind"}
    return Step(**{**parts, "batch": Batch(**content["batch"])})


def _is_sound(content: Mapping[str, Any]) -> bool:
    """Tell whether what is in a file's parts is what a step has in them."""
    tensors = {**content["batch"], **content["model"]}
    paths = tensors.pop("paths", [])
    return (
        {each.name for each in fields(Batch)}.issuperset(content["batch"])
        and isinstance(content["batch"].get("images"), Tensor)
        and all(isinstance(value, Tensor) for value in tensors.values())
        and all(isinstance(path, str) for path in paths)
        and all(isinstance(value, float) for value in content["terms"].values())
        and content["autocast"] in ("", "float16", "bfloat16")
    )


class FirstNotFinite:
    """Finds the module of a model whose output is the first that is not finite."""

    def __init__(self, model: nn.Module, batch: Batch):
        self.told = ""
        self._batch = batch
        self._handles = [
            module.register_forward_hook(self._looking(name)) for name, module in model.named_modules() if name
        ]

    def stop(self) -> None:
        """Let go of the model."""
        while self._handles:
            self._handles.pop().remove()

    def _looking(self, name: str) -> Callable:
        def look(module: nn.Module, arguments: Any, outputs: Any) -> None:
            wrong = [each for each in tensors_in(outputs) if not each.isfinite().all()] if not self.told else []
            if wrong:
                before = all(each.isfinite().all() for each in tensors_in(arguments))
                weights = all(each.isfinite().all() for each in module.parameters())
                self.told = (
                    f"{name} ({type(module).__name__}){self._images(wrong[0])}; its inputs are "
                    f"{'' if before else 'not '}finite, its weights are {'' if weights else 'not '}finite"
                )

        return look

    def _images(self, output: Tensor) -> str:
        """Say which images it is about, where an output has a row for each."""
        paths = self._batch.paths or ()
        if output.dim() < 2 or len(output) != len(paths):
            return ""
        rows = (~output.flatten(1).isfinite().all(dim=1)).nonzero()[:, 0].tolist()
        named = ", ".join(paths[row] for row in rows[:SHOWN])
        return f", for {len(rows)} of {len(paths)} images: {named}{', ...' if len(rows) > SHOWN else ''}"


def tensors_in(value: Any) -> list[Tensor]:
    """Return the floating-point tensors in what a module takes or gives."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, Mapping):
        value = list(value.values())
    elif hasattr(value, "__dataclass_fields__"):
        value = [getattr(value, name) for name in value.__dataclass_fields__]
    return [each for part in value for each in tensors_in(part)] if isinstance(value, list | tuple) else []


def taken_again(step: Step, model: nn.Module, losses_of: Callable[[Batch], Mapping[str, Tensor]]) -> list[str]:
    """Take a step again, up to its losses, and return what to say of it.

    Args:
        step: the step.
        model: a model as it was trained.
        losses_of: the loss terms that the model makes of a batch.
    """
    try:
        model.load_state_dict(dict(step.model))
    except RuntimeError as error:
        raise InputError(f"the model of the configuration is not that of the step: {first_line(error)}") from None
    device = next(model.parameters()).device
    precision = getattr(torch, step.autocast) if step.autocast else None
    model.train()
    finder = FirstNotFinite(model, step.batch)
    _restore(step)
    try:
        with torch.autocast(device.type, dtype=precision, enabled=precision is not None):
            terms = {name: float(value.detach().mean()) for name, value in losses_of(step.batch.to(device)).items()}
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise InputError(f"the step cannot be taken again, its file may be damaged: {first_line(error)}") from error
    finder.stop()
    return [
        f"iteration {step.iteration}, process {step.process}: {len(step.batch)} images, {step.autocast or 'float32'}",
        f"then: {described(step.terms)}",
        f"now:  {described(terms)}",
        _verdict(finder.told, terms),
    ]


def _restore(step: Step) -> None:
    try:
        restore_random_state(dict(step.random))
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise InputError(f"the random states in the step are damaged: {first_line(error)}") from None


def _verdict(told: str, terms: Mapping[str, float]) -> str:
    if told:
        return f"first output that is not finite: {told}"
    if not all_finite(terms):
        return "the output of every module is finite: it is the computation of the loss itself"
    return "every output and every loss is finite here: the step does not repeat itself on this machine"
