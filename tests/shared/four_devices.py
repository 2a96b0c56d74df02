"""Prints the results of training on 1, 2 and 4 devices as JSON; sharding_test.py runs it with 4 CPU devices.

Its arguments are an empty folder, for states that are saved on some devices and restored on others, and the results to
print: names of CASES, "muon" and "checkpoints".
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import hlo
import jax
import numpy as np
import optax
from same_bits import same
from step_case import (
    LENGTHS,
    MODEL_CONFIG,
    OPTIMIZER,
    arguments,
    make_plan,
    pack,
    population,
    state,
)

from lm_mia.data import subsets
from lm_mia.model import kinds, transformer
from lm_mia.score.scorer import restore_params
from lm_mia.train import checkpoint, sharding
from lm_mia.train.optimizer import optimizer
from lm_mia.train.step import make_loss, make_step

EVEN = dataclasses.replace(MODEL_CONFIG, layers=1)
MODEL = transformer.TransformerLM(EVEN)
# Width 6 and the vocabulary are not divisible by 4.
ODD = dataclasses.replace(MODEL_CONFIG, width=6, heads=1, vocab_size=66, length_tokens=32)
LION, MUON = (dataclasses.replace(OPTIMIZER, name=name) for name in ("lion", "muon"))
GPT2 = dataclasses.replace(EVEN, kind="gpt2")
# Two heads of queries share those of keys and values, which 4 devices split by another axis.
LLAMA = dataclasses.replace(EVEN, kind="llama", heads=4, kv_heads=2, mlp_width=24, tied=False)
# Several micro-batches, in some of which devices are idle; scanned and rematerialized; one micro-batch for all.
CASES = {
    "even": (EVEN, make_plan(micro_batch_size=1), (1, 4), OPTIMIZER),
    "scanned": (MODEL_CONFIG, make_plan(scan_layers=True, remat="full"), (1, 2), OPTIMIZER),
    "odd": (ODD, make_plan(), (1, 4), OPTIMIZER),
    "gpt2": (GPT2, make_plan(micro_batch_size=1), (1, 4), OPTIMIZER),
    "llama": (LLAMA, make_plan(micro_batch_size=1), (1, 4), LION),
}


def numbers(tree: Any) -> list[Any]:
    """Returns all leaves but biases of keys, on which nothing depends: AdamW follows rounding errors there."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    kept = [leaf for path, leaf in leaves if "['key']['bias']" not in jax.tree_util.keystr(path)]
    return [np.asarray(leaf, np.float64).tolist() for leaf in kept]


def case(name: str, devices: int) -> dict[str, Any]:
    shape, plan, _, settings = CASES[name]
    mesh = sharding.make_mesh(jax.devices()[:devices])
    samples = population()
    model = kinds.build(
        dataclasses.replace(
            shape, scan_layers=plan.model_config.scan_layers, remat=plan.model_config.remat
        )
    )
    step = make_step(model, settings, plan.chunk_tokens, mesh)
    train_state = state(mesh, settings, shape)
    batches = [
        arguments(*pack(samples, ids_B, plan, mesh, len(LENGTHS)), mesh)
        for ids_B in (np.arange(16), np.arange(1), np.arange(3, 14))
    ]
    compiled = step.lower(train_state, *batches[0], np.float32(0.01)).compile()  # type: ignore[attr-defined]
    leaves = jax.tree.leaves(train_state)
    out: dict[str, Any] = {
        "collectives": [c._asdict() for c in hlo.collectives(compiled.as_text())],
        "parameters": len(jax.tree.leaves(train_state.params)),
        "split": sum(
            sharding.AXIS in leaf.sharding.spec for leaf in jax.tree.leaves(train_state.params)
        ),
        "share": [
            [shard.data.size for shard in leaf.addressable_shards] + [leaf.size] for leaf in leaves
        ],
    }
    if name == "odd":
        mean = make_loss(model, plan.chunk_tokens, mesh)
        out["loss"] = [float(mean(train_state.params, *args)) for args in batches]
    metrics = []
    for args in batches:  # one executable for all of them
        train_state, step_metrics = compiled(train_state, *args, np.float32(0.01))
        metrics.append({key: float(value) for key, value in step_metrics.items()})
    out["same places"] = all(
        a.sharding == b
        for a, b in zip(jax.tree.leaves(train_state), (x.sharding for x in leaves), strict=True)
    )
    return out | {
        "metrics": metrics,
        "params": numbers(train_state.params),
        "moments": numbers(
            optax.tree.get(train_state.opt_state, "mu" if settings is LION else "nu")
        ),
    }


