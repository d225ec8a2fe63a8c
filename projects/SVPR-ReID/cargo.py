"""CARGO has no attributes: ASMoE is left out, and features have no part of it."""

_base_ = ["./svpr.py"]

model = dict(asmoe=False)
work_dir = "logs/svpr-cargo-mmengine"
