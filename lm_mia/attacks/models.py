"""The models of a recipe that are present, and the tables of their losses on single samples.

M: models, S: samples whose losses are listed, N2: samples of the population (2N).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from lm_mia import stats
from lm_mia.atomic import MODELS_JSON, is_current, replacing, write_completion_marker
from lm_mia.attacks.spec import PresentModels
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import raise_failed_read
from lm_mia.store.store import MEAN_LOSSES, Store

MODELS, SAMPLE_LOSSES = "models.csv", "sample_losses.csv"
_LAST_COLUMN = f"mean_loss_nats_half_{len(stats.HALVES_HxG) - 1}"


def present_models(store: Store, step: int = 0) -> list[ModelSeeds]:
    """Returns the models that were scored at a step: crossed models, references and replicas, each by number.

    The base, which is neither attacked nor a reference, is not among them.

    Args:
      store: the score store.
      step: a training step; 0: the end of training.
    """
    at_step = dataclasses.replace(store, statistics=(), token_samples=(), step=step)
    models = [model for model in at_step.models() if model.role != "base"]
    missing = set(at_step.missing_models(models, step))
    present = [model for model in models if model not in missing]
    return sorted(present, key=lambda model: dataclasses.astuple(model))


def model_numbers(models: Sequence[ModelSeeds]) -> PresentModels:
    """Returns the numbers of the models: subset seeds of references, order seeds of replicas."""
    return PresentModels(
        references=tuple(model.subset_seed for model in models if model.role == "reference"),
        replicas=tuple(model.order_seed for model in models if model.role == "replica"),
    )


def write_models(store: Store, models: Sequence[ModelSeeds], path: Path) -> None:
    """Writes models.csv, with the name, role, seeds and mean losses of each model, and models.json.

    The losses are those of `Store.mean_losses` at the end of training. A table that lists these models is not changed,
    since reading all losses takes time.

    Args:
      store: the score store.
      models: models that are present.
      path: path of the table.

    Raises:
      UserError: if scores are corrupt.
    """
    if _is_complete(path, [str(model) for model in models]):
        return
    seeds = [field.name for field in dataclasses.fields(ModelSeeds)]
    lines = [{"model": str(model), **dataclasses.asdict(model)} for model in models]
    table = pd.DataFrame(lines, columns=["model", *seeds])
    at_end = dataclasses.replace(store, statistics=(), token_samples=(), step=0)
    losses = dict(zip(MEAN_LOSSES, at_end.mean_losses(models).T, strict=True))
    _replace(path, table.assign(**losses))


def _is_complete(path: Path, names: list[str]) -> bool:
    """Returns whether models.csv lists these models and their losses, and models.json describes it."""
    try:
        table = pd.read_csv(path, usecols=["model", *MEAN_LOSSES], dtype={"model": str})
    except (OSError, ValueError) as error:
        raise_failed_read(error, path)
        return False
    return [*table["model"]] == names and is_current(path.parent / MODELS_JSON.name, {})


def _replace(path: Path, table: pd.DataFrame) -> None:
    """Writes a table and models.json, which describes the old and the new table while it is replaced."""
    folder = path.parent
    with replacing(path) as new_file:
        table.to_csv(new_file, index=False)
        if path.is_file():
            _write_marker(folder, {path.name: new_file})
    _write_marker(folder)


def _write_marker(folder: Path, replaced: Mapping[str, Path] = MappingProxyType({})) -> None:
    tables = [name for name in (MODELS, SAMPLE_LOSSES) if (folder / name).is_file()]
    write_completion_marker(folder / MODELS_JSON.name, {}, tables, replaced)


def write_sample_losses(
    store: Store,
    models: Sequence[ModelSeeds],
    ids_S: Sequence[int],
    document_N2: np.ndarray,
    path: Path,
) -> bool:
    """Writes sample_losses.csv, the losses of some samples and the mean loss under every model, and models.json.

    The columns are sample, model, role, member, loss_nats, mean_loss_nats and, on each half of the samples,
    mean_loss_nats_half_0 and so on; losses are in nats per token, at the end of training. Samples that are already
    listed stay in the table.

    Args:
      store: the score store.
      models: models that are present.
      ids_S: ids of the samples.
      document_N2: the document of each sample; samples of one document are in the same half.
      path: path of the table.

    Returns:
      False if the table lists these models and samples already and was not changed.
    """
    names = [str(model) for model in models]
    models_of = _models_of_samples(path)
    if all(models_of.get(sample) == names for sample in ids_S):
        return False
    ids_S = sorted({*models_of, *ids_S})
    at_end = dataclasses.replace(store, statistics=(), token_samples=(), step=0)
    # Sums over all samples and over each half, and the numbers of these samples.
    sum_MxH1 = np.zeros((len(models), 1 + len(stats.HALVES_HxG)))
    count_H1 = np.zeros(1 + len(stats.HALVES_HxG))
    loss_MxS, member_MxS = (
        np.zeros((len(models), len(ids_S))),
        np.zeros((len(models), len(ids_S)), bool),
    )
    id_S = np.array(ids_S)
    for at, value in at_end.blocks({name: (name, models) for name in ("loss", "member")}):
        half_HxC = stats.HALVES_HxG[:, stats.sample_groups(document_N2[at])]
        used_H1xC = np.concatenate([np.ones((1, half_HxC.shape[1])), half_HxC])
        sum_MxH1 += value["loss"].astype(float) @ used_H1xC.T
        count_H1 += used_H1xC.sum(axis=1)
        is_in_block_S = (at.start <= id_S) & (id_S < at.stop)
        loss_MxS[:, is_in_block_S] = value["loss"][:, id_S[is_in_block_S] - at.start]
        member_MxS[:, is_in_block_S] = value["member"][:, id_S[is_in_block_S] - at.start]
    mean_H1xM = (sum_MxH1 / np.where(count_H1 > 0, count_H1, np.nan)).T
    means = {"mean_loss_nats": mean_H1xM[0]}
    means |= {f"mean_loss_nats_half_{h}": mean_M for h, mean_M in enumerate(mean_H1xM[1:])}
    parts = [
        pd.DataFrame(
            {"sample": sample, "model": names, "role": [model.role for model in models]}
            | {"member": member_MxS[:, s], "loss_nats": loss_MxS[:, s]}
            | means
        )
        for s, sample in enumerate(ids_S)
    ]
    _replace(path, pd.concat(parts))
    return True


def _models_of_samples(path: Path) -> dict[int, list[str]]:
    """Returns sample id -> names of the models in the table; empty if the table is missing or damaged."""
    try:
        types = {"sample": "int64", "model": str, _LAST_COLUMN: float}
        table = pd.read_csv(path, usecols=list(types), dtype=types)  # pyright: ignore
    except (OSError, ValueError) as error:
        raise_failed_read(error, path)
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
    """Returns archetype_losses.csv: the losses of the archetypes under the references and replicas of the attack.

    Args:
      store: the score store, with `step` set to the attacked step.
      references, replicas: the models of the attack.
      samples: table with columns kind and id; kinds without a sample have no id.

    Returns:
      A table with columns kind, sample, model, role, member and loss_nats, in nats per token.
    """
    chosen = samples[samples["id"].notna()]
    models = [*references, *replicas]
    ids_S = chosen["id"].astype(int).tolist()
    value = store.samples({name: (name, models) for name in ("loss", "member")}, ids_S)
    parts = [
        pd.DataFrame({"kind": kind, "sample": sample, "model": list(map(str, models))})
        .assign(role=[model.role for model in models], member=value["member"][:, s])
        .assign(loss_nats=value["loss"][:, s].astype(float))
        for s, (kind, sample) in enumerate(zip(chosen["kind"], ids_S, strict=True))
    ]
    columns = ["kind", "sample", "model", "role", "member", "loss_nats"]
    return pd.concat(parts) if parts else pd.DataFrame(columns=columns)
