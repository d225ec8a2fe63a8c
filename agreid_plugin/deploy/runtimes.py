"""Runtimes of exported files: onnxruntime, OpenVINO, TorchScript, each imported when it is needed.

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

from agreid_plugin.deploy.metadata import KEY, ModelMetadata
from agreid_plugin.errors import InputError, first_line, require_known

Inputs = Mapping[str, np.ndarray]
Run = Callable[[Inputs], np.ndarray]
ONNX_PROVIDERS: tuple[tuple[str, dict[str, int]], ...] = (
    ("CUDAExecutionProvider", {"use_tf32": 0}),
    ("CPUExecutionProvider", {}),
)
"""Devices of onnxruntime, the first available one is used; a GPU in full precision, as a CPU."""


@dataclass(frozen=True)
class Session:
    """A file that is ready to run."""

    metadata: ModelMetadata
    run: Run  # the graph's inputs by name -> (B, D) of float32


def open_session(path: str | Path, threads: int = 0) -> Session:
    """Open a file by the runtime of its ending.

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
    package, extra, open_file = OPENERS[path.suffix]
    runtime = import_runtime(package, extra)
    with _report_in_one_line(f"{path} cannot be read by {package}"):
        session = open_file(runtime, path, threads)
    return replace(session, run=_guard(session.run, f"{path} cannot be run by {package}"))


@contextmanager
def _report_in_one_line(what: str) -> Iterator[None]:
    """Report a failure in one line: each runtime has other errors, most of them plain RuntimeErrors."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{what}: {first_line(error)}") from error


def _guard(run: Run, what: str) -> Run:
    def run_guarded(inputs: Inputs) -> np.ndarray:
        with _report_in_one_line(what):
            return run(inputs)

    return run_guarded


def import_runtime(package: str, extra: str) -> ModuleType:
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
    metadata = ModelMetadata.from_json(session.get_modelmeta().custom_metadata_map.get(KEY), path)
    return Session(metadata, lambda inputs: session.run(None, dict(inputs))[0])


def _openvino(openvino: ModuleType, path: Path, threads: int) -> Session:
    core = openvino.Core()
    model = core.read_model(path)
    metadata = ModelMetadata.from_json(model.get_rt_info([KEY]).astype(str) if model.has_rt_info([KEY]) else None, path)
    settings = {"INFERENCE_PRECISION_HINT": "f32"} | ({"INFERENCE_NUM_THREADS": threads} if threads else {})
    compiled, local = core.compile_model(model, "CPU", settings), threading.local()

    def run(inputs: Inputs) -> np.ndarray:
        if not hasattr(local, "request"):  # each thread has its own: one that is busy refuses another call
            local.request = compiled.create_infer_request()
        return local.request.infer([inputs[name] for name in metadata.inputs])[0].copy()

    return Session(metadata, run)


def _torchscript(torch: ModuleType, path: Path, threads: int) -> Session:
    if threads:
        torch.set_num_threads(threads)
    files = {f"{KEY}.json": ""}
    module = torch.jit.load(str(path), map_location="cpu", _extra_files=files)
    metadata = ModelMetadata.from_json(files[f"{KEY}.json"], path)

    def run(inputs: Inputs) -> np.ndarray:
        with torch.no_grad():
            return module(*(torch.from_numpy(inputs[name]) for name in metadata.inputs)).numpy()

    return Session(metadata, run)


OPENERS = {
    ".onnx": ("onnxruntime", "export", _onnx),
    ".xml": ("openvino", "openvino", _openvino),
    ".torchscript": ("torch", "export", _torchscript),
}
"""Ending -> the package that runs such a file, the extra that installs it, and how it is opened."""
