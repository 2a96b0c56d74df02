"""How a variable of the score store lies on disk: Zarr v3, a shard a row and 2^22 samples, checked chunks of 2^16."""

from pathlib import Path
from typing import Any

SHARD_SAMPLES, CHUNK_SAMPLES = 2**22, 2**16
_NATS = "nats per token"
VARIABLES = {  # name -> type, fill value and units
    "member": ("bool", False, ""),
    "loss": ("float32", "NaN", _NATS),
    "min_k": ("float32", "NaN", _NATS),
    "min_k_plus_plus": ("float32", "NaN", "standard deviations"),
    "lowercase_loss": ("float32", "NaN", _NATS),
}


def kvstore(path: Path) -> dict[str, str]:
    """Tensorstore's specification of a folder."""
    return {"driver": "file", "path": f"{path.absolute()}/"}


def spec(path: Path, rows: int, samples: int) -> dict[str, Any]:
    """Tensorstore's specification of a new variable, named by its path, of so many rows."""
    dtype, fill, units = VARIABLES[path.name]
    chunk = min(CHUNK_SAMPLES, samples)
    shard = min(SHARD_SAMPLES, -(-samples // chunk) * chunk)
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = {
        "chunk_shape": [1, chunk],
        "codecs": [little, {"name": "crc32c"}],
        "index_codecs": [little, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {
        "driver": "zarr3",
        "kvstore": kvstore(path),
        "metadata": {
            "shape": [rows, samples],
            "data_type": dtype,
            "fill_value": fill,
            "dimension_names": ["row", "sample"],
            "attributes": {"units": units} if units else {},
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, shard]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        },
    }
