"""The execution plan: how training is computed on the available devices, from the section ``compute`` of a config."""

import dataclasses
from typing import Literal

from lm_mia import config
from lm_mia.config import validate
from lm_mia.errors import UserError
from lm_mia.model import kinds, memory
from lm_mia.model.attention import AttentionKind
from lm_mia.model.transformer import ModelConfig

_CPU_CHUNK_TOKENS = 512


@dataclasses.dataclass(frozen=True)
class ExecutionPlan:
    """A resolved `lm_mia.config.Compute`, for one device."""

    model_config: ModelConfig
    """The model, with attention, scan_layers and remat resolved."""
    micro_batch_sizes: tuple[int, ...]
    """Numbers of packed sequences that a device may process at once, ascending: one or, on GPUs, several, of which
    `batching.choose_micro_batch_size` chooses one for each batch. Each is compiled when it is first used."""
    chunk_tokens: int
    """Number of tokens whose logits are in memory at once."""
    attention_reason: str
    """Why this implementation of attention was chosen."""

    def __str__(self) -> str:
        model = self.model_config
        layers = "scanned" if model.scan_layers else "unrolled"
        at_most = "at most " if len(self.micro_batch_sizes) > 1 else ""
        return (
            f"attention {model.attention} ({self.attention_reason}), layers {layers}, remat {model.remat}, "
            f"micro-batches of {at_most}{self.micro_batch_size} packed sequences"
        )

    @property
    def micro_batch_size(self) -> int:
        """The largest number of packed sequences that a device processes at once."""
        return self.micro_batch_sizes[-1]

    @property
    def is_reproducible(self) -> bool:
        """Whether the same seeds give the same bits in every run on as many devices of the same kind."""
        return self.model_config.attention != "cudnn"


def plan_execution(
    compute: config.Compute,
    model_config: ModelConfig,
    batch_size: int,
    platform: str,
    memory_bytes: int | None = None,
    num_devices: int = 1,
    state_bytes: float = memory.ADAMW_STATE_BYTES,
) -> ExecutionPlan:
    """Returns the plan for a platform: the values that the config requests, and the fastest ones instead of "auto".

    Micro-batches: small ones save memory and leave few empty sequences in the last micro-batch of a batch; large ones
    keep a device busy. About 2,048 tokens on CPUs and 8,192 on TPUs, and at most an eighth of a device's samples, were
    fastest in benchmarks. On GPUs, they are as large as memory allows.

    Layers: unrolled and without rematerialization, which is fastest, if the activations for the backward pass fit into
    memory; otherwise scanned and with rematerialization.

    Args:
      compute: the section of the config.
      model_config: the model.
      batch_size: number of samples per step.
      platform: "cpu", "gpu" or "tpu", as JAX names it.
      memory_bytes: memory of a device, if known.
      num_devices: number of devices that share each batch.
      state_bytes: bytes of the optimizer's state per parameter, as `optimizer.check_optimizer` returns them.

    Raises:
      UserError: if the requested implementation of attention does not support the platform or the model, or if
        rematerialization of unrolled layers is requested on a TPU.
    """
    attention, reason = attention_of(compute, model_config, platform)
    is_cpu = platform == "cpu"
    micro_batch_sizes, fits = memory.micro_batch_sizes(
        config.number(compute.micro_batch_size),
        dataclasses.replace(kinds.size(model_config), state_bytes=state_bytes),
        attention,
        batch_size,
        num_devices,
        platform,
        memory_bytes or memory.UNKNOWN_BYTES,
    )
    remat = compute.remat
    # XLA for TPUs merges the recomputation of unrolled layers with the forward pass, which saves no memory.
    must_scan = platform == "tpu" and remat in ("dots", "full")
    if must_scan and compute.layers == "unrolled":
        raise UserError(
            f"compute.layers='unrolled', compute.remat={remat!r}: rematerialization of unrolled layers saves no memory "
            "on TPUs; set --config.compute.layers=scanned or --config.compute.remat=none"
        )
    scan_automatically = must_scan or not (is_cpu or fits)
    scan_layers = {"auto": scan_automatically, "scanned": True, "unrolled": False}[compute.layers]
    if remat == "auto":
        remat = "full" if scan_layers else "none"
    return ExecutionPlan(
        model_config=dataclasses.replace(
            model_config,
            attention=attention,
            scan_layers=scan_layers,
            remat=remat,
            embedding_gradient="sorted" if platform == "gpu" else "scatter",
        ),
        micro_batch_sizes=micro_batch_sizes,
        chunk_tokens=_CPU_CHUNK_TOKENS if is_cpu else memory.DEVICE_CHUNK_TOKENS,
        attention_reason=reason,
    )


def attention_of(
    compute: config.Compute, model_config: ModelConfig, platform: str
) -> tuple[AttentionKind, str]:
    """Returns the implementation of attention for a model, and why it was chosen."""
    return choose_attention(
        compute.attention,
        platform,
        model_config.dtype,
        model_config.heads_shape[1],
        model_config.length_tokens,
    )


def choose_attention(
    requested: Literal["auto", "xla", "cudnn", "pallas"],
    platform: str,
    dtype: str,
    head_width: int,
    length_tokens: int,
) -> tuple[AttentionKind, str]:
    """Returns the implementation of attention to use, and the reason, for the log.

    Raises:
      UserError: if the requested implementation does not support the platform or the model.
    """
    pallas: AttentionKind = "pallas_tpu" if platform == "tpu" else "pallas_gpu"
    kinds: dict[str, AttentionKind] = {"xla": "xla", "cudnn": "cudnn", "pallas": pallas}
    obstacles: dict[str, list[str]] = {
        name: validate.unmet_attention_requirements(kind, dtype, head_width, length_tokens)
        for name, kind in kinds.items()
    }
    if platform != "gpu":
        obstacles["cudnn"].insert(0, f"it needs an NVIDIA GPU, but the platform is {platform}")
    if platform not in ("gpu", "tpu"):
        obstacles["pallas"].insert(
            0, f"it needs an NVIDIA GPU or a TPU, but the platform is {platform}"
        )
    if requested != "auto":
        if obstacles[requested]:
            raise UserError(
                f"compute.attention={requested!r}: {'; '.join(obstacles[requested])}; "
                "set --config.compute.attention=auto"
            )
        return kinds[requested], "requested"
    if platform == "cpu":
        return "xla", "the only one for CPUs"
    if platform == "gpu" and dtype != "bfloat16":
        obstacles["pallas"].append(f"it is slow for model.dtype={dtype}")
    if obstacles["pallas"]:
        return "xla", f"slower than pallas, but {'; '.join(obstacles['pallas'])}"
    return pallas, f"fastest on {platform}"
