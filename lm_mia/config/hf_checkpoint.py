"""Reads what a Hugging Face checkpoint says about its model: config.json, tokenizer.json and a digest of its files.

No package of Hugging Face is needed. A kind of model that is not supported, and a setting of config.json with another
effect than that of these kinds, is refused by name.
"""

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

from lm_mia.atomic import file_sha256

_PREFIX = "hf:"
_LLAMAS = ("llama", "mistral", "qwen2", "qwen3")
MODEL_TYPES = ("gpt2", *_LLAMAS)
"""Values of ``model_type`` in config.json that are supported: GPT-2, Llama, SmolLM and Mistral, Qwen 2 and 3."""
TOKENIZER_FILE = "tokenizer.json"


class CheckpointError(ValueError):
    """What is wrong with a checkpoint, and what to do about it, in one line."""


def is_checkpoint(init: str) -> bool:
    """Returns whether model.init is ``hf:FOLDER``."""
    return init.startswith(_PREFIX)


def folder_of(init: str) -> Path:
    """Returns the absolute path of FOLDER in ``hf:FOLDER``."""
    return Path(init.removeprefix(_PREFIX)).expanduser().absolute()


def model_fields(init: str) -> dict[str, Any]:
    """Returns the fields of `Model` that the checkpoint determines; ``longest``, too, its largest number of positions.

    Raises:
      CheckpointError: if the folder has no config.json, or the model is not supported.
    """
    folder = folder_of(init)
    config = _read_json(folder / "config.json")
    if "quantization_config" in config:
        raise CheckpointError(
            f"{folder} has quantized weights; give a checkpoint of floating-point numbers"
        )
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise CheckpointError(
            f"model_type={kind!r} in {folder / 'config.json'} is not supported, only {', '.join(MODEL_TYPES)}; train "
            "others by `lm-mia hf-train`"
        )
    try:
        return _gpt2(config) if kind == "gpt2" else _llama(config, kind)
    except KeyError as error:
        raise CheckpointError(
            f"{folder / 'config.json'} has no field {error}; give a complete one"
        ) from None


def tokenizer_fields(init: str) -> dict[str, Any]:
    """Returns the fields of `Tokenizer` that the checkpoint determines; raises CheckpointError."""
    path = folder_of(init) / TOKENIZER_FILE
    content = _read_json(path)
    try:
        vocabulary = content["model"]["vocab"]  # of unigram models, a list
        ids = [*vocabulary.values()] if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
        ids += [token["id"] for token in content.get("added_tokens", [])]
        size = max(ids) + 1
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CheckpointError(
            f"{path} has no vocabulary; save it again by save_pretrained"
        ) from None
    source = hashlib.sha256(path.read_bytes()).hexdigest()[:20]
    return {"path": str(path), "vocab_size": size, "special_tokens": "file", "source": source}


def weight_files(folder: Path, stem: str = "model") -> list[Path]:
    """Returns the safetensors files of weights ("model") or of an adapter ("adapter_model"); raises CheckpointError."""
    # The order of transformers, which prefers the single file.
    if (single := folder / f"{stem}.safetensors").is_file():
        return [single]
    index = folder / f"{stem}.safetensors.index.json"
    if not index.is_file():
        pickled = [path.name for path in folder.glob("*.bin")]
        found = f"; it has {pickled[0]}, which could run code" if pickled else ""
        raise CheckpointError(
            f"{folder} has no {stem}.safetensors{found}; save the model with save_pretrained"
        )
    try:
        names = sorted({*json.loads(index.read_bytes())["weight_map"].values()})
        files = [folder / Path(name).name for name in names]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index.name} is damaged; copy the model again") from error
    if missing := [path.name for path in files if not path.is_file()]:
        raise CheckpointError(
            f"{len(missing)} of {len(files)} files are missing, such as {missing[0]}; copy the model again"
        )
    return files


