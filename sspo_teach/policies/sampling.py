"""How a next token is drawn. Three numbers say everything; none is ever read from a checkpoint's generation config."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """Complete sampling settings.

    Attributes:
        temperature: logits are divided by it; 0 means greedy. The same number enters the scored log-probabilities.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set whose probability reaches p; 1 keeps all.

    Raises:
        ValueError: a number is outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature={self.temperature}: must be 0 (greedy) or positive, e.g. 1.0")
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k}: must be 0 (keep all tokens) or a positive number of tokens")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: must lie in (0, 1]; 1.0 keeps all tokens")

    @property
    def truncated(self) -> bool:
        """Whether the sampler's distribution differs from the softmax that is scored."""
        return self.top_k > 0 or self.top_p < 1

    def draw(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw one token per row: ``logits`` (B, V) → (B,) int64."""
        if self.temperature == 0:
            return logits.argmax(-1)
        logits = logits.float() / self.temperature
        if self.truncated:
            logits = truncate(logits, self.top_k, self.top_p)
        return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)


GREEDY = Sampling(temperature=0.0)


def truncate(logits: Tensor, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Send the logits (B, V) outside the top-k and the top-p nucleus to −inf; the most likely token always stays.

    The kept tokens are renormalised by the softmax that follows, so for p = (.5, .3, .2) and k = 2 each kept token is
    drawn 1/.8 times as often as the full softmax says: a ratio of full to truncated of .8, which is why training
    samples must come from the whole distribution.
    """
    order = logits.argsort(dim=-1, descending=True, stable=True)
    probs = logits.softmax(-1).gather(-1, order)
    drop = probs.cumsum(-1) - probs >= top_p if top_p < 1 else torch.zeros_like(probs, dtype=torch.bool)
    if top_k:
        drop |= torch.arange(logits.shape[-1], device=logits.device) >= top_k
    return logits.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), -torch.inf)
