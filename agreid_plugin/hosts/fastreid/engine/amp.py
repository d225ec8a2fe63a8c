"""Mixed-precision steps on any device, in the place of the host's CUDA-only ones."""

from __future__ import annotations

import logging
import time

import torch
from fastreid.engine.train_loop import SimpleTrainer

_logger = logging.getLogger("fastreid.amp")


class AMPTrainer(SimpleTrainer):
    """Autocast training: float16 with a gradient scaler on CUDA, bfloat16 without one elsewhere.

    On a CPU it is off until `enabled` is set: bfloat16 is emulated there on most machines and many times slower.
    """

    def __init__(self, model, data_loader, optimizer, param_wrapper, grad_scaler=None):
        super().__init__(model, data_loader, optimizer, param_wrapper)
        self.device_type = next(model.parameters()).device.type
        self.enabled = self.device_type != "cpu"
        on_cuda = self.device_type == "cuda"
        self.dtype = torch.float16 if on_cuda else torch.bfloat16
        self.grad_scaler = grad_scaler or torch.amp.GradScaler(self.device_type, enabled=on_cuda)
        self._told = False

    def run_step(self) -> None:
        """Take one optimizer step."""
        assert self.model.training, "the model was left in evaluation mode"
        if not self.enabled and not self._told:
            _logger.warning("mixed precision is off: the model is on a CPU (SOLVER.AMP.ON_CPU True forces it)")
            self._told = True
        start = time.perf_counter()
        data = next(self._data_loader_iter)
        data_time = time.perf_counter() - start

        with torch.autocast(self.device_type, dtype=self.dtype, enabled=self.enabled):
            loss_dict = self.model(data)
            loss = sum(loss_dict.values())

        self.optimizer.zero_grad()
        self.grad_scaler.scale(loss).backward()
        self._write_metrics(loss_dict, data_time)
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()
