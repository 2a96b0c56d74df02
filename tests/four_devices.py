"""What rows over 1, 2 and 4 devices come to, as JSON: run by sharding_test.py in a process with 4 CPU devices."""

import dataclasses
import json
import re
from typing import Any

import jax
import numpy as np
import optax
from step_case import (
    LENGTHS,
    RECIPE,
    SHAPE,
    arguments,
    choice,
    laid_out,
    population,
    state,
)

from lm_mia import checkpoint, model, sharding, update
from lm_mia.optimizer import optimizer

# Of 6 numbers, none of its layernorms is divisible by 4; nor is the vocabulary.
ODD = dataclasses.replace(SHAPE, width=6, heads=1, vocab_size=66, length_tokens=32)
# one micro-batch for all; several, one device idle in some; scanned and computed again
CASES = {
    "even": (SHAPE, choice(micro_rows=4), (1, 2, 4)),
    "few rows": (SHAPE, choice(micro_rows=1), (1, 4)),
    "scanned": (SHAPE, choice(model.Way(scanned=True, remat="full")), (1, 2)),
    "odd": (ODD, choice(), (1, 4)),
}
COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "collective-permute", "all-to-all")


def numbers(tree: Any) -> list[Any]:
    return [np.asarray(leaf, np.float64).tolist() for leaf in jax.tree.leaves(tree)]


def collectives(text: str) -> list[dict[str, Any]]:
    """Every collective of a compiled program: its kind, how it groups devices, whether it lies inside a loop."""
    found, calls, loops, name = [], {}, set(), ""
    for line in text.splitlines():
        if opened := re.match(r"(?:ENTRY )?%([\w.-]+) \(.*\{$", line):
            name = opened[1]
            calls[name] = set()
        here = re.findall(r"(?:calls|to_apply|body|condition)=%([\w.-]+)", line)
        calls.setdefault(name, set()).update(here)
        if " while(" in line:
            loops |= set(here)
        if kind := re.search(rf"= .*?\b({'|'.join(COLLECTIVES)})(?:-start)?\(", line):
            groups = re.search(r"replica_groups=(\S+),", line)
            found.append({"kind": kind[1], "in": name, "groups": groups and groups[1]})
    while new := {c for n in loops for c in calls.get(n, ())} - loops:
        loops |= new
    assert loops, "the loop over micro-batches"
    return [c | {"looped": c["in"] in loops} for c in found]


def case(name: str, devices: int) -> dict[str, Any]:
    shape, chosen, _ = CASES[name]
    mesh = sharding.mesh(jax.devices()[:devices])
    samples = population()
    step = update.make_step(shape, RECIPE, chosen, mesh)
    now = state(mesh, shape=shape)
    at = [
        arguments(*laid_out(samples, ids_B, chosen, mesh, len(LENGTHS)), mesh)
        for ids_B in (np.arange(16), np.arange(1), np.arange(3, 14))
    ]
    compiled = step.lower(now, *at[0], np.float32(0.01)).compile()  # type: ignore[attr-defined]
    leaves = jax.tree.leaves(now)
    out: dict[str, Any] = {
        "collectives": collectives(compiled.as_text()),
        "parameters": len(jax.tree.leaves(now["params"])),
        "split": sum(
            sharding.AXIS in leaf.sharding.spec for leaf in jax.tree.leaves(now["params"])
        ),
        "share": [
            [shard.data.size for shard in leaf.addressable_shards] + [leaf.size] for leaf in leaves
        ],
    }
    if name == "odd":
        mean = update.make_loss(shape, chosen, mesh)
        out["loss"] = [float(mean(now["params"], *args)) for args in at]
    metrics = []
    for args in at:  # one executable for all of them
        now, of_step = compiled(now, *args, np.float32(0.01))
        metrics.append({key: float(value) for key, value in of_step.items()})
    out["same places"] = all(
        a.sharding == b
        for a, b in zip(jax.tree.leaves(now), (x.sharding for x in leaves), strict=True)
    )
    return out | {
        "metrics": metrics,
        "params": numbers(now["params"]),
        "moments": numbers(optax.tree.get(now["opt"], "nu")),
    }


def fresh(devices: int) -> list[Any]:
    mesh = sharding.mesh(jax.devices()[:devices])
    return numbers(checkpoint.fresh(5, SHAPE, optimizer(RECIPE), mesh))


def main() -> None:
    assert len(jax.devices()) == 4
    cases = {name: {n: case(name, n) for n in of[2]} for name, of in CASES.items()}
    print(json.dumps({"cases": cases, "fresh": [fresh(n) for n in (1, 2, 4)]}))


if __name__ == "__main__":
    main()
