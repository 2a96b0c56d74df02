"""Evaluation on members and non-members from different sources, with known truth (CausalMIA, Sections 5 and 6).

Each reference in turn is the model under evaluation, "the run". An evaluator has some of its members, and non-members
that differ from them in more than membership (`lm_mia.attacks.shift`). The estimates are compared with the truth: the
effect of training on these very members, under all other models, some of which were trained on a sample and some of
which were not.

    zero_run.csv              AUC, TPRs and mean effect: the truth and every estimator, for each run, shift and attack
    zero_run_curves.csv       ROC curves of the first run
    zero_run_samples.parquet  scores and log odds of the selected samples of the first run
    interference.csv          one-run estimates of each model, compared with all models together
    effects.parquet           the effect of training on each sample

Attacks are those that need no fitted model, `ATTACKS`. For the calibrated loss, the models are divided into two halves,
and the references of a model are those of the other half. Thus the same references are used for the run and for the
truth, and the memberships of the references are independent of those of all models that are evaluated. If the
references of each model were all the others, those of the models trained on a sample would include one model fewer that
was trained on it than those of the other models, and the difference in means would be too large by M / (M - 1).

In the design "exact", exactly half of the samples are members, so the membership of one sample depends on that of the
others, by 1 / (2N - 1). The selected members and non-members are nevertheless exchangeable given their texts, which is
all that the estimators need. The effect of training on a sample is then the effect of replacing a random other
sample by it, since all training subsets are equally large.

M: models, R: models other than the run, N: samples, S: selected samples, C: samples of a block, F: false positive
rates, K: covariates of a sample.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy  # its parts are loaded when they are first used

from analysis import io, plotting
from analysis.claims.compare import (
    Claim,
    Estimate,
    VarianceTerm,
    claim_all,
    claim_equivalent,
    claim_greater,
    claim_untested,
)
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.formatting import percent
from analysis.io import RecipeResults, Record, SweepResults
from lm_mia import config, stats
from lm_mia.attacks import propensity, text_features
from lm_mia.attacks import shift as shifts
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.inputs import AttackInputs, Block, open_inputs, sample_slices
from lm_mia.attacks.registry import attack_name
from lm_mia.attacks.resampling import reference_units
from lm_mia.attacks.score_matrix import MembershipScoreFile, map_in_order
from lm_mia.attacks.shift import Shift, ShiftError
from lm_mia.attacks.spec import Study
from lm_mia.attacks.studies import StudyView
from lm_mia.attacks.table_sets import Facts, Work, Write
from lm_mia.data.imported import TEXT
from lm_mia.data.population import Population
from lm_mia.errors import Unavailable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TABLE, CURVES, SAMPLES = "zero_run.csv", "zero_run_curves.csv", "zero_run_samples.parquet"
INTERFERENCE, EFFECTS = "interference.csv", "effects.parquet"
ATTACKS = ("loss", "reference_calibrated")
LEARNED = ("ipw", "g_formula", "aipw")
"""Estimators that learn the difference between members and non-members from covariates."""
ESTIMATORS = ("truth", "iid", "naive", "oracle", *LEARNED)
"""docs/tables.md defines them."""
FPRS = (0.05, 0.2)
MAX_SAMPLES = 2**15
"""Zero-run evaluation uses at most this many samples, the first ones, whose order is random. This limits its time and
memory. The tables of interference and effects use all samples."""
_CURVE_POINTS = 200
_COLUMNS = (
    "shift",
    "strength",
    "attack",
    "model",
    "estimator",
    "members",
    "nonmembers",
    "left_out",
    "ate",
    "ate_se",
    "auc",
    "auc_se",
    "youden",
    *(f"tpr_{fpr:g}" for fpr in FPRS),
    "effective_nonmembers",
    "largest_weight_share",
    "top_tenth_share",
    "has_overlap",
)


def not_requested(*, zero_run: tuple[str, ...]) -> str:
    """Returns why the settings do not ask for the study; empty if they do."""
    return "" if zero_run else "attack.zero_run must be set; run lm-mia attack with it"


def compute(
    view: StudyView,
    write: Write,
    *,
    zero_run: tuple[str, ...],
    zero_run_strengths: tuple[float, ...],
) -> Facts:
    """Computes the tables; the user is told which shifts are not possible."""
    store, references, work = view.store, view.references, view.work
    facts: dict[str, Any] = {"shift_reasons": {}, "covariates": 0, "samples": 0}
    inputs, pairs = None, False
    if references and store.design != "given":
        inputs = open_inputs(store, view.attacked, references[:1], references, ())
        if pairs := store.design == "balanced":
            inputs = inputs.with_references(np.ravel(reference_units(references)))
    facts |= {"models": len(inputs.references) if inputs else 0, "pairs": pairs}
    if store.design == "given":
        facts["reason"] = (
            "it is not known how the members of the models were drawn, so the true effect is unknown; if they were "
            "drawn at random, import the losses with --subset=exact, bernoulli or balanced"
        )
    elif inputs is None or len(inputs.references) < config.FEWEST_FOR_LEAVE_ONE_OUT:
        facts["reason"] = (
            f"there are {facts['models']} references, and at least {config.FEWEST_FOR_LEAVE_ONE_OUT} "
            "are needed"
        )
    if "reason" in facts:
        work.say(f"attack.zero_run={','.join(zero_run)}: {facts['reason']}")
        return facts
    assert inputs is not None
    experiment = _open_experiment(inputs, view.attacked, pairs)
    settings, facts["shift_reasons"] = _possible_settings(experiment, zero_run, zero_run_strengths)
    facts["covariates"] = experiment.feature_NxK.shape[1]
    facts["samples"] = experiment.loss_MxN.shape[1]
    for name, reason in facts["shift_reasons"].items():
        work.say(f"attack.zero_run={name}: this shift is not possible: {reason}")
    if not facts["covariates"]:
        work.say(
            "attack.zero_run: the samples have neither tokens, texts nor other properties that differ, so estimators "
            f"that learn from them are left out ({', '.join(LEARNED)})"
        )
    tasks = [(setting, r) for setting in settings for r in range(len(inputs.references))]
    steps = len(tasks) + len(ATTACKS) * len(inputs.references)

    def show(done: int) -> None:
        work.progress("zero-run", done, steps)

    show(0)
    results = []
    for result in map_in_order(work.pool, lambda task: _evaluate(experiment, *task), tasks):
        results.append(result)
        show(len(results))
    rows = [row for result in results for row in result.rows]
    write(TABLE, pd.DataFrame(rows, columns=[*_COLUMNS]))
    empty = pd.DataFrame(columns=["shift", "strength", "attack", "estimator", "fpr", "tpr"])
    write(CURVES, pd.concat([empty, *(t for r in results for t in r.curves)]))
    if samples := [result.samples for result in results if result.samples is not None]:
        write(SAMPLES, pd.concat(samples, ignore_index=True))
    _write_interference(inputs, pairs, write, work, lambda done: show(len(tasks) + done))
    return facts


@dataclasses.dataclass(frozen=True)
class _Experiment:
    """The losses of all models on the first samples, and what is known about these samples."""

    names: Sequence[str]
    seeds: Sequence[int]
    """The subset seed of each model."""
    loss_MxN: np.ndarray
    """Nats per token, float64."""
    member_MxN: np.ndarray
    pairs: bool
    """Whether models 2i and 2i + 1 are complements."""
    feature_NxK: np.ndarray
    """Covariates; no columns if nothing is known about the texts."""
    duplicate_N: np.ndarray
    """Samples with the same number are pieces of a document or start with the same tokens."""
    tfidf_N: np.ndarray
    source_N: np.ndarray | None
    """Number of the package or folder of each sample; None if there are fewer than two."""
    source_reason: str
    """Why source_N is None."""
    first_id: int

    def others(self, r: int) -> np.ndarray:
        """Returns index_R: the models except a run and its complement."""
        return np.setdiff1d(np.arange(len(self.loss_MxN)), [r, r ^ 1] if self.pairs else [r])

    def evaluated(self, attack: str, r: int) -> np.ndarray:
        """Returns index_R: the models that show the truth about an attack on a run."""
        others_R = self.others(r)
        if attack == "loss":
            return others_R
        return others_R[_is_in_first_half(others_R, len(self.loss_MxN)) == self.is_in_first_half(r)]

    def is_in_first_half(self, r: int) -> bool:
        """Returns whether a model is calibrated by the models of the second half."""
        return bool(_is_in_first_half(np.array(r), len(self.loss_MxN)))

    def scores(self, attack: str, r: int, index_R: np.ndarray) -> np.ndarray:
        """Returns score_RxN of an attack on models, which must be in the half of the run for the calibrated loss."""
        score_RxN = -self.loss_MxN[index_R]
        if attack == "reference_calibrated":
            all_M = np.arange(len(self.loss_MxN))
            in_half_M = _is_in_first_half(all_M, len(all_M)) == self.is_in_first_half(r)
            score_RxN += self.loss_MxN[~in_half_M].mean(axis=0)
        return score_RxN

    def out_loss(self, r: int) -> np.ndarray:
        """Returns the mean loss of each sample under the models that are used with a run and were not trained on it."""
        out_RxN = ~self.member_MxN[self.others(r)]
        count_N = out_RxN.sum(axis=0)
        sum_N = np.where(out_RxN, self.loss_MxN[self.others(r)], 0).sum(axis=0)
        return np.divide(sum_N, count_N, out=np.full(len(sum_N), np.nan), where=count_N > 0)


def _is_in_first_half(index: np.ndarray, models: int) -> np.ndarray:
    """Returns whether models are in the first half of all models; complements, 2i and 2i + 1, are in the same half."""
    return index < models // 4 * 2


def _open_experiment(inputs: AttackInputs, population: Population, pairs: bool) -> _Experiment:
    """Reads the losses of the first samples and computes their covariates."""
    block = next(inputs.blocks())
    used = slice(0, min(block.at.stop, MAX_SAMPLES))
    document_N = population.document_N if population.has_split_documents else None
    source_N, reason = None, "the files of the corpus hold documents in random order"
    if not population.is_shuffled:
        try:
            source_N = shifts.source_groups(population.column("source")[used])
        except ShiftError as error:
            reason = str(error)
    return _Experiment(
        [*map(str, inputs.references)],
        [model.subset_seed for model in inputs.references],
        block.reference_loss_RxC[:, used].astype(float),
        block.reference_member_RxC[:, used],
        pairs,
        _features(population, used),
        (population.column("prefix_group") if document_N is None else document_N)[used],
        population.column("tfidf")[used].astype(float),
        source_N,
        reason,
        population.first_id,
    )


def _features(population: Population, used: slice) -> np.ndarray:
    """Returns feature_NxK, the covariates of the used samples; imported losses have no tokens, but may have texts."""
    columns = {
        name: population.column(name)[used]
        for name in text_features.COLUMNS
        if name in population.column_names
    }
    if not population.is_imported:
        offsets_N1 = population.offsets_N1[: used.stop + 1]
        return text_features.token_features(
            population.tokens, offsets_N1, columns, population.vocab_size
        )
    feature_NxK = text_features.column_features(columns, used.stop)
    if TEXT in population.column_names:
        texts = population.column(TEXT)[used].tolist()
        feature_NxK = np.hstack([propensity.text_features(texts), feature_NxK])
    return feature_NxK


@dataclasses.dataclass(frozen=True)
class _Setting:
    """A shift with its strength."""

    name: str
    strength: float = 0.0

    def select(self, experiment: _Experiment, r: int) -> Shift:
        """Selects members and non-members of a run; raises ShiftError if this is not possible."""
        member_N, seed = experiment.member_MxN[r], experiment.seeds[r]
        if self.name == "graded":
            return shifts.graded(experiment.tfidf_N, member_N, self.strength, seed)
        if experiment.source_N is None:
            raise ShiftError(experiment.source_reason)
        is_in_a_N = shifts.lowest_loss_groups(experiment.source_N, experiment.out_loss(r))
        select = shifts.groups if self.name == "groups" else shifts.disjoint
        return select(is_in_a_N, member_N, seed)


def _possible_settings(
    experiment: _Experiment, shifts_of_runs: Sequence[str], strengths: Sequence[float]
) -> tuple[list[_Setting], dict[str, str]]:
    """Returns the settings in which all runs have enough members and non-members, and why others are not possible."""
    possible, reasons = [], {}
    for name in shifts_of_runs:
        for strength in strengths if name == "graded" else (0.0,):
            setting = _Setting(name, strength)
            try:
                for r in range(len(experiment.names)):
                    setting.select(experiment, r)
            except ShiftError as error:
                label = f"graded, strength {strength:g}" if name == "graded" else name
                reasons[label] = str(error)
            else:
                possible.append(setting)
    return possible, reasons


@dataclasses.dataclass(frozen=True)
class _Result:
    """The evaluation of one run in one setting."""

    rows: list[dict[str, Any]]
    curves: list[pd.DataFrame]
    """Only of the first run."""
    samples: pd.DataFrame | None
    """Only of the first run."""


def _evaluate(experiment: _Experiment, setting: _Setting, r: int) -> _Result:
    """Evaluates all attacks on a run with all estimators."""
    shift = setting.select(experiment, r)
    ids_S = np.concatenate([shift.member_ids, shift.nonmember_ids])
    member_S = np.arange(len(ids_S)) < len(shift.member_ids)
    iid_ids = np.concatenate([shift.member_ids, shift.iid_nonmember_ids])
    is_iid_member = np.arange(len(iid_ids)) < len(shift.member_ids)
    covariates = experiment.feature_NxK[ids_S], member_S, experiment.duplicate_N[ids_S]
    has_covariates = experiment.feature_NxK.shape[1] > 0
    learned_S = propensity.cross_fitted_log_odds(*covariates) if has_covariates else None
    index = {"shift": shift.name, "strength": shift.strength}
    rows, curves = [], []
    for attack in ATTACKS:
        [score_N] = experiment.scores(attack, r, np.array([r]))
        score_S, oracle_S = score_N[ids_S], shift.log_odds_N[ids_S]
        estimates = {
            "iid": stats.unadjusted_estimate(score_N[iid_ids], is_iid_member, FPRS),
            "naive": stats.unadjusted_estimate(score_S, member_S, FPRS),
        }
        if np.isfinite(oracle_S[~member_S]).any():
            estimates["oracle"] = stats.ipw_estimate(score_S, member_S, oracle_S, FPRS)
        if learned_S is not None:
            outcome = propensity.cross_fitted_outcome(
                covariates[0], score_S, member_S, covariates[2]
            )
            estimates["ipw"] = stats.ipw_estimate(score_S, member_S, learned_S, FPRS)
            estimates["g_formula"] = stats.g_formula_estimate(score_S, member_S, outcome, FPRS)
            estimates["aipw"] = stats.aipw_estimate(score_S, member_S, learned_S, outcome, FPRS)
        log_odds = {"oracle": oracle_S}
        if learned_S is not None:
            log_odds |= {"ipw": learned_S, "aipw": learned_S}
        truth = _truth(experiment, attack, r, shift.member_ids, FPRS)
        named = index | {"attack": attack, "model": experiment.names[r]}
        rows.append(named | _truth_row(truth, len(shift.member_ids)))
        for name in ESTIMATORS[1:]:
            if name in estimates:
                rows.append(named | {"estimator": name} | _row(estimates[name]))
                if name in log_odds:
                    rows[-1]["top_tenth_share"] = _top_tenth_share(log_odds[name][~member_S])
            elif name == "oracle":  # no non-member has a weight
                rows.append(
                    named
                    | {"estimator": name, "members": member_S.sum()}
                    | {"nonmembers": (~member_S).sum(), "left_out": 0}
                    | {"effective_nonmembers": 0.0, "has_overlap": False}
                )
        if r == 0:
            curves += _curves(index | {"attack": attack}, estimates)
            fpr_F = np.linspace(0, 1, _CURVE_POINTS)
            tpr_F = _truth(experiment, attack, r, shift.member_ids, fpr_F).tpr_F
            points = pd.DataFrame({"estimator": "truth", "fpr": fpr_F, "tpr": tpr_F})
            # The scores show no TPR at the lowest rates above 0.
            curves.append(points.dropna().assign(**index, attack=attack))
    samples = None
    if r == 0:
        samples = _samples(experiment, shift, learned_S).assign(**index)
        samples = samples[[*index, *(name for name in samples if name not in index)]]
    return _Result(rows, curves, samples)


def _truth(
    experiment: _Experiment,
    attack: str,
    r: int,
    ids_S: np.ndarray,
    fprs: Sequence[float] | np.ndarray,
) -> stats.PotentialOutcomes:
    """Returns the truth about an attack on some samples, from models other than the run and its complement."""
    index_R = experiment.evaluated(attack, r)
    score_RxS = experiment.scores(attack, r, index_R)[:, ids_S]
    member_RxS = experiment.member_MxN[np.ix_(index_R, ids_S)]
    return stats.potential_outcomes(
        lambda: iter([(score_RxS, member_RxS)]), np.ones(len(ids_S)), fprs, pairs=experiment.pairs
    )


def _truth_row(truth: stats.PotentialOutcomes, members: int) -> dict[str, Any]:
    return (
        {"estimator": "truth", "members": members, "left_out": truth.left_out}
        | {"ate": truth.ate, "ate_se": truth.ate_se, "auc": truth.auc, "auc_se": truth.auc_se}
        | {f"tpr_{fpr:g}": tpr for fpr, tpr in zip(FPRS, truth.tpr_F, strict=True)}
    )


def _row(estimate: stats.CausalEstimate) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: getattr(estimate, name)
        for name in ("members", "nonmembers", "left_out", "ate", "auc", "youden")
    }
    row |= {f"tpr_{fpr:g}": tpr for fpr, tpr in zip(FPRS, estimate.tpr_F, strict=True)}
    row |= {
        "effective_nonmembers": estimate.effective_nonmembers,
        "largest_weight_share": estimate.largest_weight_share,
    }
    if not math.isnan(
        estimate.effective_nonmembers
    ):  # the G-formula has no weights that could tell
        row["has_overlap"] = estimate.has_overlap
    return row


def _top_tenth_share(log_odds_B: np.ndarray) -> float:
    """Returns the share of the total weight that the largest tenth of the weights carries."""
    weight_B = np.sort(np.exp(log_odds_B - log_odds_B.max()))[::-1]
    return float(weight_B[: math.ceil(len(weight_B) / 10)].sum() / weight_B.sum())


def _curves(
    index: Mapping[str, Any], estimates: Mapping[str, stats.CausalEstimate]
) -> Iterator[pd.DataFrame]:
    """Yields the ROC curves, each with at most `_CURVE_POINTS` points at equal distances along the curve."""
    for name, estimate in estimates.items():
        fpr_K, tpr_K = estimate.curve.fpr_K, estimate.curve.tpr_K
        length_K = fpr_K + tpr_K  # both rise along the curve
        at_K = np.searchsorted(length_K, np.linspace(length_K[0], length_K[-1], _CURVE_POINTS))
        chosen_K = np.unique(np.append(np.minimum(at_K, len(length_K) - 1), 0))
        yield pd.DataFrame(
            {**index, "estimator": name, "fpr": fpr_K[chosen_K], "tpr": tpr_K[chosen_K]}
        )


def _samples(experiment: _Experiment, shift: Shift, learned_S: np.ndarray | None) -> pd.DataFrame:
    """Returns rows of zero_run_samples.parquet without the columns of the setting, with scores of the loss."""
    parts = {
        "member": shift.member_ids,
        "shifted": shift.nonmember_ids,
        "iid": shift.iid_nonmember_ids,
    }
    ids = np.concatenate([*parts.values()])
    learned = np.full(len(ids), np.nan)
    if learned_S is not None:
        learned[: len(learned_S)] = learned_S  # samples of the group iid are not used to learn
    return pd.DataFrame(
        {"sample": experiment.first_id + ids}
        | {"group": np.repeat([*parts], [*map(len, parts.values())])}
        | {"score": -experiment.loss_MxN[0, ids]}
        | {"log_odds_oracle": shift.log_odds_N[ids], "log_odds_learned": learned}
    )


def _write_interference(
    inputs: AttackInputs,
    pairs: bool,
    write: Write,
    work: Work,
    show: Callable[[int], None],
) -> None:
    """Computes interference.csv and effects.parquet from all samples, a block or a model at a time."""
    rows: list[dict[str, Any]] = []
    weight_N = np.ones(inputs.num_samples)
    for a, attack in enumerate(ATTACKS):
        with _scores(inputs, attack, work.folder, work.pool) as (score_MxN, member_MxN):

            def blocks(
                half: slice, score_MxN: np.ndarray = score_MxN, member_MxN: np.ndarray = member_MxN
            ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
                for at in sample_slices(score_MxN.shape[1]):
                    yield np.array(score_MxN[half, at]), np.array(member_MxN[half, at])

            halves = [slice(None)] if attack == "loss" else _halves(len(score_MxN))
            truths = [
                stats.potential_outcomes(
                    lambda half=half, blocks=blocks: blocks(half), weight_N, FPRS, pairs=pairs
                )
                for half in halves
            ]
            if attack == "loss":
                write(EFFECTS, _effects(inputs, truths[0]))
            before = a * len(score_MxN)
            names = [*map(str, inputs.references)]
            rows += _interference_rows(
                attack,
                names,
                score_MxN,
                member_MxN,
                [*zip(halves, truths, strict=True)],
                work.pool,
                lambda m, n=before: show(n + m),
            )
    write(INTERFERENCE, pd.DataFrame(rows))


def _halves(models: int) -> list[slice]:
    first = int(_is_in_first_half(np.arange(models), models).sum())
    return [slice(0, first), slice(first, models)]


@contextlib.contextmanager
def _scores(
    inputs: AttackInputs,
    attack: str,
    folder: Path,
    pool: ThreadPoolExecutor,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Context manager that keeps score_MxN and member_MxN of all samples and models in files until it exits."""
    shape = len(inputs.references), inputs.num_samples
    with (
        MembershipScoreFile(folder, *shape) as scores,
        MembershipScoreFile(folder, *shape, np.dtype(np.bool_)) as members,
    ):

        def write(part: Block) -> None:
            loss_MxC = part.reference_loss_RxC.astype(float)
            score_MxC = -loss_MxC
            if attack == "reference_calibrated":
                first, second = _halves(len(loss_MxC))
                score_MxC[first] += loss_MxC[second].mean(axis=0)
                score_MxC[second] += loss_MxC[first].mean(axis=0)
            scores.write(0, part.at, score_MxC)
            members.write(0, part.at, part.reference_member_RxC)

        for _ in map_in_order(pool, write, (p for b in inputs.blocks() for p in b.split())):
            pass
        yield scores.as_array(), members.as_array()


