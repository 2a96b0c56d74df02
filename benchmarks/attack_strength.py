"""Compares all attacks at every number of references, on targets with training subsets of their own.

    python -m benchmarks attack_strength WORKDIR --recipes=tuning|testing|NAME,... [--csv FILE]
    python -m benchmarks attack_strength --read FILE

WORKDIR holds the recipes of configs/strongmia.py:cpu, trained and scored. Prints Markdown tables: means over recipes by
number of references; the difference between the new attacks and the best of the others, LiRA and RMIA, on the samples
that both score; the numbers of references that reach the same AUC and TPR; and the numbers of each recipe with
intervals. FILE gets all numbers of all recipes. Takes a few minutes for the 13 recipes for testing on one core.

Intervals cover targets, samples and, where there are enough of them, references, as those of claims do
(analysis.claims.jackknife).

N2: samples of the population, M: models, T: targets, R: references, K: covariates, H1: all samples, then each half.
"""

import argparse
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.stats
from claim_numbers import reference_parts

import lm_mia
from analysis.claims.jackknife import Jackknife
from lm_mia import stats
from lm_mia.attacks.inputs import sample_covariates
from lm_mia.printing import plural

TUNING = (
    "small",
    "distinct",
    "epochs-44M",
    "epochs-140M-small",
    "data-384",
    "data-768",
    "chinchilla-44M",
)
TESTING = (
    "main",
    "fixed-10M",
    "fixed-44M",
    "fixed-302M",
    "fixed-1018M",
    "schedule-linear",
    "schedule-nodecay",
    "schedule-noclip",
    "epochs-140M",
    "chinchilla-10M",
    "data-192",
    "chinchilla-302M",
    "data-3456",
)
TARGETS = 8
COUNTS = (2, 4, 8, 16, 32, 64)
FPRS = (0.01, 0.05)
METRICS = ("AUC", *(f"TPR at {100 * fpr:g}%" for fpr in FPRS))
RMIA_SAMPLES = 10_000
NEW = ("shrunk", "shrunk offline", "stacked")


@dataclasses.dataclass(frozen=True)
class Losses:
    """The losses of the models of a recipe; the last `TARGETS` models are attacked."""

    loss_MxN2: np.ndarray
    member_MxN2: np.ndarray
    covariate_N2xK: np.ndarray

    @property
    def num_references(self) -> int:
        """The number of models that are not attacked."""
        return len(self.loss_MxN2) - TARGETS

    def attack(self, attack: "Attack", index_R: np.ndarray) -> np.ndarray:
        """Returns score_TxN2 of the targets, attacked with some of the other models."""
        references = self.loss_MxN2[index_R], self.member_MxN2[index_R]
        return attack(self.loss_MxN2[-TARGETS:], *references, self.covariate_N2xK)


Attack = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def _rmia(
    x_TxN: np.ndarray, loss_RxN: np.ndarray, member_RxN: np.ndarray, offline: bool
) -> np.ndarray:
    z = slice(min(RMIA_SAMPLES, x_TxN.shape[1]))
    signals = -x_TxN, -loss_RxN, -x_TxN[:, z], -loss_RxN[:, z]
    if not offline:
        return stats.rmia(*signals)
    return stats.rmia(
        *signals,
        offline=True,
        reference_member_MxN=member_RxN,
        reference_member_MxZ=member_RxN[:, z],
    )


ATTACKS: dict[str, Attack] = {
    "LiRA": lambda x, loss, member, _: stats.lira(x, loss, member),
    "LiRA pooled": lambda x, loss, member, _: stats.lira(x, loss, member, variance="pooled"),
    "LiRA offline": lambda x, loss, member, _: stats.lira(x, loss, member, offline=True),
    "LiRA pooled offline": lambda x, loss, member, _: stats.lira(
        x, loss, member, variance="pooled", offline=True
    ),
    "RMIA": lambda x, loss, member, _: _rmia(x, loss, member, offline=False),
    "RMIA offline": lambda x, loss, member, _: _rmia(x, loss, member, offline=True),
    "RMIA simple": lambda x, loss, member, _: stats.rmia_simple(-x, -loss),
    "calibrated loss": lambda x, loss, member, _: stats.reference_calibrated_loss(x, loss),
    "shrunk": lambda x, loss, member, c: stats.shrunk_lira(x, loss, member, covariate_NxK=c),
    "shrunk offline": lambda x, loss, member, c: stats.shrunk_lira(
        x, loss, member, covariate_NxK=c, offline=True
    ),
    "stacked": lambda x, loss, member, c: stats.stacked_lira(x, loss, member, covariate_NxK=c),
}
OTHERS = tuple(name for name in ATTACKS if name not in NEW)


