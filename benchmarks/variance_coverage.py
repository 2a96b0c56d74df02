"""How often the intervals of the decomposition of variance (open question 4) contain the true value.

    python -m benchmarks variance_coverage [--simulations=400] [--seed=0] [DESIGN ...]

The losses of targets with one training subset, crossed initializations and orders, and of references with subsets of
their own, are drawn from known distributions. The scores, the table of components and the intervals are computed by the
functions that `lm-mia attack` and the figure use. Prints a Markdown table for each design, with a row for each number.
A simulation of the designs with sets of 8 references takes about 1 second on one core.

The loss of a model on a sample is the sum of

- the level of the sample, which all models share;
- minus, for members, the gain of training on the sample, gamma distributed over samples;
- normal noise of the training subset, of the initialization, of the order, and of the pair of initialization and
  order. The noise of the subset is independent for every sample. Of the other noise, related samples share a part, from
  factors with weights of the sample.

The true value is that of the mean components over all simulations, since components are unbiased. Each simulation draws
new samples, models and references; all targets of a simulation have the same training subset.

I: initializations, J: orders, T: targets, M: references, S: sets of references, N: samples, K: factors.
"""

import argparse
import dataclasses
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd

from analysis.claims.compare import Estimate
from analysis.experiments.open import variance
from analysis.experiments.open.variance import Components, claims_about
from lm_mia import stats

FPR = 0.05
_FACTORS = 4
_NOISE_NATS, _GAIN_NATS = 0.1, 0.08
_SHARES = {"init": 0.38, "order": 0.17, "init_order": 0.35, "subset": 0.1}
"""Shares of the variance of the noise, about those of members at the setting cpu."""


@dataclasses.dataclass(frozen=True)
class Design:
    """The models and samples of an experiment."""

    inits: int
    orders: int
    sets: int
    references_per_set: int
    samples: int
    shared: float
    """The part of the variance of noise that related samples share."""


DESIGNS = {
    "cpu": Design(6, 8, 4, 8, 1_024, 0.5),
    "independent": Design(6, 8, 4, 8, 1_024, 0.0),
    "few": Design(4, 4, 4, 8, 1_024, 0.5),
    "paper": Design(8, 8, 4, 32, 1_024, 0.5),
}
"""Name -> design. cpu and paper have the models of these settings; independent and few differ from cpu in one way."""


def simulate_scores(design: Design, rng: np.random.Generator) -> variance.Scores:
    """Draws the losses of an experiment, and attacks all targets with each set of references."""
    samples, references = design.samples, design.sets * design.references_per_set
    level_N, gain_N = rng.normal(4, 0.5, samples), _GAIN_NATS * rng.gamma(2, 0.5, samples)
    weight_KxN = rng.normal(size=(_FACTORS, samples)) / math.sqrt(_FACTORS)

    def noise(component: str, *shape: int) -> np.ndarray:
        shared = rng.normal(size=(*shape, _FACTORS)) @ weight_KxN
        part = 0.0 if component == "subset" else design.shared
        own = rng.normal(size=shared.shape)
        scale = _NOISE_NATS * math.sqrt(_SHARES[component])
        return scale * (math.sqrt(part) * shared + math.sqrt(1 - part) * own)

    def subsets(models: int) -> np.ndarray:
        half_N = np.arange(samples) < samples // 2
        return np.stack([rng.permutation(half_N) for _ in range(models)])

    shape = design.inits, design.orders
    crossed_IxJxN = (
        noise("subset", 1, 1)
        + noise("init", design.inits, 1)
        + noise("order", 1, design.orders)
        + noise("init_order", *shape)
    )
    reference_MxN = np.sum([noise(component, references) for component in _SHARES], axis=0)
    member_N, reference_member_MxN = subsets(1)[0], subsets(references)
    member_TxN = np.concatenate(
        [np.broadcast_to(member_N, (math.prod(shape), samples)), reference_member_MxN]
    )
    noise_TxN = np.concatenate([crossed_IxJxN.reshape(-1, samples), reference_MxN])
    loss_TxN = level_N - gain_N * member_TxN + noise_TxN
    reference_MxN = loss_TxN[math.prod(shape) :]
    index_SxR = np.arange(references).reshape(design.sets, -1)
    score_SxTxN = np.array(
        [
            stats.lira(loss_TxN, reference_MxN[r], reference_member_MxN[r], variance="pooled")
            for r in index_SxR
        ]
    )
    set_M = np.repeat(np.arange(design.sets), design.references_per_set)
    return variance.Scores(loss_TxN, score_SxTxN, member_TxN, set_M, shape)


