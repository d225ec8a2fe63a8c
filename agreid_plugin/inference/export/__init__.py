"""Export to ONNX, TorchScript and OpenVINO."""