def read_losses(workdir: Path, name: str) -> Losses:
    """Reads the references of a recipe at the end of training, and the covariates of its samples."""
    scores = lm_mia.open(workdir).recipes[name].scores()
    scores = scores.isel(checkpoint=-1) if "checkpoint" in scores.dims else scores
    is_reference = scores.role.values == "reference"
    return Losses(
        scores.loss.values[is_reference].astype(float),
        scores.member.values[is_reference],
        sample_covariates(lambda name: scores[name].values),
    )


def measure(member_TxN2: np.ndarray, scores: Sequence[np.ndarray]) -> dict[str, Jackknife]:
    """Returns each of `METRICS` of an attack, with what its interval needs.

    Args:
      member_TxN2: the members of each target.
      scores: score_TxN2 with all references of each of `reference_parts`; samples without a score are left out.
    """
    group_N2 = stats.sample_groups(np.arange(member_TxN2.shape[1]))
    values: dict[str, list[np.ndarray]] = {metric: [] for metric in METRICS}
    for score_TxN2 in scores:
        points = stats.tpr_at_fpr(score_TxN2, member_TxN2, FPRS)
        auc_TxH, tpr_TxHxF = stats.rates_of_halves(score_TxN2, member_TxN2, group_N2, FPRS)
        values["AUC"].append(np.column_stack([points.auc_T, auc_TxH]))
        for f, metric in enumerate(METRICS[1:]):
            values[metric].append(np.column_stack([points.tpr_TxF[:, f], tpr_TxHxF[..., f]]))
    fixed = () if len(values["AUC"]) > 1 else ("references",)
    return {m: Jackknife.from_attacks(v[0], v[1:], "", fixed) for m, v in values.items()}


def recipe_rows(losses: Losses, name: str) -> Iterator[dict[str, object]]:
    """Yields each metric of each attack at each number of references, and differences between attacks."""
    nonmembers = int((~losses.member_MxN2[0]).sum())
    member_TxN2 = losses.member_MxN2[-TARGETS:]
    for count in (c for c in COUNTS if c <= losses.num_references):
        parts = reference_parts(count, losses.num_references)
        scores = {
            attack: [losses.attack(function, part_R) for part_R in parts]
            for attack, function in ATTACKS.items()
        }
        measured = {attack: measure(member_TxN2, s) for attack, s in scores.items()}
        scored = {attack: float(np.mean(~np.isnan(s))) for attack, s in scores.items()}

        def on_common_samples(
            attack: str, other: str, scores: dict[str, list[np.ndarray]] = scores
        ) -> dict[str, Jackknife]:
            pairs = zip(scores[attack], scores[other], strict=True)
            return measure(
                member_TxN2, [np.where(np.isnan(other), np.nan, own) for own, other in pairs]
            )

        for metric in METRICS:
            value = {a: m[metric] for a, m in measured.items() if not math.isnan(m[metric].value)}

            def best(names: Sequence[str], value: dict[str, Jackknife] = value) -> str:
                return max((n for n in names if n in value), key=lambda n: value[n].value)

            numbers = {(attack, ""): number for attack, number in value.items()}
            pairs = itertools.product(NEW, (best(OTHERS), best(("LiRA", "LiRA pooled")), "RMIA"))
            roles = itertools.cycle(("best other", "LiRA", "RMIA"))
            minus = {}
            for (new, old), role in zip(pairs, roles, strict=False):
                if new in value:
                    # With few references, LiRA has a score only for some samples, which are easier.
                    own, other = on_common_samples(new, old), on_common_samples(old, new)
                    numbers[new, role] = own[metric] - other[metric]
                    minus[new, role] = old
            for (attack, role), number in numbers.items():
                estimate = number.estimate()
                yield {
                    "recipe": name,
                    "nonmembers": nonmembers,
                    "references": count,
                    "metric": metric,
                    "attack": attack,
                    "minus": role,
                    "minus_attack": minus.get((attack, role), ""),
                    "value": number.value,
                    "low": estimate.low,
                    "high": estimate.high,
                    "fixed": " and ".join(number.not_covered),
                    "scored": scored[attack],
                }


