import json
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tiny_checkpoint
from tiny_checkpoint import GPT2, LLAMA, model_config, random_params, tensors_of

from lm_mia.config import hf_checkpoint
from lm_mia.errors import UserError
from lm_mia.model import kinds


def load(folder: Path, content: dict[str, Any], length_tokens: int = 64) -> Any:
    return kinds.load_params(
        model_config(content, length_tokens), hf_checkpoint.weight_files(folder)
    )


def save(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("content", [LLAMA, LLAMA | {"tie_word_embeddings": True}, GPT2])
def test_saved_parameters_are_read(content: dict[str, Any], tmp_path: Path):
    params = tiny_checkpoint.save(tmp_path / "a", content)
    jax.tree.map(np.testing.assert_array_equal, load(tmp_path / "a", content), params)


def test_positions_that_no_sample_reaches_are_left_out(tmp_path: Path):
    params = tiny_checkpoint.save(tmp_path / "a", GPT2)
    read = load(tmp_path / "a", GPT2, length_tokens=24)
    assert np.array_equal(read["pos_embed"]["embedding"], params["pos_embed"]["embedding"][:24])


def test_old_names_and_constants(tmp_path: Path):
    c = model_config(GPT2)
    params = random_params(c)
    tensors = tensors_of(c, params)
    old = {name.removeprefix("transformer."): array for name, array in tensors.items()}
    old["h.0.attn.bias"] = np.ones((1, 1, 64, 64), np.float32)
    jax.tree.map(np.testing.assert_array_equal, load(save(tmp_path, old), GPT2), params)


def test_bfloat16_in_several_files(tmp_path: Path):
    c = model_config(LLAMA)
    params = random_params(c)
    tensors = {
        name: array.astype(ml_dtypes.bfloat16) for name, array in tensors_of(c, params).items()
    }
    weight_map = {name: f"part-{i % 3}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in {*weight_map.values()}:
        part = {name: tensors[name] for name in tensors if weight_map[name] == file}
        safetensors.numpy.save_file(part, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    expected = jax.tree.map(lambda a: a.astype(ml_dtypes.bfloat16).astype(np.float32), params)
    jax.tree.map(np.testing.assert_array_equal, load(tmp_path, LLAMA), expected)


@pytest.mark.parametrize("damage", ["missing", "unexpected", "shape", "integers", "truncated"])
def test_every_other_tensor_is_refused(damage: str, tmp_path: Path):
    c = model_config(LLAMA)
    tensors = tensors_of(c, random_params(c))
    name = "model.layers.1.mlp.up_proj.weight"
    if damage == "missing":
        del tensors[name]
    elif damage == "unexpected":
        tensors["model.layers.0.mlp.up_proj.bias"] = np.zeros(24, np.float32)
    elif damage == "shape":
        tensors[name] = np.ascontiguousarray(tensors[name].T)
    elif damage == "integers":
        tensors[name] = tensors[name].astype(np.int8)
    save(tmp_path, tensors)
    if damage == "truncated":
        path = tmp_path / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError) as error:
        load(tmp_path, LLAMA)
    assert len(str(error.value).splitlines()) == 1


def test_an_output_that_differs_from_the_tied_embeddings_is_refused(tmp_path: Path):
    content = LLAMA | {"tie_word_embeddings": True}
    c = model_config(content)
    params = random_params(c)
    tensors = tensors_of(c, params)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    jax.tree.map(np.testing.assert_array_equal, load(save(tmp_path, tensors), content), params)
    tensors["lm_head.weight"][3, 2] += 1
    with pytest.raises(UserError, match="lm_head"):
        load(save(tmp_path, tensors), content)
