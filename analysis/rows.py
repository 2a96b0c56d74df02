"""The rows that the tables of a workdir are about: their names, and their losses in the score store."""

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import workdir
import xarray as xr
from workdir import WorkdirError

from lm_mia.config import NEEDED

_SEEDS = ("subset_seed", "init_seed", "order_seed")


@dataclasses.dataclass(frozen=True)
class Rows:
    """References and replicas of one recipe, among the rows of its store."""

    path: Path
    """Of the store."""
    store: xr.Dataset
    """At the score point of the tables."""
    reference_rows: np.ndarray
    """Places in the store; a store may hold more rows than the tables were made of."""
    replica_rows: np.ndarray
    names: list[str]
    """What the log calls the references and then the replicas."""

    def losses(self, sample: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Losses of one sample, nats a token: (IN references, OUT references, replicas)."""
        with _readable(self.path):
            loss_R, member_R, loss_B = (
                self.store[name].isel(row=rows, sample=sample).to_numpy()
                for name, rows in (
                    ("loss", self.reference_rows),
                    ("member", self.reference_rows),
                    ("loss", self.replica_rows),
                )
            )
            if np.isnan(loss_R).any() or np.isnan(loss_B).any():
                raise ValueError("a stored loss is never NaN")
        parts = (loss_R[member_R], loss_R[~member_R], loss_B)
        loss_in, loss_out, loss_replicas = (part.astype(float) for part in parts)
        return loss_in, loss_out, loss_replicas


def read(folder: Path) -> Rows:
    """The rows of the tables.

    Raises:
      WorkdirError: the store is missing or damaged, lacks one of these rows, or has got more of them since.
    """
    facts = workdir.flip_facts(folder)
    config, path = facts["config"], folder / facts["recipe"] / "scores.zarr"
    if not path.is_dir():
        raise WorkdirError(f"{folder}: no {facts['recipe']}/scores.zarr; run lm-mia score first")
    with _readable(path):
        store = xr.open_zarr(path, chunks=None, consolidated=True)
        role_M = np.array([str(role) for role in store["role"].to_numpy()])
        seeds_Mx3 = np.stack([store[name].to_numpy() for name in _SEEDS], axis=1)
        extra = {NEEDED[a] for a in config["attacks"] if a in NEEDED}
        variables = {n: store[n] for n in ("loss", "member", *sorted(extra))}
        sizes = {n: _shard_samples(variable) for n, variable in variables.items()}
        points = store["step"].to_numpy().tolist() if "step" in store.coords else []
        samples = store.sizes["sample"]
    step = config["step"]
    if step and step not in points:
        raise WorkdirError(
            f"{path}: not scored at step {step}, which the tables are about; run lm-mia attack again"
        )
    at = points.index(step) if step else len(points) - 1
    keys = {n: (at,) * ("checkpoint" in variable.dims) for n, variable in variables.items()}
    if points:
        store = store.isel(checkpoint=at)

    def there(m: int) -> bool:  # what lacks a file would be read as NaN or False
        paths = (
            path.joinpath(n, "c", *map(str, (m, *keys[n], s)))
            for n, size in sizes.items()
            for s in range(-(-samples // size))
        )
        return all(shard.is_file() and shard.stat().st_size for shard in paths)

    names = ["_".join(map(str, row)) for row in zip(role_M, *seeds_Mx3.T, strict=True)]
    found = {}
    for role in ("reference", "replica"):
        count = facts[f"{role}s"]
        wanted = np.flatnonzero(role_M == role)[: config[f"{role}s"]]
        found[role] = np.array([m for m in wanted if there(m)], int)
        if len(found[role]) < count:
            absent = ", ".join(names[m] for m in wanted if m not in found[role]) or "the others"
            raise WorkdirError(
                f"{path}: {len(found[role])} of the {count} {role} rows of the tables; absent: {absent}; "
                "run lm-mia score first"
            )
        if len(found[role]) > count:
            raise WorkdirError(
                f"{path}: {len(found[role])} {role} rows, of which the tables know {count}; "
                "run lm-mia score, then attack again"
            )
    of_tables = [names[m] for role in found for m in found[role]]
    return Rows(path, store, found["reference"], found["replica"], of_tables)


def _shard_samples(variable: xr.DataArray) -> int:
    """How many samples of a row one file holds; they are the last dimension."""
    return (variable.encoding.get("shards") or variable.encoding["chunks"])[-1]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Whatever goes wrong with the files of a store is said in one line."""
    try:
        yield
    except Exception as error:  # damaged files make zarr and its codecs raise nearly anything
        # zarr leaves its other reads pending, of which asyncio would complain at exit
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        raise WorkdirError(
            f"{path}: damaged ({type(error).__name__}); delete it, then run lm-mia score and attack"
        ) from error
