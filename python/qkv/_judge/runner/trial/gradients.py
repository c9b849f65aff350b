"""Whether the gradient that PyTorch takes through a part or a block is that of its output, by differences: no probe asks for it there. Not:
gradients of attention's layers and functions, and those that are written by hand, which probes ask for (answering.py)."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from ..contracts.tasks import PARTS, TASKS
from ..errors import FAILURES
from ..frameworks import torch_of
from ..subject import Skipped
from .first_calls import Trial

#: Steps of differences, which must agree: code that rounds, or that has a kink there, says nothing; what may be off.
_STEPS, _TOLERANCE = (1e-6, 1e-5), 1e-3


def try_gradients(trial: Trial) -> None:
    """A note for the verdict: an input or a matrix that no gradient reaches, or another one."""
    subject = trial.subject
    own = (subject.task in PARTS and trial.function == TASKS[subject.task].own) or subject.task == "block"
    connected = getattr(trial.binding.function, "connected", True)  # a class's matrices are what was given
    if subject.framework == "torch" and subject.dtype == "float64" and own and connected and subject.task not in ("sampling", "beam"):
        with contextlib.suppress(Skipped, *FAILURES):
            if seen := _wrong(trial):
                subject.tell(unheeded=seen, unheeded_as="gradient-cut")


def _wrong(trial: Trial) -> str:
    """The first that differs, and how; "" without."""
    subject, torch = trial.subject, torch_of()
    leaves = subject.leaves(trial.ran, True)

    def total(changed: dict[str, Any]) -> Any:
        values = subject.values(trial.binding, trial.ran, trial.metadata, changed)
        out = subject.call(trial.binding, subject.fresh(trial.ran, 0), values, trial.ran).out
        return (out * torch.from_numpy(np.cos(np.arange(out.numel()))).reshape(out.shape)).sum()

    whole = total(leaves)
    if not whole.requires_grad:  # it means to have none
        return ""
    # A block's matrices are copied into it; the one that LoRA leaves alone learns nothing.
    inputs = [name for name, one in leaves.items() if one.requires_grad and not (subject.task == "block" and name != "x") and name != "W"]
    for name, gradient in zip(inputs, torch.autograd.grad(whole, [leaves[name] for name in inputs], allow_unused=True)):
        towards = torch.from_numpy(np.sin(np.arange(1, 1 + leaves[name].numel()))).reshape(leaves[name].shape)
        with torch.no_grad():
            slope, other = (
                float(total({**leaves, name: leaves[name] + step * towards}) - total({**leaves, name: leaves[name] - step * towards})) / (2 * step)
                for step in _STEPS
            )
        found, near = (0.0 if gradient is None else float((gradient * towards).sum())), _TOLERANCE * abs(slope) + 1e-6
        if abs(slope - other) <= near < abs(slope - found):
            return f"d{name} along one direction: the output's differences give {slope:.6g}, its gradient {found:.6g}"
    return ""
