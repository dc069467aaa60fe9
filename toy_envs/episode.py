"""One token a step: a response grows until EOS ends it or its room runs out, and is judged once, at its end.

An observation is ``{"prompt": (P,), "response": (T,)}``, token ids padded on the left and on the right. An action is a
token. EOS terminates the episode; the T-th token without EOS truncates it. The reward is 0 until then.
"""

from __future__ import annotations

from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from toy_envs.text import EOS, PAD, to_text

PARTS = ("correct", "format", "finished")

Observation = dict[str, NDArray[np.int64]]


class Game(Protocol):
    """Problems and their verifier, in batches: what an environment is made of. T is ``max_new_tokens``."""

    @property
    def alphabet(self) -> str: ...
    @property
    def prompt_width(self) -> int: ...
    @property
    def max_new_tokens(self) -> int: ...

    def sample(self, rng: np.random.Generator, n: int, split: str = "train", progress: float = 1.0) -> NDArray:
        """n problems."""
        ...

    def held_out(self, n: int, progress: float = 1.0) -> NDArray:
        """At most n problems to be judged on, the same ones at every call."""
        ...

    def encode(self, problems: NDArray) -> NDArray[np.int64]:
        """(n, P) prompts."""
        ...

    def answers(self, problems: NDArray) -> list[list[int]]:
        """A right response to each problem, ending with EOS."""
        ...

    def score(self, problems: NDArray, tokens: NDArray, mask: NDArray | None = None) -> dict[str, NDArray]:
        """Four (B,) arrays, "reward" and the PARTS, for B responses (B, T)."""
        ...


class TokenEnv(gym.Env[Observation, Any]):
    """A game played token by token.

    Args:
        game: the problems and their verifier.
        split: "train" or "test", where problems are drawn from.
        progress: in [0, 1], the place in the curriculum; ``reset(options={"progress": 0.5})`` moves it.
        render_mode: None or "ansi", the prompt and the response so far as a line of text.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012  (gymnasium's own way)

    def __init__(self, game: Game, split: str = "train", progress: float = 1.0, render_mode: str | None = None) -> None:
        if render_mode not in (None, "ansi"):
            raise ValueError(f'render_mode: {render_mode!r}, expected None or "ansi"')
        self.game, self.split, self.progress, self.render_mode = game, split, progress, render_mode
        self.observation_space = observation_space(game)
        self.action_space = Discrete(len(game.alphabet))
        self._length: int | None = None  # None between episodes

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        """Ask a new problem."""
        super().reset(seed=seed)
        self.progress = (options or {}).get("progress", self.progress)
        self._problem = self.game.sample(self.np_random, 1, self.split, self.progress)
        self._prompt = self.game.encode(self._problem)[0]
        self._response = np.full(self.game.max_new_tokens, PAD, dtype=np.int64)
        self._length = 0
        return self._observe(), dict.fromkeys(PARTS, False)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict]:
        """Say one token."""
        if self._length is None:
            raise gym.error.ResetNeeded("step: the episode is over; call reset() first")
        if not self.action_space.contains(action):
            raise ValueError(f"action: {action!r}, expected a token id from 0 to {len(self.game.alphabet) - 1}")
        self._response[self._length] = action
        self._length += 1
        terminated = bool(action == EOS)
        truncated = not terminated and self._length == len(self._response)
        reward, info = 0.0, dict.fromkeys(PARTS, False)
        if terminated or truncated:
            verdict = self.game.score(self._problem, self._response[None])
            reward, info = float(verdict["reward"][0]), {part: bool(verdict[part][0]) for part in PARTS}
            self._length = None
        return self._observe(), reward, terminated, truncated, info

    def render(self) -> str | None:
        """The prompt and the response so far, such as "47+85= 13", or None without a render mode."""
        if self.render_mode is None:
            return None
        return _line(self._prompt, self._response, self.game.alphabet)

    def _observe(self) -> Observation:
        return {"prompt": self._prompt.copy(), "response": self._response.copy()}


class TokenVectorEnv(VectorEnv[Observation, Any, NDArray]):
    """N episodes of one game side by side, in numpy; all of them draw from one generator.

    An episode that has ended is replaced at the next step, whose action and reward for it count for nothing
    (gymnasium's ``AutoresetMode.NEXT_STEP``). ``info`` holds (N,) bool arrays: the verdict of the episodes that ended
    with this step. Arguments as in ``TokenEnv``.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4, "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self, game: Game, num_envs: int = 1, split: str = "train", progress: float = 1.0, render_mode: str | None = None
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs: {num_envs}, expected at least 1")
        self.game, self.split, self.progress, self.render_mode = game, split, progress, render_mode
        self.num_envs = num_envs
        self._over: NDArray[np.bool_] | None = None  # until the first reset
        self.single_observation_space = observation_space(game)
        self.single_action_space = Discrete(len(game.alphabet))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        """Ask N new problems."""
        super().reset(seed=seed)
        self.progress = (options or {}).get("progress", self.progress)
        self._problems = self.game.sample(self.np_random, self.num_envs, self.split, self.progress)
        self._prompts = self.game.encode(self._problems)
        self._responses = np.full((self.num_envs, self.game.max_new_tokens), PAD, dtype=np.int64)
        self._lengths = np.zeros(self.num_envs, dtype=np.int64)
        self._over = np.zeros(self.num_envs, dtype=bool)
        return self._observe(), {part: self._over.copy() for part in PARTS}

    def step(self, actions: NDArray) -> tuple[Observation, NDArray, NDArray, NDArray, dict]:
        """Say one token in each episode that goes on, and begin anew those that had ended."""
        if self._over is None:
            raise gym.error.ResetNeeded("step: no episode has begun; call reset() first")
        if not self.action_space.contains(actions):
            raise ValueError(f"actions: {actions!r}, expected ({self.num_envs},) ids under {len(self.game.alphabet)}")
        playing = ~self._over
        self._replace(self._over.nonzero()[0])
        self._responses[playing, self._lengths[playing]] = actions[playing]
        self._lengths += playing
        terminated = playing & (actions == EOS)
        truncated = playing & ~terminated & (self._lengths == self.game.max_new_tokens)
        self._over = terminated | truncated
        verdict = self.game.score(self._problems, self._responses)
        rewards = np.where(self._over, verdict["reward"], 0.0)
        return self._observe(), rewards, terminated, truncated, {part: verdict[part] for part in PARTS}

    def render(self) -> tuple[str, ...] | None:
        """Each prompt and response so far."""
        if self.render_mode is None:
            return None
        rows = zip(self._prompts, self._responses, strict=True)
        return tuple(_line(prompt, response, self.game.alphabet) for prompt, response in rows)

    def _replace(self, rows: NDArray[np.int64]) -> None:
        if rows.size:
            self._problems[rows] = self.game.sample(self.np_random, rows.size, self.split, self.progress)
            self._prompts[rows] = self.game.encode(self._problems[rows])
            self._responses[rows], self._lengths[rows] = PAD, 0

    def _observe(self) -> Observation:
        return {"prompt": self._prompts.copy(), "response": self._responses.copy()}


def observation_space(game: Game) -> gym.Space[Any]:
    """The prompt's P tokens and the response's T tokens, each out of the game's alphabet."""
    size = len(game.alphabet)
    return Dict(
        prompt=MultiDiscrete(np.full(game.prompt_width, size)),
        response=MultiDiscrete(np.full(game.max_new_tokens, size)),
    )


def _line(prompt: NDArray[np.int64], response: NDArray[np.int64], alphabet: str) -> str:
    return f"{to_text(prompt, alphabet)} {to_text(response, alphabet)}"
