"""What a configuration says of the optimizer: epochs, the learning rate from its first to its last, weight decay."""

from __future__ import annotations

import math

from agreid_plugin.hosts.fastreid.engine.solver import warmup_iterations, warmup_note


def solver_text(cfg, iterations: int) -> str:
    """Tell how a configuration learns, in one line.

    Args:
        cfg: the configuration.
        iterations: of an epoch; 0 if nobody knows, as without the training set.
    """
    solver = cfg.SOLVER
    extras = {"mixed precision": solver.AMP, "gradients clipped": solver.CLIP_GRADIENTS}
    told = [
        f"{solver.MAX_EPOCH} epochs{f' of {iterations} iterations' if iterations else ''}",
        f"lr {solver.BASE_LR:g} to {_last_rate(cfg, iterations):g} ({_schedule(cfg)})",
        *(f"{factor:g} times that for {module}" for module, factor in solver.LR_FACTORS),
        _warmup(cfg, iterations),
        f"weight decay {solver.WEIGHT_DECAY:g}, {_other_decays(cfg)}",
        *(name for name, node in extras.items() if node.ENABLED),
    ]
    return ", ".join(told)


def _schedule(cfg) -> str:
    solver = cfg.SOLVER
    when = f"at {', '.join(map(str, solver.STEPS))}" if solver.SCHED == "MultiStepLR" else f"by {solver.SCHED_STEP}"
    return f"{solver.SCHED} {when}"


def _warmup(cfg, iterations: int) -> str:
    solver, warmup, note = cfg.SOLVER, warmup_iterations(cfg, iterations), warmup_note(cfg, iterations)
    epochs = 0 if note else solver.WARMUP_EPOCHS
    long = f"{epochs} epoch{'s' * (epochs > 1)}" if epochs else f"{warmup} iterations"
    if not epochs and not warmup:
        return "no warm-up"
    return f"warm-up {long} from {solver.BASE_LR * solver.WARMUP_FACTOR:g}{note and f' ({note})'}"


def _other_decays(cfg) -> str:
    solver = cfg.SOLVER
    if not solver.DECAY_VECTORS:
        return "of matrices alone"
    return f"of norms {solver.WEIGHT_DECAY_NORM:g}, of biases {solver.WEIGHT_DECAY_BIAS:g}"


def _last_rate(cfg, iterations: int) -> float:
    """Return the learning rate of the last iteration; where their number is not known warm-up takes one epoch."""
    solver, warmup = cfg.SOLVER, warmup_iterations(cfg, iterations)
    if solver.SCHED_STEP == "iteration":
        whole = max(solver.MAX_EPOCH * iterations - max(warmup, solver.DELAY_EPOCHS * iterations), 1)
        return _cosine(cfg, 1 - 1 / whole if iterations else 1.0)
    warm = math.ceil(warmup / iterations) if iterations else solver.WARMUP_EPOCHS or int(warmup > 0)  # epochs
    steps = max(solver.MAX_EPOCH - max(warm, solver.DELAY_EPOCHS + 1), 0)  # of the schedule before the last epoch
    if solver.SCHED == "MultiStepLR":
        return solver.BASE_LR * solver.GAMMA ** sum(step <= steps for step in solver.STEPS)
    return _cosine(cfg, steps / max(solver.MAX_EPOCH - max(warm, solver.DELAY_EPOCHS), 1))


def _cosine(cfg, passed: float) -> float:
    """Return the rate when a share of the cosine has passed."""
    least, share = cfg.SOLVER.ETA_MIN_LR, (1 + math.cos(math.pi * min(passed, 1))) / 2
    return least + share * (cfg.SOLVER.BASE_LR - least)
