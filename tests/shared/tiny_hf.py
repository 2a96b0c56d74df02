"""Tiny random causal language models of transformers, as folders; for tests that have torch and transformers."""

# pyright: reportMissingImports=false

import random
import warnings
from pathlib import Path
from typing import Any

WORDS = (
    "the",
    "model",
    "learns",
    "which",
    "sample",
    "it",
    "saw",
    "forgets",
    "others",
    "ümlaut",
    "naïve",
    "東京",
)
KINDS = ("gpt2", "llama", "qwen2", "gemma3", "bloom", "mamba")
SAMPLES = 16


def sample_texts(count: int = SAMPLES, longest: int = 30) -> list[str]:
    """Returns different texts of 2 to `longest` words, in random order of lengths."""
    rng = random.Random(0)
    lengths = [2 + n * (longest - 2) // max(count - 1, 1) for n in range(count)]
    rng.shuffle(lengths)
    return [
        " ".join([str(n), *(rng.choice(WORDS) for _ in range(L))]) for n, L in enumerate(lengths)
    ]


def save_tokenizer(folder: Path, *, has_bos: bool) -> int:
    """Saves a tokenizer of bytes and a few merges; returns the size of its vocabulary.

    The one with a token at the beginning cuts texts, as the file of a training run may say; neither has one at the end.
    """
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>"] if has_bos else [],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample_texts(), trainer)
    special = {}
    if has_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
        special = {"bos_token": "<s>"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.save_pretrained(folder)
    if has_bos:
        tokenizer.enable_truncation(4)
        tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer.get_vocab_size()


def save_model(folder: Path, kind: str, seed: int = 0, **settings: Any) -> Path:
    """Saves a tiny random model and its tokenizer; returns the folder.

    Args:
      folder: is created.
      kind: one of `KINDS`, or gemma2, which changes logits after the output layer.
      seed: of the weights.
      settings: further fields of the configuration.
    """
    import torch
    import transformers

    # A tokenizer that adds a token at the beginning has a post-processor; those of GPT-2 and Qwen have none.
    vocab = save_tokenizer(folder, has_bos=kind not in ("gpt2", "qwen2", "mamba"))
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    llama = {**size, "intermediate_size": 48, "num_key_value_heads": 2}
    gemma = {**llama, "head_dim": 8, "sliding_window": 8}
    made = {
        "gpt2": (
            transformers.GPT2Config,
            {"n_positions": 48, "n_embd": 32, "n_layer": 2, "n_head": 4},
        ),
        "llama": (transformers.LlamaConfig, {**llama, "max_position_embeddings": 64}),
        "qwen2": (transformers.Qwen2Config, llama),
        "gemma2": (transformers.Gemma2Config, {**gemma, "final_logit_softcapping": 1.0}),
        "gemma3": (transformers.Gemma3TextConfig, gemma),
        "bloom": (transformers.BloomConfig, {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
        "mamba": (
            transformers.MambaConfig,
            {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2},
        ),
    }
    config_class, fields = made[kind]
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = config_class(**{**fields, **tokens, "vocab_size": vocab + 3, **settings})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:  # larger than by default, so that losses differ between texts
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    return folder


def save_adapter(folder: Path, base: Path, seed: int = 1) -> Path:
    """Saves a random LoRA adapter of a llama, without a tokenizer of its own; returns the folder."""
    import peft
    import torch
    import transformers

    network = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    settings = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", FutureWarning
        )  # peft calls names that transformers deprecates
        adapted = peft.get_peft_model(network, settings)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora" in name:
                parameter.normal_(0, 0.2)
    adapted.save_pretrained(str(folder))
    return folder
