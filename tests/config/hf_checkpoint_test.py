import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_checkpoint
from tiny_checkpoint import GPT2, LLAMA

from lm_mia import config
from lm_mia.config import hf_checkpoint, load, validate
from lm_mia.config.recipe import population_hash, recipe_hash


def write(folder: Path, content: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content))
    return f"hf:{folder}"


def starting_from(init: str, **model: Any) -> config.Config:
    return config.resolve(
        config.Config(
            model=config.Model(init=init, **model), population=config.Population(length_tokens=32)
        )
    )


def mistakes(c: config.Config) -> list[str]:
    return [line for line in validate.problems(c) if line.startswith("model.init")]


def test_fields_of_llama_and_its_relatives(tmp_path: Path):
    found = hf_checkpoint.model_fields(write(tmp_path, LLAMA))
    assert (found["layers"], found["width"], found["heads"], found["kv_heads"]) == (2, 16, 4, 2)
    assert (found["head_width"], found["mlp_width"], found["tied"]) == (4, 24, False)
    assert (found["rope_theta"], found["rope_scaling"], found["longest"]) == (10_000.0, (), 64)
    qwen2 = hf_checkpoint.model_fields(write(tmp_path, LLAMA | {"model_type": "qwen2"}))
    assert (qwen2["qkv_bias"], qwen2["out_bias"], qwen2["qk_norm"]) == (True, False, False)
    qwen3 = hf_checkpoint.model_fields(write(tmp_path, LLAMA | {"model_type": "qwen3"}))
    assert (qwen3["qkv_bias"], qwen3["qk_norm"], qwen3["head_width"]) == (False, True, 128)
    mistral = LLAMA | {"model_type": "mistral", "sliding_window": 16}
    assert hf_checkpoint.model_fields(write(tmp_path, mistral))["longest"] == 16
    biased = hf_checkpoint.model_fields(write(tmp_path, LLAMA | {"attention_bias": True}))
    assert (biased["qkv_bias"], biased["out_bias"]) == (True, True)


def test_rotary_positions_of_both_versions_of_transformers(tmp_path: Path):
    old = {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4}}
    new = {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4}}
    for rope in (old, new):
        found = hf_checkpoint.model_fields(write(tmp_path, LLAMA | rope))
        assert (found["rope_theta"], found["rope_scaling"]) == (500.0, (4.0,))
    llama3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
    llama3 |= {"original_max_position_embeddings": 32}
    found = hf_checkpoint.model_fields(write(tmp_path, LLAMA | {"rope_scaling": llama3}))
    assert found["rope_scaling"] == (8.0, 1.0, 4.0, 32.0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model_type": "bloom"}, "bloom"),
        ({"quantization_config": {}}, "quantized"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "yarn"),
        ({"vocab_size": 300}, "tokens"),
        ({"max_position_embeddings": 16}, "population.length_tokens"),
    ],
)
def test_what_is_not_supported_is_refused(changes: dict[str, Any], problem: str, tmp_path: Path):
    tiny_checkpoint.save(tmp_path / "a")
    c = starting_from(write(tmp_path / "a", LLAMA | changes))
    (line,) = mistakes(c)
    assert problem in line
    assert c.model.init_source == ""


def test_missing_parts_of_a_folder_are_named(tmp_path: Path):
    (line,) = mistakes(starting_from(f"hf:{tmp_path / 'nowhere'}"))
    assert "config.json" in line
    tiny_checkpoint.save(tmp_path / "a")
    for name in ("tokenizer.json", "model.safetensors"):
        shutil.copytree(tmp_path / "a", tmp_path / name)
        (tmp_path / name / name).unlink()
        (line,) = mistakes(starting_from(f"hf:{tmp_path / name}"))
        assert name in line
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    (line,) = mistakes(starting_from(f"hf:{adapter}"))
    assert "LoRA" in line
    (line,) = mistakes(starting_from("gpt2"))
    assert "hf:FOLDER" in line


def test_the_checkpoint_determines_model_and_tokenizer(tmp_path: Path):
    tiny_checkpoint.save(tmp_path / "a", GPT2, has_bos=False)
    c = starting_from(f"hf:{tmp_path / 'a'}")
    assert (c.model.kind, c.model.layers, c.model.vocab_size) == ("gpt2", 2, 512)
    assert c.tokenizer.path == str(tmp_path / "a" / "tokenizer.json")
    assert (c.tokenizer.vocab_size, c.tokenizer.special_tokens) == (500, "file")
    assert mistakes(c) == []
    (line,) = mistakes(starting_from(f"hf:{tmp_path / 'a'}", layers=3))
    assert "model.layers=3" in line
    again = config.resolve(dataclasses.replace(c, model=dataclasses.replace(c.model)))
    assert again == c


def test_flags_replace_the_model_of_a_config_file(tmp_path: Path):
    tiny_checkpoint.save(tmp_path / "a")
    flags = [f"--config.model.init=hf:{tmp_path / 'a'}"]
    c = load.load_config("quickstart", flags)
    assert (c.model.layers, c.model.width, c.tokenizer.vocab_size) == (2, 16, 400)


def test_hashes_follow_the_content_and_not_the_path(tmp_path: Path):
    tiny_checkpoint.save(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    a, b = (starting_from(f"hf:{tmp_path / name}") for name in "ab")
    assert recipe_hash(a) == recipe_hash(b)
    assert population_hash(a) == population_hash(b)
    weights = tmp_path / "b" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    changed = starting_from(f"hf:{tmp_path / 'b'}")
    assert recipe_hash(a) != recipe_hash(changed)
    assert population_hash(a) == population_hash(changed)
