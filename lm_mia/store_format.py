"""How a variable of the score store lies on disk: Zarr v3, checked chunks of 2^16 samples, shards of 2^22.

A shard is of one row, at one score point.
"""

from pathlib import Path
from typing import Any

SHARD_SAMPLES, CHUNK_SAMPLES = 2**22, 2**16
TOKENS = "token_log_prob"
"""The one variable that is not of samples, but of the tokens of chosen ones."""
TOKEN_COLUMNS = ("token_sample", "token_position", "token_piece")
"""What is known of these tokens: of which sample, where in it (0: <bos>), and which piece of the vocabulary."""
_NATS = "nats per token"
VARIABLES = {  # name -> type, fill value and units
    "member": ("bool", False, ""),
    "loss": ("float32", "NaN", _NATS),
    "summed_loss": ("float32", "NaN", "nats"),
    "target_logit": ("float32", "NaN", ""),
    "greedy_match": ("float32", "NaN", "share of tokens"),
    "min_k": ("float32", "NaN", _NATS),
    "min_k_plus_plus": ("float32", "NaN", "standard deviations"),
    "lowercase_loss": ("float32", "NaN", _NATS),
    TOKENS: ("float32", "NaN", "nats"),
}


def kvstore(path: Path) -> dict[str, str]:
    """Tensorstore's specification of a folder."""
    return {"driver": "file", "path": f"{path.resolve()}/"}  # it takes no ".."


def dimension_of(name: str) -> str:
    """The last dimension of a variable."""
    return "token" if name == TOKENS else "sample"


def points_of(name: str, points: int) -> tuple[int, ...]:
    """The shape of a variable between its rows and its samples, in a store of so many score points (0: the end alone).

    Membership is the same at all of them.
    """
    return (points,) if points and name != "member" else ()


def spec(
    path: Path, rows: int, points: int, samples: int, token_samples: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Tensorstore's specification of a new variable, named by its path, of so many rows, score points and samples.

    `TOKENS` has tokens for samples, and says in its attributes of which samples they are.
    """
    middle = points_of(path.name, points)
    ones = [1] * (1 + len(middle))
    dtype, fill, units = VARIABLES[path.name]
    chunk = min(CHUNK_SAMPLES, samples)
    shard = min(SHARD_SAMPLES, -(-samples // chunk) * chunk)
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = {
        "chunk_shape": [*ones, chunk],
        "codecs": [little, {"name": "crc32c"}],
        "index_codecs": [little, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {
        "driver": "zarr3",
        "kvstore": kvstore(path),
        "metadata": {
            "shape": [rows, *middle, samples],
            "data_type": dtype,
            "fill_value": fill,
            "dimension_names": ["row", *["checkpoint"] * len(middle), dimension_of(path.name)],
            "attributes": ({"units": units} if units else {})
            | ({"samples": list(token_samples)} if path.name == TOKENS else {}),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [*ones, shard]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        },
    }