def muon(devices: int) -> dict[str, Any]:
    """Returns metrics and moments of three steps."""
    mesh, plan = sharding.make_mesh(jax.devices()[:devices]), make_plan(micro_batch_size=1)
    step = make_step(transformer.TransformerLM(MODEL_CONFIG), MUON, plan.chunk_tokens, mesh)
    train_state, metrics = state(mesh, MUON), []
    shardings = jax.tree.map(lambda leaf: leaf.sharding, train_state)
    for ids_B in (np.arange(16), np.arange(1), np.arange(3, 14)):
        args = arguments(*pack(population(), ids_B, plan, mesh, len(LENGTHS)), mesh)
        train_state, step_metrics = step(train_state, *args, np.float32(1e-3))
        metrics.append({key: float(value) for key, value in step_metrics.items()})
    return {
        "metrics": metrics,
        "moments": numbers(train_state.opt_state),
        "same places": shardings == jax.tree.map(lambda leaf: leaf.sharding, train_state),
    }


def checkpoints(folder: Path) -> dict[str, Any]:
    """Compares initial states on different devices, and states saved on some devices and restored on others."""
    tx = optimizer(OPTIMIZER)
    meshes = {n: sharding.make_mesh(jax.devices()[:n]) for n in (1, 2, 4)}
    states = {n: checkpoint.init_state(5, MODEL, tx, mesh) for n, mesh in meshes.items()}
    results: dict[str, Any] = {"leaves": len(jax.tree.leaves(states[1]))}
    results["fresh"] = [same(states[1], states[n]) for n in (2, 4)]
    fingerprints = {int(checkpoint.fingerprint(state.params)) for state in states.values()}
    results["fingerprints"] = len(fingerprints)
    results["restored"] = {}
    for saved in (4, 1):
        checkpoint_dir = folder / str(saved)
        leaves = jax.tree.leaves(states[saved])
        parts = [leaf.addressable_shards[0].data.size / leaf.size for leaf in leaves]
        results[f"smallest part of {saved}"] = min(parts)
        with checkpoint.manager(checkpoint_dir) as manager:
            checkpoint.save(manager, states[saved])
        with checkpoint.manager(checkpoint_dir) as manager:
            for n, mesh in meshes.items():
                restored = checkpoint.restore(
                    manager, 0, checkpoint.abstract_state(MODEL, tx, mesh)
                )
                pairs = zip(*map(jax.tree.leaves, (restored, states[n])), strict=True)
                has_same_shardings = all(a.sharding == b.sharding for a, b in pairs)
                results["restored"][f"{saved} on {n}"] = [
                    same(restored, states[1]),
                    has_same_shardings,
                ]
                seeds = subsets.ModelSeeds("reference", 1, 2, 3)
                params = restore_params(seeds, 0, MODEL, checkpoint_dir, mesh, mesh)
                device_ids = {d.id for leaf in jax.tree.leaves(params) for d in leaf.devices()}
                is_equal = [same(params, states[1].params), device_ids == {*range(n)}]
                results["restored"][f"{saved} scored on {n}"] = is_equal
    return results


def main() -> None:
    assert len(jax.devices()) == 4
    folder, *names = sys.argv[1:]
    results: dict[str, Any] = {
        name: {n: case(name, n) for n in CASES[name][2]} for name in names if name in CASES
    }
    if "muon" in names:
        results["muon"] = {n: muon(n) for n in (1, 4)}
    if "checkpoints" in names:
        results["checkpoints"] = checkpoints(Path(folder))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