def _effects(inputs: AttackInputs, truth: stats.PotentialOutcomes) -> pd.DataFrame:
    """Returns effects.parquet."""
    return pd.DataFrame(
        {
            "sample": inputs.ids(slice(0, inputs.num_samples)),
            "effect": truth.effect_N,
            "effect_se": truth.effect_se_N,
            "num_in": truth.num_in_N,
            "num_out": truth.num_out_N,
            "mean_in": truth.mean_in_N,
            "mean_out": truth.mean_out_N,
        }
    )


def _interference_rows(
    attack: str,
    names: Sequence[str],
    score_MxN: np.ndarray,
    member_MxN: np.ndarray,
    truths: Sequence[tuple[slice, stats.PotentialOutcomes]],
    pool: ThreadPoolExecutor,
    show: Callable[[int], None],
) -> list[dict[str, Any]]:
    """Returns the rows of interference.csv of one attack.

    Args:
      attack: the attack.
      names: names of the models.
      score_MxN, member_MxN: scores and membership.
      truths: the models that have the same references, and their potential outcomes.
      pool: threads that evaluate models.
      show: called with the number of evaluated models.
    """
    rows: list[dict[str, Any]] = []
    samples = score_MxN.shape[1]
    for half, truth in truths:
        of_score = stats.effect_variance(truth.effect_N, truth.effect_se_N)

        def evaluate(
            m: int, of_score: float = of_score
        ) -> tuple[dict[str, Any], float, np.ndarray, np.ndarray]:
            score_N, member_N = np.array(score_MxN[m]), np.array(member_MxN[m])
            estimate = stats.unadjusted_estimate(score_N, member_N, FPRS)
            placement_N = stats.placements(score_N, member_N)
            row = {"attack": attack, "model": names[m], "members": estimate.members}
            row |= {"nonmembers": estimate.nonmembers, "ate": estimate.ate, "auc": estimate.auc}
            row |= {"sd_ate": stats.independent_sd(score_N, member_N, of_score)}
            return row, stats.independent_sd(placement_N, member_N), placement_N, member_N

        sd_M, placement = [], _EffectMoments(samples)
        models = range(len(names))[half]
        for row, sd, placement_N, member_N in map_in_order(pool, evaluate, models):
            rows.append(row)
            sd_M.append(sd)
            placement.add(placement_N, member_N)
            show(len(rows))
        of_placement = stats.effect_variance(*placement.effects())
        for row, sd in zip(rows[-len(sd_M) :], sd_M, strict=True):
            row["sd_auc"] = math.sqrt(max(sd**2 - of_placement / samples, 0.0))
    only = [truth for _, truth in truths]
    total: dict[str, Any] = {"attack": attack, "model": "multi_run"}
    total |= {"members": sum(int(np.sum(truth.num_in_N)) for truth in only)}
    total |= {"nonmembers": sum(int(np.sum(truth.num_out_N)) for truth in only)}
    for metric in ("ate", "auc"):
        se_T = np.array([getattr(truth, f"{metric}_se") for truth in only])
        total[metric] = float(np.mean([getattr(truth, metric) for truth in only]))
        total[f"sd_{metric}"] = float(np.sqrt(np.sum(se_T**2))) / len(only)
    return [*rows, total, *_trial_rows(attack, score_MxN, member_MxN)]


