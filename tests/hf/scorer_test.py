# pyright: reportMissingImports=false

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_hf

from lm_mia.errors import UserError
from lm_mia.hf import models, scorer

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")


def open_scorer(folder: Path) -> tuple[scorer.Scorer, Any, list[np.ndarray]]:
    """Returns a scorer, its network, and tokens of texts of different lengths."""
    model = models.open_model(str(folder))
    network = models.load_weights(model, "float32", "cpu")
    tokens = [np.array(e.ids[:48], np.int32) for e in model.encode(tiny_hf.sample_texts(6))]
    return scorer.Scorer(network, model, "float32"), network, tokens


@pytest.mark.parametrize("kind", [*tiny_hf.KINDS, "gemma2"])
def test_padding_and_chunks_change_no_log_probability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    scored, network, tokens = open_scorer(tiny_hf.save_model(tmp_path, kind))
    alone = [scored.log_probs([ids])[0] for ids in tokens]
    rows: list[int] = []
    head = network.get_output_embeddings()
    head.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape[-2]))
    monkeypatch.setattr(scorer, "MAX_LOGITS", 10 * network.config.vocab_size)
    together = scored.log_probs(tokens)
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)
    assert sum(rows) == sum(len(ids) - 1 for ids in tokens)  # logits of these, and of no padding
    assert max(rows) == 10


def test_layers_on_several_devices_have_the_same_log_probabilities(tmp_path: Path):
    accelerate = pytest.importorskip("accelerate")
    scored, network, tokens = open_scorer(tiny_hf.save_model(tmp_path, "llama"))
    expected = scored.log_probs(tokens)
    # Replaces the forward functions of all modules, as --device-map=auto does with several GPUs.
    places = {"model": "cpu", "lm_head": "cpu"}
    accelerate.dispatch_model(network, places, main_device="cpu", force_hooks=True)
    forward = network.model.__dict__["forward"]
    for a, b in zip(scored.log_probs(tokens), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert network.model.__dict__["forward"] is forward


def test_layers_that_cannot_be_replaced_compute_all_logits(tmp_path: Path):
    scored, network, tokens = open_scorer(tiny_hf.save_model(tmp_path, "llama"))
    expected = scored.log_probs(tokens)
    forward = network.forward
    network.forward = lambda **inputs: forward(**inputs, logits_to_keep=0)
    again = scorer.Scorer(network, scored._model, "float32")
    again._body = network.lm_head  # gives no hidden states
    for a, b in zip(again.log_probs(tokens), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)


def test_a_model_that_sees_later_tokens_is_refused(tmp_path: Path):
    import torch
    import transformers

    vocab = tiny_hf.save_tokenizer(tmp_path, has_bos=True)
    size: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.BertConfig(**size, intermediate_size=32, vocab_size=vocab)
    torch.manual_seed(0)
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path)
    scored, _, tokens = open_scorer(tmp_path)
    with pytest.raises(UserError, match="later tokens"):
        scored.log_probs(tokens)
