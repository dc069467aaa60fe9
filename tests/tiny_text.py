"""A tiny Qwen2 with a tokenizer of single characters, saved as any pretrained model is: a folder for ``--model``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from sspo_teach.policies.causal_lm import tiny_qwen2

ALPHABET = "0123456789+-? \n:QuestionAnswerWhat is"


def tokenizer() -> Any:
    """End, unknown, and the characters of a question about small numbers: a random model says digits often."""
    names = ["<eos>", "<unk>", *dict.fromkeys(ALPHABET)]
    backend = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    backend.pre_tokenizer = Split(Regex("."), "isolated")
    backend.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<eos>", unk_token="<unk>")


def checkpoint_folder(folder: Path, **sizes: Any) -> Path:
    """Weights, config and tokenizer of a model of some ten thousand parameters."""
    words = tokenizer()
    small = {"vocab_size": len(words), "hidden_size": 32, "intermediate_size": 64, "heads": 4, "kv_heads": 2}
    tiny_qwen2(**{**small, **sizes}).save(folder)
    words.save_pretrained(folder)
    return folder
