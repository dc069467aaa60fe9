"""Differences that respect ``detach``: a function whose detached parts stand still while its argument moves.

Autograd takes what is detached as a constant; a plain difference quotient does not, and of a stop-gradient rule it says
nothing. ``freeze`` records every value that leaves the graph in one call and plays it back, in order, in later ones:

>>> weight_stays = freeze(lambda z: (z.exp().detach() * z).sum(), at)
>>> (weight_stays(at + h) - weight_stays(at - h)) / 2  # exp(at) · h, as autograd says; not (1 + at) exp(at) · h
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def freeze(function: Callable[[Tensor], Tensor], at: Tensor) -> Callable[[Tensor], Tensor]:
    """``function`` with everything that leaves its graph held at its value for ``at``. The two agree at ``at``.

    Leaving the graph means: a result that needs no gradient, of a tensor that does. That is ``detach``, ``detach_``,
    ``data``, ``no_grad`` and ``inference_mode`` blocks, comparisons, ``item``, ``tolist``, ``bool`` and ``float`` (so
    branches stay the same), indices of a sort, and ``autograd.grad`` without ``create_graph``. What an
    ``autograd.Function`` computes in its forward stays free: its backward is then on trial.

    Not seen: what torch's own Python functions detach inside (``gumbel_softmax(hard=True)``), an
    ``autograd.Function``'s outputs marked as not differentiable, and writes through the alias that ``detach`` returns.

    Raises:
        RuntimeError: a later call leaves the graph in other places, so its values cannot be played back.
    """
    tape = _run(function, at, None)[1].tape

    def frozen(x: Tensor) -> Tensor:
        value, used = _run(function, x, tape)
        if used.position < len(tape):
            raise RuntimeError(OTHER_PATH)
        return value

    return frozen


OTHER_PATH = "the function takes another path for another argument: its detached values cannot be held still"


def _run(function: Callable[[Tensor], Tensor], x: Tensor, tape: list[tuple[Any, Any]] | None) -> tuple[Tensor, _Exits]:
    with torch.enable_grad(), _Exits(tape) as exits:
        value = function(x.detach().clone().requires_grad_())
    return value.detach(), exits


class _Exits(TorchFunctionMode):
    """Sees every call of torch in its block; what leaves the graph goes on the tape, or is taken from a given one."""

    def __init__(self, tape: list[tuple[Any, Any]] | None) -> None:
        super().__init__()
        self.replays, self.position = tape is not None, 0
        self.tape: list[tuple[Any, Any]] = tape or []
        self.grad = True  # as Python's no_grad has set it; inside a Function's forward C++ alone turns it off

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inside = self._in_graph(args) or self._in_graph(kwargs.values())  # before the call: detach_ works in place
        result = func(*args, **kwargs)
        if func is torch._C._set_grad_enabled:
            self.grad = args[0]
        hidden = self.grad and not torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        return self._hold(func, result, args) if inside and not hidden else result

    def _in_graph(self, values: Iterable[Any]) -> bool:
        for x in values:
            if isinstance(x, Tensor):
                if x.requires_grad:
                    return True
            elif isinstance(x, (tuple, list)) and self._in_graph(x):
                return True
        return False

    def _hold(self, func: Any, result: Any, args: Any) -> Any:
        if isinstance(result, (tuple, list)):
            return type(result)([self._hold(func, x, args) for x in result])
        if not isinstance(result, (Tensor, bool, int, float)) or getattr(result, "requires_grad", False):
            return result
        if not self.replays:
            self.tape.append((func, _copy(result)))
            return result
        if self.position == len(self.tape) or self.tape[self.position][0] != func:
            raise RuntimeError(OTHER_PATH)
        held = self.tape[self.position][1]
        self.position += 1
        if not isinstance(result, Tensor):
            return _copy(held)
        if held.shape != result.shape:
            raise RuntimeError(OTHER_PATH)
        return result.copy_(held) if any(result is x for x in args) else _copy(held)


def _copy(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, Tensor) else copy.deepcopy(x)
