"""The models of a recipe that are present, and the tables of their losses on single samples.

M: models, S: samples whose losses are listed, N2: samples of the population (2N).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from lm_mia import stats
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.spec import PresentModels
from lm_mia.attacks.table_sets import Facts, TableSet, Write
from lm_mia.data.subsets import ModelSeeds
from lm_mia.store.store import MEAN_LOSSES, Store

MODELS, SAMPLE_LOSSES = "models.csv", "sample_losses.csv"


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


MODELS_TABLE = Table(
    "models.csv",
    "Each row is a model that was scored at the end of training, attacked or not.",
    {
        "model": Column(
            "none",
            (
                "name, with the subset seed of a reference, the order seed of a replica, and the initialization and "
                "the order seed of a crossed model (`attack.replica_inits`)"
            ),
        ),
        "role": Column("none", "`reference`, `replica` or `crossed`"),
        "subset_seed": Column("none", "seed of the training subset"),
        "init_seed": Column("none", "seed of the initial parameters"),
        "order_seed": Column("none", "seed of the batch order"),
        "member_loss_nats": Column(
            "nats per token",
            "mean loss at the end of training on members; with canaries, on the canaries among them",
        ),
        "nonmember_loss_nats": Column("nats per token", "the same on non-members"),
    },
    key=("model",),
)


def models_set(store: Store, models: Sequence[ModelSeeds]) -> TableSet:
    """Returns models.csv, with the name, role, seeds and mean losses at the end of training of models.

    Args:
      store: the score store.
      models: models that are present.
    """
    names = [*map(str, models)]

    def compute(write: Write) -> Facts:
        seeds = [field.name for field in dataclasses.fields(ModelSeeds)]
        lines = [{"model": str(model), **dataclasses.asdict(model)} for model in models]
        table = pd.DataFrame(lines, columns=["model", *seeds])
        at_end = dataclasses.replace(store, statistics=(), token_samples=(), step=0)
        losses = dict(zip(MEAN_LOSSES, at_end.mean_losses(models).T, strict=True))
        write(MODELS, table.assign(**losses))
        return {}

    return TableSet("models", models, {"models": names}, compute)


SAMPLE_LOSSES_TABLE = Table(
    "sample_losses.csv",
    (
        "Written if a figure needs losses of single samples (Figure 32). Each row is such a sample under a present "
        "reference; targets are included."
    ),
    {
        **common("sample", "model"),
        "role": Column("none", "always `reference`"),
        **common("member"),
        "loss_nats": Column("nats per token", "loss at the end of training"),
        "mean_loss_nats": Column(
            "nats per token",
            "mean loss of the model over all samples of the population, with equal weight",
        ),
        "mean_loss_nats_half_HALF": Column(
            "nats per token", "the same over a `half` of the samples"
        ),
    },
    key=("sample", "model"),
)


def sample_losses_set(
    store: Store, models: Sequence[ModelSeeds], ids_S: Sequence[int], document_N2: np.ndarray
) -> TableSet:
    """Returns sample_losses.csv, the losses of some samples and the mean loss under every model.

    The columns are sample, model, role, member, loss_nats, mean_loss_nats and, on each half of the samples,
    mean_loss_nats_half_0 and so on; losses are in nats per token, at the end of training.

    Args:
      store: the score store.
      models: models that are present.
      ids_S: ids of the samples.
      document_N2: the document of each sample; samples of one document are in the same half.
    """
    names, ids_S = [*map(str, models)], sorted(ids_S)

    def compute(write: Write) -> Facts:
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
        write(SAMPLE_LOSSES, pd.concat(parts))
        return {}

    return TableSet("sample_losses", models, {"models": names, "samples": ids_S}, compute)


ARCHETYPE_LOSSES_TABLE = Table(
    "archetype_losses.csv",
    (
        "Each row is a sample of `archetypes.csv` under a reference or replica of the attack; there are no rows for "
        "kinds without a sample. StrongMIA Figure 22."
    ),
    {
        "kind": Column("none", "kind of the sample"),
        **common("sample", "model"),
        "role": Column("none", "`reference` or `replica`"),
        **common("member"),
        "loss_nats": Column("nats per token", "loss, at `attack.step`"),
    },
    key=("kind", "model"),
)


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


def check_scores(store: Store) -> None:
    """Raises UserError if the scores of models are not those that were written, which their digests show.

    Models with missing shards are left out, since they are reported as missing where they are needed.
    """
    stored = zip(store.models(), store.is_present(store.step), strict=True)
    store.check_digests([model for model, is_present in stored if is_present])