def digest(init: str) -> str:
    """Returns 20 hex digits that identify the files of a checkpoint, wherever they lie; raises CheckpointError."""
    folder = folder_of(init)
    files = [folder / "config.json", folder / TOKENIZER_FILE, *weight_files(folder)]
    return hashlib.sha256("".join(map(file_digest, files)).encode()).hexdigest()[:20]


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of a file, which is read again only if its size or its time has changed."""
    status = path.stat()
    return _digest_of_state(path, status.st_size, status.st_mtime_ns)


@functools.cache
def _digest_of_state(path: Path, size: int, time_ns: int) -> str:
    del size, time_ns  # part of the key
    return file_sha256(path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        if (path.parent / "adapter_config.json").is_file():
            raise CheckpointError(
                f"{path.parent} is a LoRA adapter; merge it into its base model first"
            ) from None
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}); give the folder of a checkpoint"
        ) from None
    except ValueError as error:
        raise CheckpointError(
            f"{path} is not JSON ({error}); save it again by save_pretrained"
        ) from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object; save it again by save_pretrained")
    return content


def _require(config: dict[str, Any], **supported: Any) -> None:
    """Checks that settings, if they are there, have the only value that the kinds have."""
    for name, value in supported.items():
        if config.get(name, value) != value:
            raise CheckpointError(
                f"{name}={config[name]!r} in config.json is not supported, only {value!r}; train by `lm-mia hf-train`"
            )


def _gpt2(config: dict[str, Any]) -> dict[str, Any]:
    _require(
        config, activation_function="gelu_new", scale_attn_weights=True, tie_word_embeddings=True
    )
    _require(config, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    width = config["n_embd"]
    return {
        "kind": "gpt2",
        "layers": config["n_layer"],
        "width": width,
        "heads": config["n_head"],
        "mlp_width": config.get("n_inner") or 4 * width,
        "norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
        "vocab_size": config["vocab_size"],
        "longest": config["n_positions"],
    }


def _llama(config: dict[str, Any], kind: str) -> dict[str, Any]:
    _require(config, hidden_act="silu", mlp_bias=False)
    width, heads = config["hidden_size"], config["num_attention_heads"]
    longest = config["max_position_embeddings"]
    if kind == "mistral" or config.get("use_sliding_window"):  # no difference in shorter samples
        longest = min(longest, config.get("sliding_window", 4096) or longest)
    has_bias = bool(config.get("attention_bias", False))
    theta, scaling = _rope(config)
    return {
        "kind": "llama",
        "layers": config["num_hidden_layers"],
        "width": width,
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_width": config.get("head_dim") or (128 if kind == "qwen3" else width // heads),
        "mlp_width": config["intermediate_size"],
        "rope_theta": theta,
        "rope_scaling": scaling,
        "norm_epsilon": config.get("rms_norm_eps", 1e-6),
        "tied": bool(config.get("tie_word_embeddings", False)),
        "qk_norm": kind == "qwen3",
        "qkv_bias": kind == "qwen2" or has_bias,
        "out_bias": kind != "qwen2" and has_bias,
        "vocab_size": config["vocab_size"],
        "longest": longest,
    }


def _rope(config: dict[str, Any]) -> tuple[float, tuple[float, ...]]:
    """Returns rope_theta and rope_scaling; Transformers 5 writes ``rope_parameters``, and 4 two other fields."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind not in ("default", "linear", "llama3") or given.get("partial_rotary_factor", 1) != 1:
        raise CheckpointError(
            f"rotary positions of type {kind!r} in config.json are not supported, only default, linear and llama3; "
            "train by `lm-mia hf-train`"
        )
    theta = float(given.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    if kind == "default":
        return theta, ()
    if kind == "linear":
        return theta, (float(given["factor"]),)
    original = given.get("original_max_position_embeddings", config["max_position_embeddings"])
    names = ("factor", "low_freq_factor", "high_freq_factor")
    return theta, (*(float(given[name]) for name in names), float(original))
