"""State between steps lives here, beside the objective and never inside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from sspo_teach.types import Rollout


class Controller(Protocol):
    """Sets an objective's numbers from what was seen before the step: a step's own data never set its own bound."""

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

    def hyper(self) -> Mapping[str, Any]:
        return {}

    def observe(self, rollout: Rollout, logp: Tensor) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ValueError(f"state must be empty for Fixed, got {sorted(state)}: the checkpoint is of another method")
