"""Computes the AUC of attacks on noise, where it must be 0.5, by design and number of references, as a Markdown table.

    python benchmarks/noise.py [lira | shrunk] [--repetitions 400]

Losses do not depend on membership. A target is either a further model with a training subset of its own, or one of the
references, which is then left out; in the balanced design also together with its complement. The table of LiRA takes
about two minutes, that of shrunk and stacked LiRA five minutes with 200 repetitions.
"""

import argparse
import functools
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from lm_mia import stats
from lm_mia.data import subsets

SAMPLES = 2048
DESIGNS: tuple[subsets.Design, ...] = ("balanced", "exact", "bernoulli")
Attack = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
Family = Literal["lira", "shrunk"]
ATTACKS: dict[Family, dict[str, Attack]] = {
    "lira": {
        "pooled": functools.partial(stats.lira, variance="pooled"),
        "per_sample": functools.partial(stats.lira, variance="per_sample"),
    },
    "shrunk": {
        "shrunk": stats.shrunk_lira,
        "shrunk, offline": functools.partial(stats.shrunk_lira, offline=True),
        "stacked": stats.stacked_lira,
    },
}
REFERENCES: dict[Family, tuple[int, ...]] = {"lira": (4, 6, 8, 16, 32), "shrunk": (4, 8, 16, 64)}


def draw_loss(rng: np.random.Generator, models: int) -> np.ndarray:
    """Returns losses that do not depend on membership."""
    return rng.normal(4, 0.3, (models, SAMPLES))


def own_subset(rng: np.random.Generator, member_MxN: np.ndarray, attack: Attack, m: int) -> float:
    """Attacks a further model, which is trained on a random half of the samples, with all references."""
    member_N = rng.permutation(SAMPLES) < SAMPLES // 2
    loss_MxN = draw_loss(rng, len(member_MxN))
    del m
    return _auc(draw_loss(rng, 1)[0], loss_MxN, member_MxN, member_N, attack)


def one_left_out(rng: np.random.Generator, member_MxN: np.ndarray, attack: Attack, m: int) -> float:
    """Attacks model m with all others."""
    loss_MxN = draw_loss(rng, len(member_MxN))
    others = np.delete(loss_MxN, m, 0), np.delete(member_MxN, m, 0)
    return _auc(loss_MxN[m], *others, member_MxN[m], attack)


def pair_left_out(
    rng: np.random.Generator, member_MxN: np.ndarray, attack: Attack, m: int
) -> float:
    """Attacks model m with the models of all other pairs (2i, 2i + 1)."""
    loss_MxN, pair = draw_loss(rng, len(member_MxN)), [m, m ^ 1]
    others = np.delete(loss_MxN, pair, 0), np.delete(member_MxN, pair, 0)
    return _auc(loss_MxN[m], *others, member_MxN[m], attack)


def _auc(
    loss_N: np.ndarray,
    reference_MxN: np.ndarray,
    member_MxN: np.ndarray,
    member_N: np.ndarray,
    attack: Attack,
) -> float:
    score_1xN = attack(loss_N, reference_MxN, member_MxN)
    return float(stats.auc(score_1xN, member_N).auc_T[0])


Target = Callable[[np.random.Generator, np.ndarray, Attack, int], float]


def mean_auc(
    target: Target, references: int, design: subsets.Design, attack: Attack, repetitions: int
) -> str:
    """Returns the mean AUC and its standard error; the subsets are new in every repetition."""
    rng, aucs = np.random.default_rng([references, len(design)]), []
    for repetition in range(repetitions):
        first = 2 * repetition * references  # even, so that pairs stay together
        models = [subsets.reference(first + m) for m in range(references)]
        member_MxN = subsets.members(models, SAMPLES, design)
        aucs.append(target(rng, member_MxN, attack, repetition % references))
    if np.isnan(aucs).any():
        return "none"
    return f"{np.mean(aucs):.3f} ± {np.std(aucs) / np.sqrt(repetitions):.3f}"


def rows(family: Family, repetitions: int) -> Iterator[tuple[str, ...]]:
    """Yields the rows of the table."""
    for design in DESIGNS:
        targets: dict[str, Target] = {"own subset": own_subset, "reference, left out": one_left_out}
        if design == "balanced":
            targets["reference, left out with its complement"] = pair_left_out
        for name, target in targets.items():
            for attack_name, attack in ATTACKS[family].items():
                cells = (
                    mean_auc(target, m, design, attack, repetitions) for m in REFERENCES[family]
                )
                yield design, name, attack_name, *cells


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("family", nargs="?", default="lira", choices=["lira", "shrunk"])
    parser.add_argument("--repetitions", type=int, default=400)
    args = parser.parse_args()
    column = "variance" if args.family == "lira" else "attack"
    references = (f"{m} references" for m in REFERENCES[args.family])
    header = ("design", "target", column, *references)
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)
    for cells in rows(args.family, args.repetitions):
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
