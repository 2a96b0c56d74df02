"""Which models of a recipe are present, and the tables of their losses on single samples.

M: models, S: samples whose losses are listed, N2: samples of the population (2N).
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lm_mia.atomic import write_csv
from lm_mia.config.needs import PresentModels
from lm_mia.data.subsets import ModelSeeds
from lm_mia.store.store import Store

MODELS, SAMPLE_LOSSES = "models.csv", "sample_losses.csv"


def present_models(store: Store) -> list[ModelSeeds]:
    """Returns the models that were scored at the end of their training, references by number, then replicas."""
    plain = dataclasses.replace(store, statistics=(), token_samples=(), step=0)
    rows = plain.models()
    missing = set(plain.missing_models(rows, 0))
    there = [row for row in rows if row not in missing]
    return sorted(there, key=lambda row: (row.role, row.subset_seed, row.order_seed))


def model_numbers(models: Sequence[ModelSeeds]) -> PresentModels:
    """Returns the numbers of the models: subset seeds of references, order seeds of replicas."""
    return PresentModels(
        references=tuple(row.subset_seed for row in models if row.role == "reference"),
        replicas=tuple(row.order_seed for row in models if row.role == "replica"),
    )


def write_models(path: Path, models: Sequence[ModelSeeds]) -> None:
    """Writes a line per model: its name, role and seeds."""
    columns = [field.name for field in dataclasses.fields(ModelSeeds)]
    lines = [{"model": str(row), **dataclasses.asdict(row)} for row in models]
    write_csv(path, pd.DataFrame(lines, columns=["model", *columns]))


def write_sample_losses(
    store: Store, models: Sequence[ModelSeeds], ids_S: Sequence[int], path: Path
) -> bool:
    """Writes the loss of some samples under every model, with the mean loss of all samples under that model.

    Columns: sample, model, role, member, loss_nats, mean_loss_nats; losses in nats per token, at the end of training.
    Samples that the table listed before stay in it.

    Returns:
      Whether anything was computed: the table stays as it is if it lists these models and samples.
    """
    names = [str(row) for row in models]
    models_of = _models_of_samples(path)
    if all(models_of.get(sample) == names for sample in ids_S):
        return False
    ids_S = sorted({*models_of, *ids_S})
    plain = dataclasses.replace(store, statistics=(), token_samples=(), step=0)
    sum_M, samples = np.zeros(len(models)), 0
    loss_MxS, member_MxS = (
        np.zeros((len(models), len(ids_S))),
        np.zeros((len(models), len(ids_S)), bool),
    )
    wanted_S = np.array(ids_S)
    for at, value in plain.blocks({name: (name, models) for name in ("loss", "member")}):
        sum_M += value["loss"].sum(axis=1, dtype=float)
        samples += at.stop - at.start
        here_S = (at.start <= wanted_S) & (wanted_S < at.stop)
        loss_MxS[:, here_S] = value["loss"][:, wanted_S[here_S] - at.start]
        member_MxS[:, here_S] = value["member"][:, wanted_S[here_S] - at.start]
    parts = [
        pd.DataFrame(
            {"sample": sample, "model": names, "role": [row.role for row in models]}
            | {"member": member_MxS[:, s], "loss_nats": loss_MxS[:, s]}
            | {"mean_loss_nats": sum_M / samples}
        )
        for s, sample in enumerate(ids_S)
    ]
    write_csv(path, pd.concat(parts))
    return True


def _models_of_samples(path: Path) -> dict[int, list[str]]:
    """Returns the models under which a table lists each sample; empty if it is missing or damaged."""
    try:
        types = {"sample": "int64", "model": str, "mean_loss_nats": float}
        table = pd.read_csv(path, usecols=list(types), dtype=types)  # pyright: ignore
    except (OSError, ValueError):
        return {}
    if table.isna().any(axis=None):
        return {}
    return {int(s): list(models) for s, models in table.groupby("sample")["model"]}  # pyright: ignore


def archetype_losses(
    store: Store,
    references: Sequence[ModelSeeds],
    replicas: Sequence[ModelSeeds],
    samples: pd.DataFrame,
) -> pd.DataFrame:
    """Returns the losses of the samples of archetypes.csv under the references and replicas of the attack.

    Args:
      store: at the step that is attacked.
      references, replicas: the models of the attack.
      samples: has columns kind and id; kinds without a sample have no id.

    Returns:
      A table with columns kind, sample, model, role, member and loss_nats, in nats per token.
    """
    known = samples[samples["id"].notna()]
    rows = [*references, *replicas]
    ids_S = known["id"].astype(int).tolist()
    value = store.samples({name: (name, rows) for name in ("loss", "member")}, ids_S)
    parts = [
        pd.DataFrame({"kind": kind, "sample": sample, "model": list(map(str, rows))})
        .assign(role=[row.role for row in rows], member=value["member"][:, s])
        .assign(loss_nats=value["loss"][:, s].astype(float))
        for s, (kind, sample) in enumerate(zip(known["kind"], ids_S, strict=True))
    ]
    columns = ["kind", "sample", "model", "role", "member", "loss_nats"]
    return pd.concat(parts) if parts else pd.DataFrame(columns=columns)
