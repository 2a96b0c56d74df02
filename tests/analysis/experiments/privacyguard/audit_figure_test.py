"""The figure of bounds on epsilon by the number of guesses."""

import math
from typing import Any

import numpy as np
import pandas as pd
from views import recipe_of_tables

from analysis.experiments.privacyguard import audit
from analysis.io import Record
from lm_mia.attacks.experiment import Content


def rows(epsilon: float = 1.5, **changes: Any) -> dict[str, Record]:
    """Returns the rows of one attack by method."""
    common: Record = {"attack": "lira_online", "references": 8, "adjacency": "replace_one"}
    common |= {"delta": 1e-5, "confidence": 0.95, "canaries": 500, "left_out": 3, "mu": math.nan}
    common |= {"guesses": math.nan, "correct": math.nan, "low": math.nan, "high": math.nan}
    bound = {"guesses": 64.0, "correct": 60.0, "epsilon": epsilon, "ceiling": 4.2}
    gaussian = {"guesses": 64.0, "correct": 60.0, "epsilon": 2.5, "mu": 0.7, "ceiling": 6.0}
    estimate = {"epsilon": 3.0, "low": 1.0, "high": 5.0, "ceiling": 5.5}
    return {
        "estimate_tpr": common | estimate,
        "estimate_max": common | estimate,
        "one_run": common | bound | changes,
        "one_run_gaussian": common | gaussian,
    }


def test_figure_has_the_best_bound_of_each_number_of_guesses() -> None:
    curve: list[Record] = [
        {"guesses": 32, "epsilon": 0.5},
        {"guesses": 16, "epsilon": 0.2},
        {"guesses": 16, "epsilon": 0.7},
    ]
    audits = {name: rows() for name in ("lira_online", "lowercase")}
    figure = audit.draw({name: curve for name in audits}, audits)
    lines = figure.axes[0].lines
    assert [line.get_label() for line in lines] == ["LiRA", "perfect attack"]
    np.testing.assert_array_equal(lines[0].get_xdata(), [16, 32])
    np.testing.assert_array_equal(lines[0].get_ydata(), [0.7, 0.5])
    assert np.asarray(lines[1].get_ydata())[0] == 4.2


def test_tables_are_read_in_order_of_the_bounds() -> None:
    of_attacks = [("loss", rows(0.0)), ("rmia", rows(2.0)), ("lira_online", rows(1.0))]
    lines = [
        {"method": method} | row | {"attack": name, "is_bound": method == "one_run"}
        for name, of_attack in of_attacks
        for method, row in of_attack.items()
    ]
    tables: dict[str, Content] = {audit.TABLE: pd.DataFrame(lines)}
    audits = audit.read(recipe_of_tables(tables))
    assert [*audits] == ["rmia", "lira_online", "loss"]
    assert audits["rmia"]["one_run"]["epsilon"] == 2.0
    curve = pd.DataFrame({"attack": ["rmia"], "references": [8], "guesses": [16]})
    curve = curve.assign(sides="members", correct=15, epsilon=2.0, mu=0.7)
    for rows_of_curve, drawn in ((curve, True), (curve[:0], False)):
        recipe = recipe_of_tables({**tables, audit.CURVE_TABLE: rows_of_curve})
        assert (audit.recipe_figures(recipe)["audit"] is not None) == drawn
