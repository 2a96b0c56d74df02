"""Checkpoints that Transformers wrote give the logits and losses of Transformers."""

# pyright: reportMissingImports=false

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lm_mia.config import Config, Model, Population, hf_checkpoint, resolve
from lm_mia.model import kinds
from lm_mia.model.transformer import ModelConfig

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS = {
    "gpt2": ("GPT2Config", dict(vocab_size=320, n_embd=32, n_layer=2, n_head=4, n_positions=128)),
    "llama3": ("LlamaConfig", {**SHAPE, "rope_parameters": LLAMA3}),
    "llama with biases": (
        "LlamaConfig",
        {**SHAPE, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "mistral": ("MistralConfig", {**SHAPE, "sliding_window": None}),
    "qwen2": ("Qwen2Config", SHAPE),
    "qwen3": ("Qwen3Config", {**SHAPE, "head_dim": 16}),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_losses_are_those_of_transformers(name: str, tmp_path: Path):
    class_name, settings = CONFIGS[name]
    torch.manual_seed(0)
    config = getattr(transformers, class_name)(**settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # also of biases, which are 0 at first
            parameter.add_(0.15 * torch.randn_like(parameter))
        ids_BxL = torch.randint(3, 300, (3, 60))
        expected_BxLxV = model(ids_BxL).logits.numpy()
    model.save_pretrained(tmp_path)
    fields = hf_checkpoint.model_fields(f"hf:{tmp_path}")
    fields.pop("longest")
    c = resolve(
        Config(model=Model(**fields, size="custom"), population=Population(length_tokens=64))
    )
    ours = ModelConfig.from_settings(c.model, 320, 64)
    params = kinds.load_params(ours, hf_checkpoint.weight_files(tmp_path))
    x_BxL: Any = ids_BxL.numpy()
    logits_BxLxV = np.asarray(kinds.build(ours).apply({"params": params}, x_BxL))
    assert np.abs(logits_BxLxV - expected_BxLxV).max() < 1e-5 * expected_BxLxV.std()

    def loss_BxL(logits_BxLxV: np.ndarray) -> np.ndarray:
        z_BxLxV = logits_BxLxV.astype(np.float64)
        log_z_BxL = np.log(np.exp(z_BxLxV).sum(-1))
        target_BxL = np.take_along_axis(z_BxLxV[:, :-1], x_BxL[:, 1:, None], -1)[..., 0]
        return log_z_BxL[:, :-1] - target_BxL

    difference_R = loss_BxL(logits_BxLxV).mean(1) - loss_BxL(expected_BxLxV).mean(1)
    assert np.abs(difference_R).max() < 1e-5