def print_means(table: pd.DataFrame) -> None:
    """Prints the mean of each metric over recipes by number of references.

    The share of the samples that have a score follows in brackets where it is below 99 %: such a number is of other
    samples than those above and below it.
    """
    values = table[table["minus"] == ""]
    scored = values.pivot_table(index="attack", columns="references", values="scored")
    for metric, rows in values.groupby("metric", sort=False):
        mean = rows.pivot_table(index="attack", columns="references", values="value", sort=False)
        mean = mean.reindex([a for a in ATTACKS if a in mean.index])
        recipes = rows.groupby("references")["recipe"].nunique()
        head = [f"{c} references ({plural(int(recipes[c]), 'recipe')})" for c in mean.columns]
        print(f"\n{metric}, mean over recipes:\n")
        print_table(
            ["attack", *head],
            (
                [
                    attack,
                    *(
                        f"{value:.3f}" + (f" ({100 * share:.0f} %)" if share < 0.99 else "")
                        for value, share in zip(row, scored.loc[attack], strict=True)
                    ),
                ]
                for attack, row in zip(mean.index, mean.to_numpy(), strict=True)
            ),
        )


def _order(column: pd.Series) -> pd.Series:
    """Sorts "best other" before LiRA and RMIA."""
    return column.replace("best other", "") if column.name == "minus" else column


def print_differences(table: pd.DataFrame) -> None:
    """Prints how the new attacks compare with the others: mean, worst, and what the intervals say."""
    differences = table[(table["minus"] != "") & (table["attack"] != "shrunk offline")]
    is_main = differences["metric"].isin(METRICS[:2]) & (differences["minus"] == "best other")
    is_auc_of_many = (differences["metric"] == "AUC") & (differences["references"] >= 16)
    differences = differences[is_main | is_auc_of_many].sort_values(
        ["metric", "minus", "attack", "references"], key=_order
    )
    keys = ["metric", "attack", "minus", "references"]
    lines = []
    for (metric, attack, role, count), rows in differences.groupby(keys, sort=False):
        precise = rows[(rows["high"] - rows["low"]) / 2 <= 0.01]
        lines.append(
            [
                metric,
                attack,
                role,
                count,
                len(rows),
                f"{rows['value'].mean():+.4f}",
                f"{rows['value'].min():+.4f}",
                f"{(rows['low'] > 0).sum()}",
                f"{(rows['high'] < 0).sum()}",
                len(precise),
                f"{precise['low'].min():+.4f}" if len(precise) else "",
            ]
        )
    print("\nDifferences between a new attack and others:\n")
    print_table(
        [
            "metric",
            "attack",
            "minus",
            "references",
            "recipes",
            "mean",
            "smallest",
            "above 0",
            "below 0",
            "half-width at most 0.01",
            "their smallest lower end",
        ],
        lines,
    )


def print_ratios(table: pd.DataFrame) -> None:
    """Prints the TPR at 1% relative to the best other attack, over recipes with 1,024 non-members or more."""
    rows = table[
        (table["metric"] == METRICS[1]) & (table["minus"] == "") & (table["nonmembers"] >= 1024)
    ]
    lines = []
    for count, at_count in rows.groupby("references"):
        tpr = at_count.pivot_table(index="recipe", columns="attack", values="value")
        best = tpr[[a for a in OTHERS if a in tpr]].max(axis=1)
        for attack in NEW:
            ratio = tpr[attack] / best
            whole = tpr[attack].mean() / best.mean()
            text = f"{ratio.min():.2f} to {ratio.max():.2f}"
            lines.append([count, attack, len(ratio), f"{whole:.2f}", f"{ratio.mean():.2f}", text])
    print("\nTPR at 1%, relative to the best other attack on each recipe:\n")
    print_table(["references", "attack", "recipes", "ratio of means", "mean ratio", "range"], lines)


def print_needed(table: pd.DataFrame) -> None:
    """Prints how many references each attack needs for the same AUC and TPR, interpolated over log2 references."""
    values = table[table["minus"] == ""]
    lines = []
    for metric, (name, level_count) in itertools.product(
        METRICS[:2], itertools.product(("LiRA", "RMIA"), (8, 32))
    ):
        for attack in (a for a in ("LiRA", "RMIA", "shrunk", "stacked") if a != name):
            needed = []
            for _, rows in values[values["metric"] == metric].groupby("recipe", sort=False):
                curves = rows.pivot_table(index="references", columns="attack", values="value")
                curves["LiRA"] = curves[["LiRA", "LiRA pooled"]].max(axis=1)
                needed.append(
                    needed_references(curves[attack].dropna(), float(curves[name][level_count]))
                )
            needed = np.sort(needed)
            low, high = median_interval(len(needed))
            lines.append(
                [
                    metric,
                    f"{name} with {level_count}",
                    attack,
                    describe(np.median(needed)),
                    f"{describe(needed[low])} to {describe(needed[high])}",
                    int((needed <= COUNTS[0]).sum()),
                    int(np.isinf(needed).sum()),
                    len(needed),
                ]
            )
    print("\nReferences needed for the same result:\n")
    print_table(
        [
            "metric",
            "as",
            "attack",
            "median",
            "95% interval of the median",
            f"recipes with {COUNTS[0]} or fewer",
            "recipes where the largest number does not suffice",
            "recipes",
        ],
        lines,
    )