def simulate_components(
    design: Design, rng: np.random.Generator, pool: ThreadPoolExecutor
) -> Components:
    """Returns the components of an experiment, as the figure reads them."""
    scores = simulate_scores(design, rng)
    has_score_N = np.logical_not(np.isnan(scores.score_SxTxC).any(axis=(0, 1)))
    group_N = stats.sample_groups(np.arange(design.samples))
    table = variance.components_table(scores, has_score_N, group_N, FPR, pool)
    facts: dict[str, Any] = {
        "settings": {"replica_inits": design.inits, "orders_per_init": design.orders}
    }
    facts |= {"sets": design.sets, "references_per_set": design.references_per_set, "fpr": FPR}
    return Components.from_rows(table, facts)


def numbers(components: Components) -> dict[str, Estimate]:
    """Returns the numbers of the claims of the figure, and some of those that it draws."""
    found: dict[str, Estimate] = {}
    for claim in claims_about(components):
        assert claim.estimate is not None
        found[claim.finding.partition(":")[0]] = claim.estimate
    redrawn = {"order": ("order",), "initialization": ("init",), "references": ("references",)}
    for name, factors in redrawn.items():
        value_P = components.flip_rate("members", factors)
        found[f"Flip rate of members, {name} drawn anew"] = components.estimate(value_P)
    for quantity, component in (("loss", "init"), ("decision", "order"), ("decision", "subset")):
        value_P = components.share(quantity, "members", (component,))
        found[f"Share of the variance of a member's {quantity}, {component}"] = components.estimate(
            value_P
        )
    return found


def coverage(design: Design, simulations: int, seed: int) -> pd.DataFrame:
    """Returns a row for each number, with the number of intervals and how many of them contain the true value.

    Args:
      design: the design.
      simulations: the number of experiments.
      seed: of the random numbers.

    Returns:
      Columns number, truth, sd (of the estimates), standard_error (root mean square), covered and intervals.
    """
    components, estimates = [], []
    with ThreadPoolExecutor(1) as pool:
        for s in range(simulations):
            components.append(simulate_components(design, np.random.default_rng([seed, s]), pool))
            estimates.append(numbers(components[-1]))
    mean = {
        key: np.mean([c.value_P[key] for c in components], axis=0) for key in components[0].value_P
    }
    truth = numbers(dataclasses.replace(components[0], value_P=mean))
    rows = []
    for name, true in truth.items():
        column = [estimate[name] for estimate in estimates]
        given = [estimate for estimate in column if estimate.has_interval]
        rows.append(
            {
                "number": name,
                "truth": true.value,
                "sd": np.nanstd([estimate.value for estimate in column], ddof=1),
                "standard_error": math.sqrt(np.mean([e.standard_error**2 for e in given])),
                "covered": sum(e.low <= true.value <= e.high for e in given),
                "intervals": len(given),
            }
        )
    return pd.DataFrame(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table for each design."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("designs", nargs="*", metavar="DESIGN", help=", ".join(DESIGNS))
    parser.add_argument("--simulations", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    if unknown := set(args.designs) - set(DESIGNS):
        parser.error(f"unknown design: {', '.join(sorted(unknown))}")
    for name in args.designs or DESIGNS:
        design = DESIGNS[name]
        print(
            f"\n{name}: {design.inits} initializations, {design.orders} orders, {design.sets} sets of "
            f"{design.references_per_set} references, {design.shared:.0%} of the noise shared\n"
        )
        print(
            "| number | true value | SD | standard error | coverage, % | simulations without an interval, % |"
        )
        print("|---|---:|---:|---:|---:|---:|", flush=True)
        for row in coverage(design, args.simulations, args.seed).to_dict("records"):
            low, high = (
                100 * float(end) for end in stats.clopper_pearson(row["covered"], row["intervals"])
            )
            cells = (
                row["number"],
                *(f"{row[key]:.3f}" for key in ("truth", "sd", "standard_error")),
                f"{100 * row['covered'] / row['intervals']:.1f} [{low:.1f}, {high:.1f}]",
                f"{100 * (1 - row['intervals'] / args.simulations):.1f}",
            )
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