class _EffectMoments:
    """Collects the means and variances of values of each sample under models trained on it and under others."""

    def __init__(self, samples: int) -> None:
        # Numbers of values, sums and sums of squares, of OUT models first.
        self._count_2xN, self._sum_2xN, self._square_2xN = np.zeros((3, 2, samples))

    def add(self, value_N: np.ndarray, member_N: np.ndarray) -> None:
        """Adds the values under one model; NaN is left out."""
        for i, class_N in enumerate((~member_N, member_N)):
            known_N = class_N & ~np.isnan(value_N)
            self._count_2xN[i] += known_N
            self._sum_2xN[i, known_N] += value_N[known_N]
            self._square_2xN[i, known_N] += value_N[known_N] ** 2

    def effects(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns effect_N and its standard error_N; NaN for samples with fewer than two IN or OUT models."""
        count_2xN = np.where(self._count_2xN > 1, self._count_2xN, np.nan)
        mean_2xN = self._sum_2xN / count_2xN
        variance_2xN = (self._square_2xN / count_2xN - mean_2xN**2).clip(0) / (count_2xN - 1)
        return mean_2xN[1] - mean_2xN[0], np.sqrt(variance_2xN.sum(axis=0))


def _trial_rows(attack: str, score_MxN: np.ndarray, member_MxN: np.ndarray) -> list[dict[str, Any]]:
    """Returns the row of multi-run trials, one for each model; none if all trials are of one class."""
    _, score_M, member_M = stats.multi_run_trials(score_MxN, member_MxN, 0)
    if member_M.all() or not member_M.any():
        return []
    estimate = stats.unadjusted_estimate(score_M, member_M, FPRS)
    sd_auc = stats.independent_sd(stats.placements(score_M, member_M), member_M)
    return [
        {"attack": attack, "model": "trials", "members": estimate.members}
        | {"nonmembers": estimate.nonmembers, "ate": estimate.ate, "auc": estimate.auc}
        | {"sd_ate": stats.independent_sd(score_M, member_M), "sd_auc": sd_auc}
    ]


STUDY = Study(
    "zero_run",
    compute,
    tables=(
        Table(
            TABLE,
            (
                "Written if `attack.zero_run` is set and at least 8 references are present, also for recipes without "
                "replicas. Compares evaluations on members and non-members from different sources with the truth. Each "
                "row is a *shift*, a rule by which members and non-members are selected by their text, an attack, a "
                "*run*, the reference under evaluation, and an estimator. CausalMIA, Section 6. The first 32,768 "
                "samples are used; a shift that is not possible has no rows (see `zero_run.json`).\n"
                "\n"
                "Shifts:\n"
                "\n"
                "- `groups`: 90% of the members are from A and 10% from the other sources (`source`: packages, files "
                "or folders); of as many non-members, 10% are from A. A consists of the sources with the lowest mean "
                "loss under the other models that were not trained on the sample, up to half of the samples.\n"
                "- `graded`: a member is selected with a probability of sigmoid(b z) and a non-member with sigmoid(-b "
                "z), where b is the `strength` and z the standardized mean TF-IDF of the sample.\n"
                "- `disjoint`: all members are from A and all non-members from other sources. No non-member resembles "
                "a member, so no adjustment is possible.\n"
                "\n"
                "[Estimators](how-to/different-sources.md#what-the-estimators-do) of the mean effect of training and "
                "of the ROC curve, for the distribution of the members (with their names in the report):\n"
                "\n"
                "- `truth`: compares the scores of the selected members under the other models that were trained on "
                "them with those under the other models that were not. In a balanced design, the complement of the run "
                "is not used. For `reference_calibrated`, the models are the others of the same half.\n"
                '- `iid` ("Same source"): compares the members with other non-members of the run that are selected by '
                "the rule for members.\n"
                '- `naive` ("Unadjusted"): compares the members with the selected non-members, as they are.\n'
                '- `oracle` ("True weights"): weights the non-members by the true density ratio: 9 and 1/9 for '
                "`groups`, e^(b z) for `graded`. For `disjoint`, all weights are 0, and there is no estimate.\n"
                '- `ipw` ("Learned weights"): weights them by the odds of a cross-fitted logistic regression of '
                "membership on covariates of the text.\n"
                '- `g_formula` ("Regression"): predicts the scores that members would have without training, by a '
                "cross-fitted ridge regression of the scores of non-members on these covariates.\n"
                '- `aipw` ("Both"): the regression, corrected by its weighted errors on the non-members.\n'
                "\n"
                "The covariates are 64 directions of the TF-IDF vectors, the logarithm of the number of tokens, the "
                "share of unknown tokens, compressed bytes per character, and the mean TF-IDF; for imported losses, "
                "those properties that were imported and features of the texts, if there are any. Without covariates, "
                "the last three estimators are left out."
            ),
            {
                "shift": Column("none", "see above"),
                "strength": Column(
                    "none", "b of `graded`, from `attack.zero_run_strengths`; 0 for the others"
                ),
                "attack": Column(
                    "none",
                    (
                        "`loss`, or `reference_calibrated` with references that are the same for all models of a half: "
                        "the references of the other half"
                    ),
                ),
                "model": Column("none", "the run"),
                "estimator": Column("none", "see above"),
                "members": Column("count", "selected members"),
                "nonmembers": Column(
                    "count", "non-members that are compared with them; empty for `truth`"
                ),
                "left_out": Column(
                    "count",
                    "samples without a score; of the `truth`, members without an IN or without an OUT model",
                ),
                "ate": Column("nats per token", "mean effect of training on the score of a member"),
                "ate_se": Column(
                    "nats per token", "standard error over models, of the `truth` only"
                ),
                **common("auc"),
                "auc_se": Column("fraction", "likewise"),
                "youden": Column("fraction", "largest TPR - FPR; empty for `truth`"),
                "tpr_0.05, tpr_0.2": Column("fraction", "TPR at an FPR of 5% and 20%"),
                "effective_nonmembers": Column(
                    "count",
                    "(sum of weights)^2 / sum of squared weights; empty for `truth` and `g_formula`",
                ),
                "largest_weight_share": Column("fraction", "largest weight / sum of weights"),
                "top_tenth_share": Column(
                    "fraction",
                    "share of the total weight that the largest tenth of the weights carries",
                ),
                "has_overlap": Column(
                    "none",
                    (
                        "whether there are at least 50 effective non-members and none has more than 10% of the weight; "
                        "empty for `truth` and `g_formula`. Learned weights can show only what the covariates show"
                    ),
                ),
            },
            key=("shift", "strength", "model", "attack", "estimator"),
        ),
        Table(
            CURVES,
            "Written with `zero_run.csv`. ROC curves of the first run, at most 200 points each.",
            {
                "shift, strength, attack, estimator": Column("none", "as in `zero_run.csv`"),
                "fpr, tpr": Column("fraction", "a point of the curve"),
            },
            key=("shift", "strength", "attack", "estimator", "fpr", "tpr"),
        ),
        Table(
            SAMPLES,
            (
                "Written with `zero_run.csv` if at least one shift is possible. The samples that are selected from "
                "the first run."
            ),
            {
                "shift, strength": Column("none", "as in `zero_run.csv`"),
                **common("sample"),
                "group": Column(
                    "none",
                    "`member`, `shifted` (a selected non-member) or `iid` (a non-member for comparison)",
                ),
                "score": Column("nats per token", "of the attack `loss`"),
                "log_odds_oracle": Column(
                    "nats",
                    "true log density ratio of members and non-members, up to a constant; infinite for `disjoint`",
                ),
                "log_odds_learned": Column(
                    "nats",
                    (
                        "log odds of membership by the cross-fitted logistic regression; empty for `iid`, and without "
                        "covariates"
                    ),
                ),
            },
            key=("shift", "strength", "sample"),
        ),
        Table(
            INTERFERENCE,
            (
                "Written with `zero_run.csv`. Each row is an attack and a reference, whose members are compared with "
                "its non-members on all samples (one-run evaluation, CausalMIA Section 5), with two more rows for each "
                "attack: `multi_run`, all models together, and `trials`, a different sample under each model "
                "(CausalMIA, Algorithm 1). To see how much the scores of one model depend on each other "
                "([interference](reference/concepts.md#definitions)), compare the standard deviation of `ate` and of "
                "`auc` over the models with `sd_ate` and `sd_auc`."
            ),
            {
                "attack": Column("none", "as in `zero_run.csv`"),
                "model": Column(
                    "none",
                    (
                        "a reference, `multi_run` or `trials`; the row `trials` is missing if all trials are of one "
                        "class"
                    ),
                ),
                "members, nonmembers": Column("count", "scores of members and of non-members"),
                "ate": Column(
                    "nats per token",
                    "mean score of members minus that of non-members; of `multi_run`, mean effect over samples",
                ),
                **common("auc"),
                "sd_ate": Column(
                    "nats per token",
                    (
                        "standard deviation over models if the scores of samples were independent: sqrt(s1^2 / n1 + "
                        "s0^2 / n0 - S^2 / n), with the variances of the scores of n1 members and n0 non-members, and "
                        "the variance S^2 of the effect over all n samples, which all models share "
                        "([`independent_sd`](reference/stats.md)). Of `multi_run`, the standard error over models; of "
                        "`trials`, without S^2"
                    ),
                ),
                "sd_auc": Column(
                    "fraction", "the same for the AUC, by the placements of the scores (DeLong)"
                ),
            },
            key=("attack", "model"),
        ),
        Table(
            EFFECTS,
            (
                "Written with `zero_run.csv`. Each row is a sample, with its scores by `loss` under all references. "
                "In the designs `exact` and `balanced`, all training subsets are equally large, so the effect is "
                "that of training on the sample in place of another one."
            ),
            {
                **common("sample"),
                "effect": Column("nats per token", "`mean_in` - `mean_out`"),
                "effect_se": Column(
                    "nats per token",
                    "its standard error (Welch); empty with fewer than 2 IN or 2 OUT models",
                ),
                "num_in, num_out": Column(
                    "count", "number of models that were trained on it, and of the others"
                ),
                "mean_in, mean_out": Column("nats per token", "mean score under these models"),
            },
            key=("sample",),
        ),
    ),
    not_requested=not_requested,
    facts={
        "shift_reasons": Column("none", "shift -> why it is not possible"),
        "models, samples, covariates": Column(
            "count",
            "references, samples of the evaluation, and covariates of each sample",
        ),
        "pairs": Column(
            "none",
            "whether each run was evaluated without its complement",
        ),
    },
)


METRICS = {"auc": "AUC", "tpr_0.05": "TPR at 5% FPR", "ate": "Mean effect"}
"""Column of zero_run.csv -> its name."""
ESTIMATOR_TITLES = {
    "iid": "Same source",
    "naive": "Unadjusted",
    "oracle": "True weights",
    "ipw": "Learned weights (IPW)",
    "g_formula": "Regression (G-formula)",
    "aipw": "Both (AIPW)",
}
"""Estimator -> its name in figures and tables, in the order in which they are shown."""
STYLES: dict[str, tuple[str, str]] = {
    "iid": (plotting.GREY, "o"),
    "naive": (plotting.VERMILLION, "X"),
    "oracle": (plotting.BLACK, "D"),
    "ipw": (plotting.BLUE, "s"),
    "g_formula": (plotting.ORANGE, "^"),
    "aipw": (plotting.GREEN, "P"),
}
_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class MeanError:
    """The mean over runs of an estimate minus the truth, with a t interval."""

    mean: float
    low: float
    high: float
    """The ends are NaN for a single run."""


@dataclasses.dataclass(frozen=True)
class Estimator:
    """One estimator of one attack with one shift, over all runs."""

    name: str
    """A key of `ESTIMATOR_TITLES`."""
    errors: Mapping[str, MeanError]
    """A key of `METRICS` -> its error; without estimates, NaN."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One attack with one shift."""

    shift: str
    strength: float
    attack: str
    estimators: Sequence[Estimator]

    @property
    def title(self) -> str:
        """The shift in a few words."""
        return shift_title(self.shift, self.strength)

    def find(self, name: str) -> Estimator | None:
        """Returns an estimator by name."""
        return next((e for e in self.estimators if e.name == name), None)


@dataclasses.dataclass(frozen=True)
class OneRun:
    """One-run estimates of every model beside those of all models together."""

    attack: str
    mean: float
    """Mean AUC over the models."""
    sd: float
    """Standard deviation of the AUC over the models."""
    independent_sd: float
    """Standard deviation if the scores of different samples were independent."""
    multi_run: float
    """AUC of all models together."""

    @property
    def sentence(self) -> str:
        """The comparison in one sentence."""
        return (
            f"{attack_name(self.attack)}: over models, the AUC of one model on all samples has a mean of "
            f"{self.mean:.3f} and a standard deviation of {self.sd:.4f}, which would be {self.independent_sd:.4f} if "
            "the scores of different samples were independent. All models together have an AUC of "
            f"{self.multi_run:.3f}."
        )


@dataclasses.dataclass(frozen=True)
class ZeroRun:
    """The zero-run evaluation of a recipe, as the report shows it."""

    reason: str
    """Why there are no numbers; empty if there are."""
    shift_reasons: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Shift -> why it is not possible."""
    runs: int = 0
    pairs: bool = False
    settings: Sequence[Setting] = ()
    one_run: Sequence[OneRun] = ()

    @property
    def verdict(self) -> str:
        """The errors of the AUC of the loss, in a sentence per shift; of graded, with the largest strength."""
        last = {s.shift: s for s in sorted(self.settings, key=lambda s: s.strength)}
        sentences = []
        for shift in dict.fromkeys(s.shift for s in self.settings):
            strength = last[shift].strength
            [setting] = [
                s
                for s in self.settings
                if (s.shift, s.strength, s.attack) == (shift, strength, "loss")
            ]
            errors = {e.name: e.errors["auc"].mean for e in setting.estimators}
            sentence = (
                f"With the shift {setting.title}, the AUC of the loss is off by "
                f"{signed(errors['naive'])} without adjustment"
            )
            if not math.isnan(errors["oracle"]):
                sentence += f", by {signed(errors['oracle'])} with true weights"
            if "aipw" in errors:
                sentence += f" and by {signed(errors['aipw'])} with AIPW"
            if math.isnan(errors["oracle"]):
                sentence += "; there are no true weights, since no non-member resembles a member"
            sentences.append(sentence + ".")
        return " ".join(sentences)


def signed(value: float) -> str:
    """Formats an error with its sign and three digits: "+0.012", "-0.004", "0.000"."""
    text = f"{value:+.3f}"
    return text[1:] if float(text) == 0 else text


def shift_title(shift: str, strength: float) -> str:
    """Returns a shift in a few words, such as "graded, strength 2"."""
    return f"graded, strength {strength:g}" if shift == "graded" else shift


def read(recipe: RecipeResults) -> ZeroRun | None:
    """Reads the tables; None if attack.zero_run did not request them."""
    if not recipe.view.has("zero_run.json"):
        return None
    facts = recipe.view.facts("zero_run")
    if facts["reason"]:
        return ZeroRun(facts["reason"])
    rows = io.read_table(recipe, TABLE)
    grouped: dict[tuple[str, float, str], list[Record]] = {}
    for row in rows:
        grouped.setdefault((row["shift"], row["strength"], row["attack"]), []).append(row)
    interference = io.read_table(recipe, INTERFERENCE)
    return ZeroRun(
        "",
        facts["shift_reasons"],
        facts["models"],
        facts["pairs"],
        [_setting(*key, of_key, facts["pairs"]) for key, of_key in grouped.items()],
        [_one_run(name, interference) for name in dict.fromkeys(r["attack"] for r in interference)],
    )


def mean_error(error_R: Sequence[float]) -> MeanError:
    """Returns the mean of errors with its t interval; estimates that do not exist (NaN) are left out."""
    known_R = np.array([error for error in error_R if not math.isnan(error)])
    if not known_R.size:
        return MeanError(math.nan, math.nan, math.nan)
    mean = float(known_R.mean())
    if known_R.size == 1:
        return MeanError(mean, math.nan, math.nan)
    quantile = scipy.stats.t.ppf(0.5 + _CONFIDENCE / 2, known_R.size - 1)
    margin = float(quantile * known_R.std(ddof=1) / math.sqrt(known_R.size))
    return MeanError(mean, mean - margin, mean + margin)


def _setting(
    shift: str, strength: float, attack: str, rows: Sequence[Record], pairs: bool
) -> Setting:
    by_estimator: dict[str, list[Record]] = {}
    for row in rows:
        by_estimator.setdefault(row["estimator"], []).append(row)
    truths = by_estimator["truth"]

    def errors(of_runs: Sequence[Record], metric: str) -> list[float]:
        error_R = np.array(
            [row[metric] - truth[metric] for row, truth in zip(of_runs, truths, strict=True)]
        )
        # A model and its complement share every draw, so they count once.
        return (error_R.reshape(-1, 2).mean(axis=1) if pairs else error_R).tolist()

    return Setting(
        shift,
        strength,
        attack,
        [
            Estimator(
                name,
                {metric: mean_error(errors(by_estimator[name], metric)) for metric in METRICS},
            )
            for name in ESTIMATOR_TITLES
            if name in by_estimator
        ],
    )


def _one_run(attack: str, rows: Sequence[Record]) -> OneRun:
    of_attack = {row["model"]: row for row in rows if row["attack"] == attack}
    of_models = [row for name, row in of_attack.items() if name not in ("multi_run", "trials")]

    def column(name: str) -> np.ndarray:
        return np.array([row[name] for row in of_models])

    return OneRun(
        attack,
        float(column("auc").mean()),
        float(column("auc").std(ddof=1)),
        float(np.sqrt(np.mean(column("sd_auc") ** 2))),
        of_attack["multi_run"]["auc"],
    )


def draw(zero_run: ZeroRun) -> Figure:
    """Draws the error of the AUC of every estimator with its interval, by shift, a panel per attack."""
    attacks = [*dict.fromkeys(setting.attack for setting in zero_run.settings)]
    titles = [*dict.fromkeys(setting.title for setting in zero_run.settings)]
    figure = plotting.new_figure(7.2, 1.3 + 0.62 * len(titles))
    panels = figure.subplots(1, len(attacks), sharey=True, squeeze=False)[0]
    offsets = np.linspace(0.34, -0.34, len(ESTIMATOR_TITLES))
    for axes, attack in zip(panels, attacks, strict=True):
        settings = [s for s in zero_run.settings if s.attack == attack]
        for (name, label), offset in zip(ESTIMATOR_TITLES.items(), offsets, strict=True):
            color, marker = STYLES[name]
            shown = [
                (offset - titles.index(s.title), e.errors["auc"])
                for s in settings
                if (e := s.find(name)) and not math.isnan(e.errors["auc"].mean)
            ]
            if not shown:
                continue
            axes.errorbar(
                [error.mean for _, error in shown],
                [y for y, _ in shown],
                xerr=np.nan_to_num([[e.mean - e.low, e.high - e.mean] for _, e in shown]).T,
                color=color,
                marker=marker,
                markersize=4.5,
                linestyle="",
                linewidth=1.2,
                label=label,
            )
        axes.axvline(0, color=plotting.BLACK, linewidth=1)
        axes.set(title=attack_name(attack), xlabel="AUC minus the truth")
        axes.locator_params(axis="x", nbins=5)
    panels[0].set_yticks([-float(i) for i in range(len(titles))], titles)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


def recipe_figures(recipe: RecipeResults) -> dict[str, Figure | None]:
    """Draws the figure of a recipe; None without numbers."""
    zero_run = read(recipe)
    return {"zero_run": draw(zero_run) if zero_run and zero_run.settings else None}


RECIPE = "epochs-140M"
STRENGTH = 2.0
"""The strength of the graded shift in figures that show one."""
SHIFTS = {name: shift_title(name, STRENGTH) for name in ("groups", "graded", "disjoint")}
"""Shift -> its title."""
CORRECTED = ("ipw", "g_formula", "aipw")
"""Estimators that learn the difference between members and non-members from covariates."""
COMPARED = ("naive", "ipw", "iid")
"""Estimators whose AUCs are in the paper."""
MARGIN = 0.02
"""AUCs that differ by less than this agree."""
NOT_COVERED = ("the samples",)
"""All runs share the samples of the population, so intervals over runs hold them fixed."""
FIG03C_STATEMENTS = (
    "The unadjusted AUC is above the truth.",
    "Learned weights bring the AUC closer to the truth.",
    "With learned weights, the AUC agrees with the AUC on non-members from the same source.",
)
FIG04_STATEMENTS = ("The largest 10% of the weights carry more than half of the total weight.",)
FIG07_STATEMENTS = (
    "The error of the unadjusted AUC grows with the strength of the shift.",
    "At a strength of 2, IPW, the G-formula and AIPW each have a smaller error than the unadjusted AUC.",
)


def read_runs(recipe: RecipeResults) -> pd.DataFrame:
    """Reads zero_run.csv of a recipe, with the column pair: the number of each run, shared with its complement if any.

    Raises:
      Unavailable: the recipe has no zero-run evaluation.
    """
    zero_run = read(recipe)
    if zero_run is None or not zero_run.settings:
        raise Unavailable(
            f"{recipe.name}: there is no zero-run evaluation; run lm-mia attack with "
            "--config.attack.zero_run=groups,graded,disjoint"
        )
    table = io.read_frame(recipe, TABLE)
    position = {name: i for i, name in enumerate(table["model"].unique())}
    return table.assign(pair=table["model"].map(position) // (2 if zero_run.pairs else 1))


def values(
    table: pd.DataFrame, shift: str, attack: str, strength: float | None = None
) -> pd.DataFrame:
    """Returns the rows of one shift and attack.

    Args:
      table: the result of `read`.
      shift, attack: which rows.
      strength: the strength of the graded shift; None: `STRENGTH`.

    Raises:
      Unavailable: there are none.
    """
    rows = table[(table["shift"] == shift) & (table["attack"] == attack)]
    if shift == "graded":
        rows = rows[rows["strength"] == (STRENGTH if strength is None else strength)]
    if rows.empty:
        raise Unavailable(
            f"{TABLE} has no rows of {attack} with the shift {shift}; run lm-mia attack with it in "
            "--config.attack.zero_run"
        )
    return rows


def errors(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Returns the error of each estimator (column) in each run, or pair of complementary runs.

    A model and its complement share every draw, so that they count once.
    """
    value = rows.pivot(index=["pair", "model"], columns="estimator", values=metric)
    error = value.drop(columns="truth").sub(value["truth"], axis=0)
    return error.groupby("pair").mean()


def over_runs(value_M: pd.Series | np.ndarray) -> Estimate:
    """Returns the mean over runs with its t interval, which holds the samples of the population fixed."""
    value_M = np.asarray(value_M, float)
    value_M = value_M[~np.isnan(value_M)]
    count = len(value_M)
    if count < 2:
        mean = float(value_M.mean()) if count else np.nan
        return Estimate(mean, np.nan, np.nan, f"{count} runs", NOT_COVERED)
    term = VarianceTerm(float(value_M.var(ddof=1)) / count, count - 1)
    return Estimate.from_variance(float(value_M.mean()), [term], f"{count} runs", NOT_COVERED)


def draw_fig03c(recipes: SweepResults) -> Drawing:
    """Draws the ROC curves of the first run under each shift, and the AUCs of all runs."""
    recipe = recipes[RECIPE]
    table = read_runs(recipe)
    curves = io.read_frame(recipe, "zero_run_curves.csv")
    shifts = [shift for shift in SHIFTS if shift in set(table["shift"])]
    figure = plotting.new_figure(5.2 * len(shifts), 8.6)
    grid = figure.subplots(2, len(shifts), squeeze=False)
    frames = []
    for column, shift in enumerate(shifts):
        rows = values(table, shift, "loss")
        frames.append(_draw_curves(grid[0, column], curves, shift))
        frames.append(_draw_errors(grid[1, column], rows, shift))
    grid[0, 0].legend(fontsize=9, loc="lower right")
    rows = values(table, "groups", "loss")
    error = errors(rows, "auc")
    claims = (
        claim_greater(
            FIG03C_STATEMENTS[0], "Error of the unadjusted AUC", over_runs(error["naive"])
        ),
        claim_greater(
            FIG03C_STATEMENTS[1],
            "Absolute error of the unadjusted AUC minus that with learned weights",
            over_runs(error["naive"].abs() - error["ipw"].abs()),
        ),
        claim_equivalent(
            FIG03C_STATEMENTS[2],
            "AUC with learned weights minus that with non-members from the same source",
            over_runs(error["ipw"] - error["iid"]),
            MARGIN,
        ),
    )
    auc = rows.groupby("estimator")["auc"]
    ours = {f"auc_{name}": (float(auc.mean()[name]), float(auc.std()[name])) for name in COMPARED}
    return Drawing(
        pd.concat(frames, ignore_index=True),
        figure,
        claims=claims,
        ours=ours,
        not_comparable=frozenset(ours),
        notes=(
            "Each reference in turn is the model under evaluation, the run. The truth is the AUC on its members, "
            "computed from their losses under the other models, some of which were trained on each member and some of "
            "which were not. ROC curves are those of the first run.",
            "Groups: 90% of the members and 10% of the non-members are from packages with a low loss. Graded: samples "
            "with a high TF-IDF are more often members. Disjoint: members and non-members have no package in common, "
            "so no estimator can adjust for the difference.",
            "; ".join(
                f"{label}: learned weights lack overlap in {percent(_share_flagged(table, shift))} of the runs"
                for shift, label in SHIFTS.items()
                if shift in shifts
            )
            + ".",
            unsupported_note(claims),
        ),
    )


def _draw_curves(axes: Axes, curves: pd.DataFrame, shift: str) -> pd.DataFrame:
    """Draws the ROC curve of each estimator in the first run; returns rows of the data."""
    rows = curves[(curves["shift"] == shift) & (curves["attack"] == "loss")]
    if shift == "graded":
        rows = rows[rows["strength"] == STRENGTH]
    frames = []
    for estimator, label in {"truth": "Truth", **ESTIMATOR_TITLES}.items():
        color, dash = _style(estimator)
        curve = rows[rows["estimator"] == estimator]
        if not curve.empty:
            axes.plot(curve["fpr"], curve["tpr"], color=color, linestyle=dash, label=label)
            series = {"series": estimator, "x": curve["fpr"], "y": curve["tpr"]}
            frames.append(pd.DataFrame(series))
    axes.plot([0, 1], [0, 1], color=plotting.GREY, linewidth=0.8, linestyle=":")
    axes.set(
        xlabel="FPR", ylabel="TPR", title=f"First run, {SHIFTS[shift]}", xlim=(0, 1), ylim=(0, 1)
    )
    return pd.concat(frames).assign(panel=f"roc, {shift}")


def _style(estimator: str) -> tuple[str, plotting.LineStyle]:
    """Returns color and line style; true weights and the truth are black."""
    color, _ = STYLES.get(estimator, (plotting.BLACK, ""))
    return color, "--" if estimator == "oracle" else "-"


def _draw_errors(axes: Axes, rows: pd.DataFrame, shift: str) -> pd.DataFrame:
    """Draws the AUC of each estimator in each run, and the true AUCs; returns rows of the data."""
    names = {"truth": "Truth", **ESTIMATOR_TITLES}
    by_estimator = {name: rows[rows["estimator"] == name] for name in names}
    present = [name for name, of_name in by_estimator.items() if of_name["auc"].notna().any()]
    frames = []
    for at, name in enumerate(present):
        color, _ = _style(name)
        value_M = by_estimator[name]["auc"].to_numpy()
        spread_M = np.linspace(-0.25, 0.25, len(value_M))
        axes.plot(at + spread_M, value_M, ".", color=color, markersize=4, alpha=0.6)
        axes.plot([at - 0.32, at + 0.32], [np.nanmean(value_M)] * 2, color=color, linewidth=2.4)
        frames.append(
            pd.DataFrame({"series": name, "x": by_estimator[name]["model"], "y": value_M})
        )
    truth = by_estimator["truth"]["auc"].mean()
    axes.axhline(truth, color=plotting.BLACK, linewidth=0.9, linestyle="--")
    labels = [names[name] for name in present]
    axes.set_xticks(range(len(present)), labels, rotation=30, ha="right", fontsize=9)
    axes.set(ylabel="AUC", title=f"All runs, {SHIFTS[shift]}")
    return pd.concat(frames).assign(panel=f"auc, {shift}")


def draw_fig04(recipes: SweepResults) -> Drawing:
    """Draws the losses of members and of both kinds of non-members, and the inequality of the weights."""
    recipe = recipes[RECIPE]
    table = read_runs(recipe)
    columns = ["shift", "strength", "group", "score", "log_odds_oracle", "log_odds_learned"]
    samples = io.read_frame(recipe, "zero_run_samples.parquet", columns)
    samples = samples[samples["shift"] == "groups"]
    if samples.empty:
        raise Unavailable(
            f"{recipe.name}: there is no evaluation with the shift groups; run lm-mia attack with "
            "--config.attack.zero_run=groups,graded,disjoint"
        )
    figure = plotting.new_figure(10.6, 4.4)
    loss_axes, weight_axes = figure.subplots(1, 2)
    frames = [_draw_losses(loss_axes, samples), _draw_weights(weight_axes, samples)]
    rows = values(table, "groups", "loss")
    share_M = rows[rows["estimator"] == "ipw"].groupby("pair")["top_tenth_share"].mean()
    claims = (
        claim_greater(
            FIG04_STATEMENTS[0], "Share of the largest 10% of the weights", over_runs(share_M), 0.5
        ),
    )
    return Drawing(
        pd.concat(frames, ignore_index=True),
        figure,
        claims=claims,
        notes=(
            "Both panels show the first run under the shift groups. The weights of non-members are their odds of being "
            "a member, true or learned from the text. (b) Non-members are sorted by weight, largest first.",
            unsupported_note(claims),
        ),
    )


_KINDS = {
    "member": ("Members", plotting.MEMBER),
    "iid": ("Non-members, same source", plotting.GREEN),
    "shifted": ("Non-members, other source", plotting.VERMILLION),
}


def _draw_losses(axes: Axes, samples: pd.DataFrame) -> pd.DataFrame:
    loss = -samples["score"]
    low, high = np.nanquantile(loss, [0.002, 0.998])
    edges = np.linspace(low, high, 41)
    frames = []
    for kind, (label, color) in _KINDS.items():
        value_S = loss[samples["group"] == kind]
        share_K = np.histogram(value_S, edges)[0] / max(len(value_S), 1)
        axes.stairs(share_K, edges, color=color, linewidth=1.6, label=label)
        frames.append(pd.DataFrame({"series": kind, "x": edges[:-1], "y": share_K}))
    axes.set(xlabel="Mean loss in nats per token", ylabel="Share of the samples")
    highest = max(frame["y"].max() for frame in frames)
    axes.set(title="(a) Losses under the first run", ylim=(0, 1.35 * highest))
    plotting.use_percent_axis(axes)
    axes.legend(fontsize=9, loc="upper left")
    return pd.concat(frames).assign(panel="a")


def _draw_weights(axes: Axes, samples: pd.DataFrame) -> pd.DataFrame:
    """Draws the share of the total weight that the largest weights carry; returns rows of the data."""
    shifted = samples[samples["group"] == "shifted"]
    frames = []
    for column, label, dash in (
        ("log_odds_oracle", "True weights", "--"),
        ("log_odds_learned", "Learned weights", "-"),
    ):
        log_odds_K = np.sort(shifted[column].dropna().to_numpy())[::-1]
        weight_K = np.exp(log_odds_K - log_odds_K[0])
        share_K = np.cumsum(weight_K) / weight_K.sum()
        at_K = np.arange(1, len(share_K) + 1) / len(share_K)
        axes.plot(at_K, share_K, color=plotting.GREEN, linestyle=dash, label=label)
        frames.append(pd.DataFrame({"series": column, "x": at_K, "y": share_K}))
    axes.plot(
        [0, 1], [0, 1], color=plotting.GREY, linewidth=0.8, linestyle=":", label="Equal weights"
    )
    axes.axvline(0.1, color=plotting.GREY, linewidth=0.8)
    axes.set(xlabel="Share of the non-members", ylabel="Share of the total weight", ylim=(0, 1.02))
    axes.set(title="(b) Weights, largest first", xlim=(0, 1))
    plotting.use_percent_axis(axes)
    axes.legend(fontsize=9, loc="lower right")
    return pd.concat(frames).assign(panel="b")


def draw_fig07(recipes: SweepResults) -> Drawing:
    """Draws the mean error of each estimator by the strength of the shift, by attack and metric."""
    table = read_runs(recipes[RECIPE])
    graded = table[table["shift"] == "graded"]
    strengths = sorted(set(graded["strength"]))
    if len(strengths) < 2:
        raise Unavailable(
            f"{RECIPE}: needs the graded shift at several strengths; run lm-mia attack with several "
            "--config.attack.zero_run_strengths"
        )
    attacks = [name for name in ("loss", "reference_calibrated") if name in set(graded["attack"])]
    figure = plotting.new_figure(4.6 * len(METRICS), 3.9 * len(attacks))
    grid = figure.subplots(len(attacks), len(METRICS), squeeze=False, sharex=True)
    frames = []
    for line, attack in enumerate(attacks):
        error_by_strength = {b: values(table, "graded", attack, b) for b in strengths}
        for column, (metric, label) in enumerate(METRICS.items()):
            axes = grid[line, column]
            frames.append(_draw_strengths(axes, error_by_strength, metric, attack))
            axes.set_title(f"{attack_name(attack)}: {label}", fontsize=11)
            if line == len(attacks) - 1:
                axes.set_xlabel("Strength of the shift")
        grid[line, 0].set_ylabel("Error, mean over runs")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=len(ESTIMATOR_TITLES), fontsize=10
    )
    claims = _fig07_claims(table, strengths)
    return Drawing(
        pd.concat(frames, ignore_index=True),
        figure,
        claims=claims,
        notes=(
            "A member is selected, and a non-member is left out, with a probability of sigmoid(strength * z), where z "
            "is the standardized TF-IDF of the sample. Bars are 95% intervals over runs, which hold the "
            "samples fixed.",
            "The calibrated loss is the mean loss under reference models minus the loss under the run, which removes "
            "most of the differences in difficulty between texts.",
            unsupported_note(claims),
        ),
    )


