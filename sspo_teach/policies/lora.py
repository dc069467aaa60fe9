"""Low-rank adapters on a language model, through peft: W + (α/r) B A in place of W, with A and B alone learning.

Edward Hu et al. 2021, arXiv 2106.09685, with α = 2r. B starts at 0, so that the first policy is the model itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

MISSING = 'peft is not installed: pip install -e ".[scale]", or leave lora_rank at 0'


def add_lora(model: nn.Module, rank: int, *, seed: int = 0) -> None:
    """Freeze ``model`` and put adapters of ``rank`` into every linear layer but the vocabulary projection.

    Raises:
        ValueError: peft is not installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ValueError(f"lora_rank={rank}: {MISSING}") from error
    settings = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inject_adapter_in_model(settings, model)
    model.eval()


@contextmanager
def without_lora(model: nn.Module) -> Iterator[None]:
    """The model as it was before its adapters, for a while."""
    for layer in adapted(model).values():
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in adapted(model).values():
            layer.enable_adapters(True)


def merged(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a plain model that computes the same, by their names in it; ``model`` stays as it is."""
    weights = {
        name.replace(".base_layer.", "."): value for name, value in model.state_dict().items() if ".lora_" not in name
    }
    for name, layer in adapted(model).items():
        for adapter in layer.active_adapters:
            weights[f"{name}.weight"] = weights[f"{name}.weight"] + layer.get_delta_weight(adapter).detach()
    return weights


def adapted(model: nn.Module) -> dict[str, Any]:
    """The layers that have adapters, by name."""
    return {name: layer for name, layer in model.named_modules() if hasattr(layer, "lora_A")}
