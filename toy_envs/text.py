"""Texts as token ids, one token per character.

Every toy alphabet begins with the padding token (written as a space) and the end token EOS (written as a newline), so
that stripping a decoded text leaves what a person wants to read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PAD, EOS = 0, 1


def to_ids(texts: Sequence[str], alphabet: str, width: int) -> NDArray[np.int64]:
    """(n, width) ids of n texts over ``alphabet``, padded on the right. A text keeps its leading spaces."""
    codes = np.frombuffer("".join(text.ljust(width) for text in texts).encode("ascii"), dtype=np.uint8)
    ids = np.zeros(128, dtype=np.int64)
    ids[[ord(character) for character in alphabet]] = np.arange(len(alphabet))
    return ids[codes].reshape(len(texts), width)


def to_text(ids: Sequence[int] | NDArray[np.int64], alphabet: str) -> str:
    """The text of some ids, without the padding and the EOS at its ends."""
    return "".join(alphabet[i] for i in ids).strip()


def read(
    tokens: NDArray[np.int64], mask: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Cut B responses at their first EOS.

    Args:
        tokens: (B, T) token ids.
        mask: (B, T), False on positions to ignore; None reads them all.

    Returns:
        The words (B, T) with padding from the EOS on, their lengths (B,) without the EOS, and (B,) whether one came.
    """
    if tokens.ndim != 2 or tokens.shape[1] == 0:
        raise ValueError(f"tokens: expected shape (B, T) with T at least 1, got {tokens.shape}")
    if mask is not None and mask.shape != tokens.shape:
        raise ValueError(f"mask: expected the shape of tokens, {tokens.shape}, got {mask.shape}")
    readable = np.ones(tokens.shape, dtype=bool) if mask is None else mask.astype(bool)
    end = readable & (tokens == EOS)
    body = readable & (end.cumsum(1) == 0)
    return np.where(body, tokens, PAD), body.sum(1), end.any(1)
