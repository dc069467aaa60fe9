"""Two small worlds of tokens, with gymnasium and numpy alone: a contextual bandit over whole responses, and arithmetic.

``gymnasium.make("toy_envs/Arithmetic-v0", digits=(1, 2))`` plays an episode token by token, ``gymnasium.make_vec`` many
at once. The games themselves, ``Arithmetic`` and ``Bandit``, sample problems and judge whole batches of responses.
"""

import gymnasium as gym

from toy_envs.arithmetic import Arithmetic, ArithmeticEnv, ArithmeticVectorEnv
from toy_envs.bandit import RULES, Bandit, TokenBanditEnv, TokenBanditVectorEnv

__all__ = [
    "RULES",
    "Arithmetic",
    "ArithmeticEnv",
    "ArithmeticVectorEnv",
    "Bandit",
    "TokenBanditEnv",
    "TokenBanditVectorEnv",
]

gym.register(
    "toy_envs/TokenBandit-v0",
    entry_point="toy_envs.bandit:TokenBanditEnv",
    vector_entry_point="toy_envs.bandit:TokenBanditVectorEnv",
)
gym.register(
    "toy_envs/Arithmetic-v0",
    entry_point="toy_envs.arithmetic:ArithmeticEnv",
    vector_entry_point="toy_envs.arithmetic:ArithmeticVectorEnv",
)
