"""Exported files opened by their runtimes, each of which is imported when it is needed.

Shapes: B images or sentences, D width.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np

from agreid_plugin.deploy.metadata import KEY, About
from agreid_plugin.errors import InputError, first_line, require_known

Inputs = Mapping[str, np.ndarray]
Run = Callable[[Inputs], np.ndarray]
ONNX_PROVIDERS: tuple[tuple[str, dict[str, int]], ...] = (
    ("CUDAExecutionProvider", {"use_tf32": 0}),
    ("CPUExecutionProvider", {}),
)
"""Where onnxruntime runs a file, the first that is there; a GPU in full precision, as on a CPU."""


@dataclass(frozen=True)
class Session:
    """A file that is ready to run."""

    about: About
    run: Run  # the graph's inputs by name -> (B, D) of float32


def open_session(path: str | Path, threads: int = 0) -> Session:
    """Open a file by the runtime that its ending tells.

    Args:
        path: `.onnx`, `.xml` of OpenVINO or `.torchscript`.
        threads: that it may use; 0 leaves that to the runtime.

    Raises:
        InputError: the file is not there or not an export, or its runtime is not installed.
    """
    path = Path(path)
    require_known("ending", path.suffix, OPENERS)
    if not path.is_file():
        raise InputError(f"{path} does not exist: make it with fastreid export")
    package, extra, opened = OPENERS[path.suffix]
    runtime = runtime_of(package, extra)
    with _told_by_runtime(f"{path} cannot be read by {package}"):
        session = opened(runtime, path, threads)
    return replace(session, run=_guarded(session.run, f"{path} cannot be run by {package}"))


@contextmanager
def _told_by_runtime(what: str) -> Iterator[None]:
    """Say what fails in one line: each runtime has errors of its own, most of them plain RuntimeErrors."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{what}: {first_line(error)}") from error


def _guarded(run: Run, what: str) -> Run:
    def guarded(inputs: Inputs) -> np.ndarray:
        with _told_by_runtime(what):
            return run(inputs)

    return guarded


def runtime_of(package: str, extra: str) -> ModuleType:
    """Import a package of an extra, or say how to install it."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise InputError(f"{package} is not installed: pip install 'agreid-plugin[{extra}]'") from None


def _onnx(onnxruntime: ModuleType, path: Path, threads: int) -> Session:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors
    there = onnxruntime.get_available_providers()
    providers = [each for each in ONNX_PROVIDERS if each[0] in there]
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    about = About.from_json(session.get_modelmeta().custom_metadata_map.get(KEY), path)
    return Session(about, lambda inputs: session.run(None, dict(inputs))[0])


def _openvino(openvino: ModuleType, path: Path, threads: int) -> Session:
    core = openvino.Core()
    model = core.read_model(path)
    about = About.from_json(model.get_rt_info([KEY]).astype(str) if model.has_rt_info([KEY]) else None, path)
    wanted = {"INFERENCE_PRECISION_HINT": "f32"} | ({"INFERENCE_NUM_THREADS": threads} if threads else {})
    compiled, own = core.compile_model(model, "CPU", wanted), threading.local()

    def run(inputs: Inputs) -> np.ndarray:
        if not hasattr(own, "request"):  # each thread has its own: one that is busy refuses another call
            own.request = compiled.create_infer_request()
        return own.request.infer([inputs[name] for name in about.inputs])[0].copy()

    return Session(about, run)


def _torchscript(torch: ModuleType, path: Path, threads: int) -> Session:
    if threads:
        torch.set_num_threads(threads)
    inside = {f"{KEY}.json": ""}
    module = torch.jit.load(str(path), map_location="cpu", _extra_files=inside)
    about = About.from_json(inside[f"{KEY}.json"], path)

    def run(inputs: Inputs) -> np.ndarray:
        with torch.no_grad():
            return module(*(torch.from_numpy(inputs[name]) for name in about.inputs)).numpy()

    return Session(about, run)


OPENERS = {
    ".onnx": ("onnxruntime", "export", _onnx),
    ".xml": ("openvino", "openvino", _openvino),
    ".torchscript": ("torch", "export", _torchscript),
}
"""Ending -> the package that runs such a file, the extra that installs it, and how it is opened."""