def print_recipes(table: pd.DataFrame) -> None:
    """Prints the three metrics of each attack on each recipe, and differences with their intervals."""
    values = table[table["minus"] == ""]
    cells = values.assign(value=100 * values["value"]).pivot_table(
        index=["recipe", "references"], columns=["attack", "metric"], values="value", sort=False
    )
    lines = []
    for (recipe, count), row in zip(cells.index, cells.to_dict("records"), strict=True):
        numbers = (" / ".join(f"{row[a, m]:.1f}" for m in METRICS) for a in ATTACKS)
        lines.append([recipe, count, *numbers])
    print(f"\n{', '.join(METRICS)}, in percent:\n")
    print_table(["recipe", "references", *ATTACKS], lines)
    shown = table[(table["minus"] != "") & (table["attack"] != "shrunk offline")]
    for metric in METRICS[:2]:
        rows = shown[shown["metric"] == metric].copy()
        rows["cell"] = [
            f"{v:+.3f} ({low:+.3f}, {high:+.3f})" + ("*" if fixed else "")
            for v, low, high, fixed in rows[["value", "low", "high", "fixed"]].itertuples(
                index=False
            )
        ]
        rows["column"] = rows["attack"] + " minus " + rows["minus"]
        cells = rows.pivot(index=["recipe", "references"], columns="column", values="cell")
        cells = cells.loc[list(dict.fromkeys(zip(rows["recipe"], rows["references"], strict=True)))]
        print(f"\n{metric}, differences with 95% intervals (*: the references are held fixed):\n")
        lines = ([*key, *row] for key, row in zip(cells.index, cells.to_numpy(), strict=True))
        print_table(["recipe", "references", *cells.columns], lines)


def median_interval(count: int) -> tuple[int, int]:
    """Returns the indices of the sorted values between which the median lies with a probability of 95% or more.

    They are the first and the last ones if there are too few values. The interval holds for any distribution.
    """
    low = max(int(scipy.stats.binom.ppf(0.025, count, 0.5)) - 1, 0)
    return low, count - 1 - low


def needed_references(curve: pd.Series, level: float) -> float:
    """Returns the smallest interpolated number of references that reaches a level; inf if none does."""
    count, value = curve.index.to_numpy(float), curve.to_numpy()
    if value[0] >= level:
        return count[0]
    for i in range(1, len(value)):
        if value[i] >= level:
            share = (level - value[i - 1]) / (value[i] - value[i - 1])
            return float(2 ** ((1 - share) * math.log2(count[i - 1]) + share * math.log2(count[i])))
    return math.inf


def describe(number: float) -> str:
    """Formats a number of references."""
    if math.isinf(number):
        return "more"
    return f"{COUNTS[0]} or fewer" if number <= COUNTS[0] else f"{number:.1f}"


def print_table(
    header: Sequence[str], lines: Iterator[Sequence[object]] | Sequence[Sequence[object]]
) -> None:
    """Prints a Markdown table."""
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for line in lines:
        print(f"| {' | '.join(map(str, line))} |", flush=True)


def main() -> None:
    """Measures or reads the numbers, and prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workdir", type=Path, nargs="?")
    parser.add_argument("--recipes", default="tuning", help="tuning, testing, or names")
    parser.add_argument("--csv", type=Path, help="file that gets the numbers of all recipes")
    parser.add_argument("--read", type=Path, help="a file that --csv wrote; nothing is measured")
    args = parser.parse_args()
    if (args.workdir is None) == (args.read is None):
        parser.error("give either WORKDIR or --read")
    if args.read:
        table = pd.read_csv(args.read, keep_default_na=False, na_values=["nan"])
    else:
        names = {"tuning": TUNING, "testing": TESTING}.get(args.recipes, args.recipes.split(","))
        rows = (row for name in names for row in recipe_rows(read_losses(args.workdir, name), name))
        table = pd.DataFrame(rows)
        if args.csv:
            table.to_csv(args.csv, index=False, float_format="%.5f", na_rep="nan")
    for print_part in (print_means, print_differences, print_ratios, print_needed, print_recipes):
        print_part(table)


if __name__ == "__main__":
    main()
