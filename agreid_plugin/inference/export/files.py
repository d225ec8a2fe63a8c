"""Writers of ONNX, TorchScript and OpenVINO files, each with its description inside."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path

import torch

from agreid_plugin.deploy.metadata import KEY, ModelMetadata
from agreid_plugin.deploy.runtimes import import_runtime
from agreid_plugin.inference.export.graph import Graph

OPSET = 17
OUTPUT = "features"


def write_onnx(graph: Graph, path: Path) -> None:
    """Write ONNX; any number of images may go through it at once."""
    import_runtime("onnx", "export")
    names = graph.metadata.inputs
    # The exporter by tracing is there in every torch since 2.4, and takes seconds where the other takes minutes.
    by_tracing = {"dynamo": False} if "dynamo" in signature(torch.onnx.export).parameters else {}
    with _plain_operations():
        torch.onnx.export(
            graph,
            graph.example(),
            str(path),
            input_names=list(names),
            output_names=[OUTPUT],
            dynamic_axes={name: {0: "batch"} for name in (*names, OUTPUT)},
            opset_version=OPSET,
            **by_tracing,
        )
    _write_metadata(path, graph.metadata)


def write_torchscript(graph: Graph, path: Path) -> None:
    """Write TorchScript."""
    with _plain_operations():
        traced = torch.jit.trace(graph, graph.example(), check_trace=False)
        torch.jit.save(traced, str(path), _extra_files={f"{KEY}.json": graph.metadata.to_json()})


def write_openvino(graph: Graph, path: Path) -> None:
    """Write OpenVINO's pair of files, in float32; the weights' file belongs beside the other."""
    openvino = import_runtime("openvino", "openvino")
    onnx_path = path.with_suffix(".onnx")
    write_onnx(graph, onnx_path)
    model = openvino.convert_model(onnx_path)
    model.set_rt_info(graph.metadata.to_json(), [KEY])
    openvino.save_model(model, path, compress_to_fp16=False)


def write_int8(full: Path, metadata: ModelMetadata, path: Path) -> None:
    """Write an ONNX file with its weights in 8 bits; activations are quantized at run time."""
    import_runtime("onnxruntime", "export")
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _plain_operations():
        quantize_dynamic(full, path, op_types_to_quantize=["MatMul", "Gemm"], weight_type=QuantType.QInt8)
    _write_metadata(path, replace(metadata, precision="int8"))


WRITERS: dict[str, tuple[str, Callable[[Graph, Path], None]]] = {
    "onnx": (".onnx", write_onnx),
    "torchscript": (".torchscript", write_torchscript),
    "openvino": (".xml", write_openvino),
}
"""Format -> ending and writer."""


def _write_metadata(path: Path, metadata: ModelMetadata) -> None:
    onnx = import_runtime("onnx", "export")
    model = onnx.load(path)
    del model.metadata_props[:]
    model.metadata_props.add(key=KEY, value=metadata.to_json())
    onnx.save(model, path)


@contextmanager
def _plain_operations() -> Iterator[None]:
    """Use plain operations only, and silence warnings about checks of shapes, which hold for every batch."""
    fast, level = torch.backends.mha.get_fastpath_enabled(), logging.root.manager.disable
    torch.backends.mha.set_fastpath_enabled(False)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        logging.disable(level)
