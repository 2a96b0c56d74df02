"""Simulates rates at pooled thresholds and their intervals, and measures time and memory; prints Markdown tables.

    python -m benchmarks pooling [SECTION ...] [--experiments 400]

Sections: thresholds, intervals, power, spread, estimated_sign, pairs, finite_population, cost, table_intervals, stage.
The last two take 5 minutes each on two cores, all others together 3 minutes on one core. cost needs 2 GiB of temporary
disk, stage 4 GiB. Losses are normal unless stated otherwise, with members' losses lower by a gap, and in units of the
standard deviation (SD) of a sample's OUT losses. benchmarks/claims.py simulates intervals of other numbers.

T: targets, M: models, N: samples, F: false positive rates, E: experiments.
"""

import argparse
import dataclasses
import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import scipy.stats
import synthetic

from analysis.experiments.reliability import pooling as attacks_pooling
from analysis.experiments.reliability.pooling import LiraSettings
from lm_mia import config, stats
from lm_mia.attacks.inputs import AttackInputs, Block
from lm_mia.attacks.results import Results
from lm_mia.attacks.settings import settings_of
from lm_mia.attacks.spec import ModelRoles
from lm_mia.attacks.studies import StudyView
from lm_mia.attacks.table_sets import Work
from lm_mia.data import subsets
from lm_mia.data.population import Population

FPRS = (0.01, 0.05, 0.1)
_BLOCK = 2**14  # samples
_DRAWS = 10**6

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
LOSSES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "Student's t, 5 degrees of freedom": lambda rng, shape: rng.standard_t(5, shape),
    "gamma, shape 9 (right-skewed)": lambda rng, shape: rng.gamma(9, 1, shape),
}


def thresholds() -> None:
    """Prints the FPRs that thresholds for standardized losses realize."""
    print(
        "| losses | OUT references | FPR | normal | its t-tail | predictive | Student's t | fitted df |"
    )
    print(f"|{'---|' * 8}")
    for losses, draw in LOSSES.items():
        for n in (8, 16, 64, 256) if losses == "normal" else (16, 256):
            score = standardized_nonmembers(draw, n, _DRAWS)
            freedom = stats.fit_student_t(score)
            for fpr in (0.001, 0.01, 0.1):
                normal = scipy.stats.norm.isf(fpr)
                tail = scipy.stats.t.sf(normal / np.sqrt(1 + 1 / n), n - 1)
                predictive = stats.predictive_threshold(n, fpr)
                rates = [
                    np.mean(score >= t)
                    for t in (normal, predictive, scipy.stats.t.isf(fpr, freedom))
                ]
                exact = percent(float(tail)) if losses == "normal" else ""
                print(
                    f"| {losses} | {n} | {percent(fpr)} | {percent(rates[0])} | {exact} | {percent(rates[1])} "
                    f"| {percent(rates[2])} | {freedom:.1f} |"
                )


