"""The shares, flip rates and intervals of a table of components that is written by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from verdicts import SUPPORTED_HERE
from views import recipe_of_files

from analysis.experiments.open import variance
from analysis.io import SweepResults, Unavailable

FACTORS = ("init", "order", "init_order")
WITH_REFERENCES = (
    *FACTORS,
    "references",
    "references_init",
    "references_order",
    "references_init_order",
)
DECISION = dict(
    zip((*WITH_REFERENCES, "subset"), (1, 2, 3, 4, 5, 6, 7, 12), strict=True)
)  # hundredths, 40 in all


def results(folder: Path) -> SweepResults:
    """Writes components of which only the loss varies with what is left out."""
    rng = np.random.default_rng(0)
    parts = [("all", 0), *(("inits", i) for i in range(4)), *(("orders", i) for i in range(3))]
    parts += [("sets", i) for i in range(3)] + [("samples", i) for i in range(14)]
    rows = []
    for varied, part in parts:
        noise = 0.0 if varied == "all" else float(rng.normal(0, 0.01))
        for of_class in ("members", "nonmembers"):
            loss = {"init": 0.1 + noise, "order": 0.3, "init_order": 0.05, "subset": 0.05 - noise}
            scores = {name: 0.01 * value for name, value in DECISION.items()}
            for quantity, components in (
                ("loss", loss),
                ("score", {name: 3 * v for name, v in scores.items()}),
                ("threshold", scores),
                ("margin", {name: 4 * v for name, v in scores.items()}),
                ("decision", scores),
            ):
                rows += [
                    {"quantity": quantity, "class": of_class, "component": name, "variance": v}
                    | {"varied": varied, "part": part}
                    for name, v in components.items()
                ]
    tables = folder / "tables"
    tables.mkdir()
    pd.DataFrame(rows).to_csv(tables / variance.TABLE, index=False)
    facts = {"settings": {"replica_inits": 4, "orders_per_init": 3}, "sets": 3}
    facts |= {"references_per_set": 8, "fpr": 0.05, "samples": 100}
    (tables / variance.FACTS).write_text(json.dumps(facts))
    recipe = recipe_of_files(folder, variance.RECIPE)
    return SweepResults([recipe])


def test_shares_and_flip_rates(tmp_path: Path):
    components = variance.Components.read(results(tmp_path)[variance.RECIPE])
    at = components.index_P.get_loc(("all", 0))
    assert components.share("decision", "members", ("references",))[at] == pytest.approx(4 / 40)
    # Of the components, these contain the order: 2 + 3 + 6 + 7.
    assert components.flip_rate("members", ("order",))[at] == pytest.approx(2 * 0.18)
    assert components.flip_rate("members", ("order", "init"))[at] == pytest.approx(2 * 0.24)
    assert components.flip_rate("members", ("references",))[at] == pytest.approx(2 * 0.22)


def test_the_variance_is_the_sum_over_everything_that_varies(tmp_path: Path):
    components = variance.Components.read(results(tmp_path)[variance.RECIPE])
    value_P = components.share("loss", "members", ("init",))
    estimate = components.estimate(value_P)
    by_part: Any = pd.Series(value_P, index=components.index_P)
    expected = 0.0
    for varied in ("inits", "orders", "sets"):
        values = by_part[varied].to_numpy()
        expected += (len(values) - 1) * values.var()
    halves = by_part["samples"].sort_index().to_numpy().reshape(7, 2)
    expected += float((np.diff(halves, axis=1) ** 2 / 4).mean())
    assert estimate.value == pytest.approx(0.2)
    assert estimate.standard_error == pytest.approx(np.sqrt(expected))
    assert estimate.not_covered == ("the training subset",)
    quantile = scipy.stats.t.ppf(0.975, estimate.degrees_of_freedom)
    assert estimate.high - estimate.value == pytest.approx(quantile * estimate.standard_error)


def test_figure_has_all_claims(tmp_path: Path):
    drawn = variance.draw(results(tmp_path))
    assert tuple(claim.statement for claim in drawn.claims) == variance.STATEMENTS
    order, training, resampling, threshold = drawn.claims
    assert order.verdict == SUPPORTED_HERE
    assert "0.400" in order.finding  # 0.6 - 0.2
    # Of 40: 24 for training, with interactions, and 12 for the subset. Nothing but the loss varies.
    assert training.holds
    assert "0.300" in training.finding
    assert "0.290" in resampling.finding  # log2(0.22 / 0.18)
    assert "1.585" in threshold.finding  # log2(3)
    assert {*drawn.data["panel"]} == {"loss", "score", "decision", "flip_rate"}
    # The margin of 4 is a score of 3 plus a threshold of 1, without a covariance.
    assert any("0.88 = 0.66 (score) + 0.22 (threshold) − 2 × 0.00" in n for n in drawn.notes)


def test_missing_table(tmp_path: Path):
    recipe = recipe_of_files(tmp_path, variance.RECIPE)
    with pytest.raises(Unavailable, match=r"attack\.replica_inits\b.*\b1\b"):
        variance.Components.read(recipe)
