"""State between steps lives here, beside the objective and never inside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from sspo_teach.gates import bounds
from sspo_teach.tensors import check_between, check_positive, lengths, log_ratio, masked_mean, unknown
from sspo_teach.types import Rollout


class Controller(Protocol):
    """Sets an objective's numbers from what was seen before the step: a step's own data never set its own bound."""

    def begin(self) -> None:
        """A new batch of responses was sampled: the coming step is its first."""
        ...

    def hyper(self) -> Mapping[str, Any]:
        """Keyword arguments of the objective for the coming step."""
        ...

    def observe(self, rollout: Rollout, logp: Tensor) -> None:
        """Learn from a step that is over: its minibatch and the (B, T) log-probabilities it was trained at."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All the state, as JSON can hold it."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state again."""
        ...


class Fixed:
    """The controller of methods whose numbers never move."""

    def begin(self) -> None:
        pass

    def hyper(self) -> Mapping[str, Any]:
        return {}

    def observe(self, rollout: Rollout, logp: Tensor) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ValueError(f"state must be empty for Fixed, got {sorted(state)}: the checkpoint is of another method")


class ConformalBand:
    """CSPO's band on s = 1/L Σ log ρ, calibrated so that a fresh score falls outside at a rate of ``alpha`` at most.

    A reconstruction (the paper's text is not public). The last ``window`` detached scores are kept apart for every
    place in the sequence of updates on one batch, since later updates have drifted further, and the band of an update
    is taken from earlier batches' scores at the same place. At the first place the policy is still the sampler and
    all scores are 0: it keeps the band ``lower``, ``upper`` (GSPO's), as does every place that has seen fewer than
    ``minimum`` scores, by default the fewest that bound both sides, ⌈2/α⌉ − 1.
    """

    def __init__(
        self,
        alpha: float = 0.1,
        *,
        window: int = 512,
        minimum: int | None = None,
        lower: float = math.log(1 - 3e-4),
        upper: float = math.log(1 + 4e-4),
    ) -> None:
        check_between(1e-6, 1, "it is the share of scores that may fall outside the band", alpha=alpha)
        fewest = math.ceil(2 / alpha - 1e-9) - 1
        self.minimum = fewest if minimum is None else minimum
        check_positive(minimum=self.minimum)
        check_between(self.minimum, math.inf, f"it must hold the {self.minimum} scores a band needs", window=window)
        check_between(-math.inf, 0, "the band must hold log ρ = 0", lower=lower)
        check_between(0, math.inf, "the band must hold log ρ = 0", upper=upper)
        self.alpha, self.window = alpha, window
        self.warmup = {"lower": lower, "upper": upper}
        self.update = 0
        self.scores: dict[int, list[float]] = {}

    def begin(self) -> None:
        self.update = 0

    def hyper(self) -> Mapping[str, Any]:
        scores = self.scores.get(self.update, [])
        if len(scores) < self.minimum:
            return self.warmup
        lower, upper = bounds.calibrated(scores, self.alpha)
        return {"lower": lower, "upper": upper}

    def observe(self, rollout: Rollout, logp: Tensor) -> None:
        """Keep the scores of the update that is over; empty responses and such that are not finite leave no trace."""
        if self.update > 0:
            broken = (~(logp.isfinite() & rollout.logp_old.isfinite()) & rollout.mask).any(dim=1)
            live = (lengths(rollout.mask).squeeze(1) > 0) & ~broken
            fresh = masked_mean(log_ratio(logp.detach(), rollout.logp_old, rollout.mask), rollout.mask)[live, 0]
            self.scores[self.update] = [*self.scores.get(self.update, []), *fresh.tolist()][-self.window :]
        self.update += 1

    def state_dict(self) -> dict[str, Any]:
        return {"update": self.update, "scores": {str(place): scores for place, scores in self.scores.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"update", "scores"}:
            raise ValueError(
                f"state must hold update and scores for ConformalBand, got {sorted(state)}: "
                f"the checkpoint is of another method"
            )
        self.update = int(state["update"])
        self.scores = {int(place): [float(s) for s in scores] for place, scores in state["scores"].items()}


RAMPS: Mapping[str, Callable[[float], float]] = {
    "cosine": lambda x: (1 - math.cos(math.pi * x)) / 2,
    "linear": lambda x: x,
}
"""Ways from 0 to 1."""


class MarginSchedule:
    """ConSPO's curriculum: the margin rises from 0 to its full value over the first ``warmup`` updates, then stays.

    A reconstruction: the paper (arXiv 2605.12969) names a target margin and a warm-up, a review of it a cosine; the
    lengths and values are ours.
    """

    def __init__(self, margin: float = 0.1, *, warmup: int = 100, ramp: str = "cosine") -> None:
        check_between(0, math.inf, "it is a distance that right must keep from wrong", margin=margin)
        check_between(0, math.inf, "it counts updates; 0 starts at the full margin", warmup=warmup)
        if ramp not in RAMPS:
            raise ValueError(unknown("ramp", ramp, RAMPS))
        self.margin, self.warmup, self.ramp = margin, warmup, RAMPS[ramp]
        self.updates = 0

    def begin(self) -> None:
        pass

    def hyper(self) -> Mapping[str, Any]:
        way = min(1.0, self.updates / self.warmup) if self.warmup else 1.0
        return {"margin": self.margin * self.ramp(way)}

    def observe(self, rollout: Rollout, logp: Tensor) -> None:
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"updates"}:
            raise ValueError(
                f"state must hold updates for MarginSchedule, got {sorted(state)}: the checkpoint is of another method"
            )
        self.updates = state["updates"]
