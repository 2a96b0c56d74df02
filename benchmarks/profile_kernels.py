"""Where the time of a training step goes on a GPU, by kind of kernel, as a part of `accelerator.py`."""

import re
from pathlib import Path

import c4_like
import fresh
import jax
import numpy as np
import steps

from lm_mia.model import transformer

KINDS = ("attention", "products", "elementwise", "copies", "gaps")
# The first expression that a kernel's name contains decides. All other kernels are elementwise.
_PATTERNS = {
    "attention": r"attention|fmha|mha_|sdpa|softmax_fprop|flash",
    "products": r"nvjet|gemm|cublas|cutlass|xmma|\bdot|matmul",
    "copies": r"memcpy|memset|copy|concatenate|transpose|dynamic[-_]update",
}


def kind(kernel: str) -> str:
    """Returns one of `KINDS` for the name of a kernel."""
    for name, pattern in _PATTERNS.items():
        if re.search(pattern, kernel.casefold()):
            return name
    return "elementwise"


def profile(
    clock: fresh.Clock,
    folder: Path,
    *,
    model_config: transformer.ModelConfig,
    scale: int,
    batch_size: int,
    num_steps: int,
) -> fresh.Results:
    """Runs training steps with a profiler, as a workload for `fresh.measure`.

    Returns:
      "milliseconds_K", the time per step of each of `KINDS`, where "gaps" is the time in which no kernel ran; and
      "kernels", their number per step. Both are empty if the profiler saw no GPU.
    """
    population = c4_like.population(2 * num_steps * batch_size, model_config.vocab_size, scale)
    ids_SxB = np.arange(2 * num_steps * batch_size).reshape(2 * num_steps, batch_size)
    step = steps.make_step(steps.PACKED, population, model_config, batch_size, None)
    with clock:
        jax.block_until_ready([step(ids_B) for ids_B in ids_SxB])  # compiles all sizes
        with jax.profiler.trace(str(folder / "profile")):
            jax.block_until_ready([step(ids_B) for ids_B in ids_SxB[:num_steps]])
    [path] = (folder / "profile").rglob("*.xplane.pb")
    nanoseconds: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    count, begin, end = 0, float("inf"), 0.0
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        if "GPU" not in plane.name:
            continue
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue
            for event in line.events:
                nanoseconds[kind(event.name)] += event.duration_ns
                count += 1
                begin = min(begin, event.start_ns)
                end = max(end, event.start_ns + event.duration_ns)
    if not count:
        return {"milliseconds_K": np.zeros(0), "kernels": np.zeros(0)}
    nanoseconds["gaps"] = max(end - begin - sum(nanoseconds.values()), 0)
    return {
        "milliseconds_K": np.array([nanoseconds[name] / 1e6 / num_steps for name in KINDS]),
        "kernels": np.array(count / num_steps),
    }
