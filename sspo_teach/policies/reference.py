"""The frozen policy that a KL term measures from. It only ever scores, and need not lie in the device's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from sspo_teach.policies.causal_lm import CausalLM
from sspo_teach.policies.lora import without_lora

Score = Callable[..., tuple[Tensor, Tensor]]


class Reference:
    """A policy that stands still.

    Args:
        policy: a model of its own.
        offload: keep its weights in CPU memory between scorings.
    """

    def __init__(self, policy: CausalLM, *, offload: bool = False) -> None:
        self.policy = policy.requires_grad_(False)
        self.device, self.offload = policy.device, offload
        self._away()

    @contextmanager
    def scoring(self) -> Iterator[Score]:
        """``logp_and_entropy`` of the reference, on the device where it works."""
        self.policy.to(self.device)
        try:
            yield self.policy.logp_and_entropy
        finally:
            self._away()

    def _away(self) -> None:
        if self.offload:
            self.policy.to("cpu")


class Unadapted:
    """The reference of a policy that learns by adapters: itself without them, at no memory at all."""

    def __init__(self, policy: CausalLM) -> None:
        self.policy = policy

    @contextmanager
    def scoring(self) -> Iterator[Score]:
        with without_lora(self.policy.model):
            yield self.policy.logp_and_entropy