def _draw_strengths(
    axes: Axes, rows_by_strength: Mapping[float, pd.DataFrame], metric: str, attack: str
) -> pd.DataFrame:
    frames = []
    strengths = [*rows_by_strength]
    step = (strengths[-1] - strengths[0]) * 0.012
    error = {b: errors(rows, metric) for b, rows in rows_by_strength.items()}
    for k, (name, label) in enumerate(ESTIMATOR_TITLES.items()):
        color, dash = _style(name)
        estimates = [over_runs(error[b][name]) for b in strengths]
        mean = [e.value for e in estimates]
        margin = [(e.high - e.low) / 2 for e in estimates]
        x = np.array(strengths) + step * (k - len(ESTIMATOR_TITLES) / 2)
        axes.errorbar(
            x, mean, margin, color=color, linestyle=dash, marker="o", markersize=4, label=label
        )
        frames.append(pd.DataFrame({"series": name, "x": strengths, "y": mean, "margin": margin}))
    axes.axhline(0, color=plotting.BLACK, linewidth=0.9)
    return pd.concat(frames).assign(panel=f"{attack}, {metric}")


def _fig07_claims(table: pd.DataFrame, strengths: Sequence[float]) -> tuple[Claim, ...]:
    naive = [errors(values(table, "graded", "loss", b), "auc")["naive"].abs() for b in strengths]
    rises = [
        claim_greater("", f"From {low:g} to {high:g}", over_runs(after - before))
        for low, high, before, after in zip(
            strengths, strengths[1:], naive, naive[1:], strict=False
        )
    ]
    first = claim_all(FIG07_STATEMENTS[0], rises)
    if STRENGTH not in strengths:
        return first, claim_untested(FIG07_STATEMENTS[1], f"there is no strength {STRENGTH:g}")
    error = errors(values(table, "graded", "loss"), "auc").abs()
    smaller = [
        claim_greater(
            "",
            f"Unadjusted minus {ESTIMATOR_TITLES[name]}",
            over_runs(error["naive"] - error[name]),
        )
        for name in CORRECTED
    ]
    return first, claim_all(FIG07_STATEMENTS[1], smaller)


def _share_flagged(table: pd.DataFrame, shift: str) -> float:
    """Returns the share of the runs in which learned weights lack overlap."""
    rows = values(table, shift, "loss")
    return float((rows[rows["estimator"] == "ipw"]["has_overlap"].astype(str) != "True").mean())


EXPERIMENTS = {
    "causal_fig03c_text": Experiment(
        statements=FIG03C_STATEMENTS,
        draw=draw_fig03c,
    ),
    "causal_fig04_weights": Experiment(
        statements=FIG04_STATEMENTS,
        draw=draw_fig04,
    ),
    "causal_fig07_estimators": Experiment(
        statements=FIG07_STATEMENTS,
        draw=draw_fig07,
    ),
}