def standardized_nonmembers(draw: Draw, n: int, draws: int, seed: int = 0) -> np.ndarray:
    """Returns standardized losses of non-members that are not among the n OUT references."""
    rng = np.random.default_rng([seed, n])
    parts = []
    for _ in range(0, draws, _BLOCK):
        loss_TxN = draw(rng, (n + 1, _BLOCK))
        gaussians = stats.fit_gaussians(loss_TxN[1:], np.zeros((n, _BLOCK), np.bool_))
        parts.append(stats.standardized_scores(loss_TxN[0], gaussians)[0])
    return np.concatenate(parts)[:draws]


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Intervals of the TPR at each FPR in E experiments with new models and the same samples."""

    tpr_ExF: np.ndarray
    margin_ExF: np.ndarray
    """Half the width of the jackknife interval."""
    binomial_ExF: np.ndarray
    """Whether the interval that takes the cells for independent contains the mean TPR."""

    @property
    def jackknife_ExF(self) -> np.ndarray:
        """Whether the jackknife interval contains the mean TPR over experiments."""
        return np.abs(self.tpr_ExF - self.tpr_ExF.mean(axis=0)) <= self.margin_ExF


def coverage(
    strategy: str, models: int, samples: int, shift: float, experiments: int, *, pairs: bool = False
) -> Coverage:
    """Draws models repeatedly, and computes intervals of the TPR over all models and samples.

    Args:
      strategy: as for `rates`.
      models: number of models; each is attacked with the others.
      samples: number of samples, which are the same in all experiments.
      shift: SD of the part of the loss that all samples of a model share, in SDs of the other part.
      experiments: number of experiments.
      pairs: whether models 2i and 2i + 1 have complementary subsets.
    """
    population = np.random.default_rng(1)
    gap_N = np.abs(population.normal(0.8, 0.6, samples))
    sd_N, mean_N = population.uniform(0.1, 0.4, samples), population.normal(3, 0.5, samples)
    rng = np.random.default_rng([models, samples, pairs])
    group_M = stats.model_groups(models)
    kept_M_of_parts = [np.full(models, True), *(group_M != g for g in range(group_M.max() + 1))]
    tpr, margin, counts = [], [], []
    for _ in range(experiments):
        member_MxN = rng.random((models, samples)) < 0.5
        if pairs:
            member_MxN[1::2] = ~member_MxN[::2]
        noise_MxN = rng.standard_normal((models, samples)) + shift * rng.standard_normal(
            (models, 1)
        )
        loss_MxN = mean_N + sd_N * (noise_MxN - gap_N * member_MxN)
        results = [
            rates(strategy, loss_MxN[kept_M], member_MxN[kept_M]) for kept_M in kept_M_of_parts
        ]
        value_A1xF = np.array([result.tpr_F for result in results])
        tpr.append(value_A1xF[0])
        margin.append(
            [stats.jackknife_margin(value_A1[:, None, None]) for value_A1 in value_A1xF.T]
        )
        counts.append((results[0].called_in_F, np.full(len(FPRS), results[0].in_cells)))
    mean_F = np.mean(tpr, axis=0)
    called_ExF, cells_ExF = np.swapaxes(counts, 0, 1)
    low_ExF, high_ExF = stats.clopper_pearson(called_ExF, cells_ExF)
    return Coverage(np.array(tpr), np.array(margin), (low_ExF <= mean_F) & (mean_F <= high_ExF))


def rates(strategy: str, loss_MxN: np.ndarray, member_MxN: np.ndarray) -> stats.PooledRates:
    """Attacks each model with the others, and returns the rates over all of them.

    Args:
      strategy: "naive", one threshold for the scores of LiRA; "standardized", one for standardized losses; or
        "predictive", the threshold for the number of references.
      loss_MxN: losses.
      member_MxN: whether each sample is a member.
    """
    if strategy == "naive":
        score_MxN = stats.lira_leave_one_out(loss_MxN, member_MxN)
        return stats.pooled_rates(
            score_MxN, member_MxN, stats.pooled_threshold(score_MxN, member_MxN, FPRS)
        )
    scores = stats.standardized_leave_one_out(loss_MxN, member_MxN)
    if strategy == "predictive":
        threshold = stats.predictive_threshold(scores.count_out_MxN, FPRS)
    else:
        threshold = stats.pooled_threshold(scores.score_MxN, member_MxN, FPRS)
    return stats.pooled_rates(scores.score_MxN, member_MxN, threshold)


def intervals(experiments: int) -> None:
    """Prints the coverage of intervals of a TPR over all models and samples."""
    print(
        "| strategy | models | subsets | shift | FPR | mean TPR | its SD | mean margin | jackknife | binomial |\n"
        f"|{'---|' * 10}"
    )
    designs = [
        *(("standardized", models, 0.3, False) for models in (16, 32, 64)),
        ("standardized", 32, 0.0, False),
        ("standardized", 32, 0.3, True),
        ("predictive", 32, 0.3, False),
        ("naive", 32, 0.3, False),
    ]
    for strategy, models, shift, pairs in designs:
        result = coverage(strategy, models, 300, shift, experiments, pairs=pairs)
        for f, fpr in enumerate(FPRS):
            subsets = "complements" if pairs else "independent"
            print(
                f"| {strategy} | {models} | {subsets} | {shift} | {percent(fpr)} "
                f"| {result.tpr_ExF[:, f].mean():.3f} | {result.tpr_ExF[:, f].std():.4f} "
                f"| {result.margin_ExF[:, f].mean():.4f} | {percent(result.jackknife_ExF[:, f].mean())} "
                f"| {percent(result.binomial_ExF[:, f].mean())} |",
                flush=True,
            )


def power() -> None:
    """Prints the TPR of standardized losses and of the likelihood ratio, with known moments."""
    print(
        "| gap | SD IN / SD OUT | FPR | TPR, standardized | TPR, likelihood ratio |\n|---|---|---|---|---|"
    )
    rng = np.random.default_rng(3)
    one = np.ones(1)
    count = np.full(1, 2)
    for gap in (0.5, 1.5):
        for sd_in in (0.5, 0.8, 1.0, 1.25, 2.0):
            gaussians = stats.LiraGaussians(-gap * one, sd_in**2 * one, count, 0 * one, one, count)
            exact_F = stats.gaussian_tpr(gaussians, FPRS)[:, 0]
            loss_2xT = np.stack(
                [sd_in * rng.standard_normal(_DRAWS) - gap, rng.standard_normal(_DRAWS)]
            )
            in_T, out_T = stats.lira_from_gaussians(loss_2xT.reshape(-1, 1), gaussians).reshape(
                2, -1
            )
            for fpr, exact in zip(FPRS, exact_F, strict=True):
                lira = np.mean(in_T >= stats.threshold_at_fpr(out_T, fpr))
                print(f"| {gap} | {sd_in} | {percent(fpr)} | {exact:.4f} | {lira:.4f} |")


def spread() -> None:
    """Prints how much the FPR varies over samples, without binomial noise."""
    print(
        "| losses | score | models | targets | SD of the true FPRs, or excess variance | binomial variance |\n"
        "|---|---|---|---|---|---|"
    )
    samples, fpr = 20_000, 0.1
    for losses in ("noise", "gaps and SDs differ"):
        for models in (16, 32, 128):
            rng = np.random.default_rng([models, len(losses)])
            member_TxN = rng.random((2 * models, samples)) < 0.5
            loss_TxN = rng.standard_normal((2 * models, samples))
            if losses != "noise":
                in_sd_N = rng.uniform(0.7, 1.3, samples)
                gap_N = np.abs(rng.normal(0.8, 0.6, samples))
                loss_TxN = np.where(member_TxN, in_sd_N * loss_TxN - gap_N, loss_TxN)
            references = loss_TxN[:models], member_TxN[:models]
            gaussians = stats.fit_gaussians(*references)
            inside = stats.standardized_leave_one_out(*references).score_MxN
            outside = stats.standardized_scores(loss_TxN[models:], gaussians)
            lira = stats.lira_from_gaussians(loss_TxN[models:], gaussians)
            for score, targets, score_MxN, member_MxN in (
                ("standardized", "the references", inside, member_TxN[:models]),
                ("standardized", "new models", outside, member_TxN[models:]),
                ("LiRA", "new models", lira, member_TxN[models:]),
            ):
                threshold_F = stats.pooled_threshold(score_MxN, member_MxN, fpr)
                by_sample = stats.rates_by_sample(score_MxN, member_MxN, threshold_F)
                variance = stats.rate_spread(by_sample.called_out_FxN[0], by_sample.out_N).variance
                shown = f"SD {np.sqrt(variance):.3f}" if variance > 0 else f"{variance:.4f}"
                binomial = fpr * (1 - fpr) / by_sample.out_N.mean()
                print(f"| {losses} | {score} | {models} | {targets} | {shown} | {binomial:.4f} |")


def estimated_sign() -> None:
    """Prints the FPR of samples without an effect if the direction is estimated."""
    print(
        "| IN and OUT references | FPR | known direction | estimated | skew-normal |\n|---|---|---|---|---|"
    )
    for n in (4, 16, 64, 256):
        rng = np.random.default_rng(n)
        mean_in_N, mean_out_N = rng.normal(0, 1 / np.sqrt(n), (2, _DRAWS))
        one_N, count_N = np.ones(_DRAWS), np.full(_DRAWS, n)
        gaussians = stats.LiraGaussians(mean_in_N, one_N, count_N, mean_out_N, one_N, count_N)
        loss_N = rng.standard_normal(_DRAWS)
        scores = [
            stats.standardized_scores(loss_N, gaussians, direction=d)
            for d in ("lower", "estimated")
        ]
        for fpr in (0.01, 0.1):
            t = scipy.stats.norm.isf(fpr)
            known, estimated = (np.mean(score >= t) for score in scores)
            exact = scipy.stats.skewnorm.sf(t / np.sqrt(1 + 1 / n), 1 / np.sqrt(2 * n + 1))
            print(
                f"| {n} | {percent(fpr)} | {percent(known)} | {percent(estimated)} | {percent(float(exact))} |"
            )


def pairs(runs: int = 200) -> None:
    """Prints rates of standardized losses on noise if the subsets are pairs of complements."""
    print(
        "| models | direction | left out | AUC | TPR at 1% FPR | TPR at 10% FPR |\n"
        "|---|---|---|---|---|---|"
    )
    directions: tuple[stats.Direction, ...] = ("lower", "estimated")
    for models in (8, 16, 32):
        for direction in directions:
            for left_out in ("the pair", "the target only"):
                rates_Ex3 = rates_on_noise(models, direction, left_out == "the pair", runs)
                error_3 = rates_Ex3.std(axis=0) / np.sqrt(runs)
                cells = (
                    f"{mean:.4f} ± {error:.4f}"
                    for mean, error in zip(rates_Ex3.mean(axis=0), error_3, strict=True)
                )
                print(f"| {models} | {direction} | {left_out} | {' | '.join(cells)} |", flush=True)


def rates_on_noise(
    models: int, direction: stats.Direction, pairs: bool, runs: int, samples: int = 512
) -> np.ndarray:
    """Returns the AUC and the TPRs at 1% and 10% FPR of each run, over all models and samples.

    Args:
      models: number of models; the subsets of 2i and 2i + 1 are complements.
      direction: as for `standardized_scores`.
      pairs: whether both models of the target's pair are left out, or the target only.
      runs: number of runs.
      samples: number of samples.
    """
    rng = np.random.default_rng([models, samples])
    results = []
    index_M = np.arange(models)
    design = stats.Design(index_M // 2 if pairs else index_M, index_M)
    for _ in range(runs):
        member_MxN = rng.random((models, samples)) < 0.5
        member_MxN[1::2] = ~member_MxN[::2]
        loss_MxN = rng.standard_normal((models, samples))
        score_MxN = stats.standardized_leave_one_out(
            loss_MxN, member_MxN, direction=direction, design=design
        ).score_MxN
        points = stats.tpr_at_fpr(score_MxN.ravel(), member_MxN.ravel(), [0.01, 0.1])
        results.append([points.auc_T[0], *points.tpr_TxF[0]])
    return np.array(results)


def finite_population() -> None:
    """Prints the ratio of empirical and analytical standard deviations over subsets of one population."""
    print(
        "| f | sqrt(1 - f) | IN: mean ratio | its SD | OUT: mean ratio | its SD |\n|---|---|---|---|---|---|"
    )
    for share in (0.125, 0.25, 0.5, 0.75):
        result = stats.simulate_finite_population(training_samples=round(1000 * share))
        ratios = (
            result.empirical_sd_in_N / result.analytical_sd_in_N,
            result.empirical_sd_out_N / result.analytical_sd_out_N,
        )
        cells = (f"{ratio_N.mean():.4f} | {ratio_N.std():.3f}" for ratio_N in ratios)
        print(f"| {share} | {np.sqrt(1 - share):.4f} | {' | '.join(cells)} |")


def cost(samples: int = 2**20, models: int = 128) -> None:
    """Prints time and memory of each function, with losses and scores in memory maps."""
    print(f"| {models} x {samples:,} scores | seconds | peak memory, MiB |\n|---|---|---|")
    shape = models, samples
    with tempfile.TemporaryDirectory() as folder:
        member_MxN = np.memmap(Path(folder) / "member", np.bool_, "w+", shape=shape)
        loss_MxN = np.memmap(Path(folder) / "loss", np.float32, "w+", shape=shape)
        score_MxN = np.memmap(Path(folder) / "score", np.float64, "w+", shape=shape)
        rng = np.random.default_rng(0)
        blocks = [slice(low, min(low + _BLOCK, samples)) for low in range(0, samples, _BLOCK)]
        for block in blocks:
            member_MxC = rng.random(member_MxN[:, block].shape, np.float32) < 0.5
            noise_MxC = rng.standard_normal(member_MxC.shape, np.float32)
            member_MxN[:, block], loss_MxN[:, block] = (
                member_MxC,
                3 + 0.2 * (noise_MxC - member_MxC),
            )

        def standardize() -> None:
            for block in blocks:
                part = stats.standardized_leave_one_out(loss_MxN[:, block], member_MxN[:, block])
                score_MxN[:, block] = part.score_MxN

        cells = score_MxN, member_MxN
        measured("standardized_leave_one_out, in blocks", standardize)
        for rule in ("conservative", "linear"):
            measured(
                f"pooled_threshold, {rule}",
                lambda rule=rule: stats.pooled_threshold(*cells, FPRS, rule=rule),
            )
        for rule in ("conservative", "linear"):
            measured(
                f"per_sample_threshold, {rule}",
                lambda rule=rule: stats.per_sample_threshold(*cells, FPRS, rule=rule),
            )
        pooled_F = stats.pooled_threshold(*cells, FPRS)
        each_FxN = stats.per_sample_threshold(*cells, FPRS)
        measured("pooled_rates, pooled thresholds", lambda: stats.pooled_rates(*cells, pooled_F))
        measured(
            "pooled_rates, thresholds of samples", lambda: stats.pooled_rates(*cells, each_FxN)
        )
        measured("rates_by_sample", lambda: stats.rates_by_sample(*cells, pooled_F))
        measured("fit_student_t", lambda: stats.fit_student_t(*cells))


@dataclasses.dataclass(frozen=True)
class _OneBlock:
    """Losses of references in place of the inputs of an attack."""

    loss_MxN: np.ndarray
    member_MxN: np.ndarray

    def blocks(self) -> Iterator[Block]:
        """Yields all samples."""
        none_N = np.zeros(self.loss_MxN.shape[1])
        at = slice(0, len(none_N))
        yield Block(at, self.loss_MxN[:0], self.loss_MxN, self.member_MxN, {}, none_N, none_N)

    def ids(self, sample_slice: slice) -> np.ndarray:
        """Returns the ids of samples."""
        return np.arange(sample_slice.start, sample_slice.stop)


def table_intervals(experiments: int, models: int = 16, samples: int = 300) -> None:
    """Prints the coverage of the intervals of pooling.csv, over new models and new samples."""
    values: dict[tuple[str, float], list[tuple[float, float]]] = {}
    with ThreadPoolExecutor(1) as pool:
        for experiment in range(experiments):
            rng = np.random.default_rng([7, experiment])
            gap_N, sd_N = rng.gamma(2, 0.4, samples), rng.uniform(0.5, 1.5, samples)
            member_MxN = rng.random((models, samples)) < 0.5
            shift_Mx1 = 0.3 * rng.standard_normal((models, 1))
            noise_MxN = rng.standard_normal((models, samples)) + shift_Mx1
            loss_MxN = sd_N * (noise_MxN - gap_N * member_MxN)
            inputs = cast(AttackInputs, _OneBlock(loss_MxN, member_MxN))
            table, _ = attacks_pooling._study(
                inputs,
                np.arange(samples),
                LiraSettings(),
                stats.design_of(member_MxN),
                [0.01, 0.05],
                pool,
            )
            rows = table[(table["models"] == models) & ~table["oracle"]]
            for row in rows.to_dict("records"):
                at = str(row["strategy"]), float(row["fpr"])
                values.setdefault(at, []).append((row["tpr"], row["margin"]))
    print(
        "| strategy | FPR | mean TPR | its SD | mean margin | coverage |\n|---|---|---|---|---|---|"
    )
    for (strategy, fpr), pairs in values.items():
        tpr_E, margin_E = np.array(pairs).T
        if np.isnan(margin_E).all():
            continue
        covered = np.abs(tpr_E - tpr_E.mean()) <= margin_E
        print(
            f"| {strategy} | {fpr:.0%} | {tpr_E.mean():.3f} | {tpr_E.std():.4f} | {np.nanmean(margin_E):.4f} "
            f"| {covered.mean():.1%} |"
        )


class _Samples:
    """The part of a population that the stage uses."""

    def __init__(self, samples: int) -> None:
        self.document_N = np.arange(samples)

    def column(self, name: str) -> np.ndarray:
        return np.ones(len(self.document_N))


def stage(samples: int = 2**20, models: int = 128) -> None:
    """Prints time and memory of what attack.leave_one_out adds to `lm-mia attack`, at the default FPRs."""
    print(
        f"| {models} references, {samples:,} samples | seconds | peak memory, MiB |\n|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        store = synthetic.write_store(Path(folder), samples, models, 2)
        c = config.Attack(references=models, replicas=2, leave_one_out=True)
        population, tables = cast(Population, _Samples(samples)), Path(folder) / "tables"
        tables.mkdir()
        times = [time.monotonic()]

        def show(label: str, done: float, total: float) -> None:
            times.append(time.monotonic())

        results = Results(tables)
        work = Work(pool, tables, show, print)
        roles = ModelRoles(tuple(range(models)), (), (0, 1))
        view = SimpleNamespace(store=store, attacked=population, roles=roles, work=work)
        view.references = [*map(subsets.reference, roles.references)]
        view.replicas = [*map(subsets.replica, roles.replicas)]
        view.present = [*view.references, *view.replicas]
        settings = {name: getattr(c, name) for name in settings_of(attacks_pooling.compute)}
        measured(
            "pooling.csv, its intervals, and vulnerability.parquet",
            lambda: attacks_pooling.compute(
                cast(StudyView, view),
                lambda name, table: results.write({"what": name}, table),
                **settings,
            ),
        )
        names = "fewer models and intervals", "all models and samples", "rates of samples"
        for name, (start, end) in zip(names, itertools.pairwise(times[1:]), strict=True):
            print(f"| of this: {name} | {end - start:.1f} | |")


def measured(name: str, function: Callable[[], object]) -> None:
    """Prints the running time of a function and by how much it raises the memory that is not a memory map."""
    before, peak, done = private_memory(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, private_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    function()
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    print(f"| {name} | {seconds:.1f} | {max(peak - before, 0) / 2**20:.0f} |", flush=True)


def private_memory() -> int:
    """Returns the bytes of resident memory that belong to no file."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


def percent(rate: float | np.floating) -> str:
    """Formats a rate with three significant digits."""
    return f"{100 * rate:.3g}%"


def sections(experiments: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields the name of each section and the function that prints it."""
    yield "thresholds", thresholds
    yield "intervals", lambda: intervals(experiments)
    yield "power", power
    yield "spread", spread
    yield "estimated_sign", estimated_sign
    yield "pairs", pairs
    yield "finite_population", finite_population
    yield "cost", cost
    yield "table_intervals", lambda: table_intervals(experiments)
    yield "stage", stage


def main() -> None:
    """Prints the tables of the given sections."""
    parser = argparse.ArgumentParser(description="Simulates rates at pooled thresholds.")
    parser.add_argument("section", nargs="*", default=[], help="default: all")
    parser.add_argument("--experiments", type=int, default=400)
    args = parser.parse_args()
    for name, print_table in sections(args.experiments):
        if not args.section or name in args.section:
            print(f"\n{name}\n")
            print_table()


if __name__ == "__main__":
    main()
