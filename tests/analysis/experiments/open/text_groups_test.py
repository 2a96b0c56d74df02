"""Claims, labels and notes of a table of rates of groups of texts that is written by hand."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from verdicts import SUPPORTED_HERE
from views import recipe_of_files

from analysis import studies
from analysis.experiments.open import text_groups
from analysis.io import SweepResults
from lm_mia.attacks.spec import PresentModels

GROUPS = {"tokens": [(3, 30), (31, 96)], "tfidf": [(1.25, 4.0)] * 2, "prefix": [(1, 1), (2, 5)]}
"""Division -> the range of each group."""
RATES = {"fpr": 0.05, "tpr": 0.2, "precision": 0.8, "flip_rate": 0.1}
SHORT = {"fpr": 0.09, "tpr": 0.25, "precision": 0.74}
"""Rates of short texts, with one threshold."""


PARTS = 9, 15, 15
"""Numbers of parts of the replicas, the references and the samples, with all of them."""


def results(folder: Path, divisions: tuple[str, ...]) -> SweepResults:
    """Writes a table in which thresholds of groups find 5 points more members, with small differences between parts."""
    index = dict(zip(studies.AXES, (axis.ravel() for axis in np.indices(PARTS)), strict=True))
    # The sum of a number for each part of the replicas, of the references and of the samples; 0 for all of them.
    noise_P = sum((part_P % 3 - (part_P > 0)) * 1e-3 for part_P in index.values())
    tables = []
    for division in divisions:
        for group, (lowest, highest) in [*enumerate(GROUPS[division]), (text_groups.ALL, (1, 96))]:
            for thresholds in ("one", "by_group"):
                rates = dict(RATES)
                if thresholds == "by_group":
                    rates["tpr"] += 0.05
                elif (division, group) == ("tokens", 0):
                    rates |= SHORT
                scale = (2 + group) * (2 if thresholds == "one" else 1)
                facts = {"division": division, "group": group, "thresholds": thresholds}
                facts |= {"lowest": lowest, "highest": highest, "samples_in_group": 50}
                numbers = {name: rate + scale * noise_P for name, rate in rates.items()}
                tables.append(pd.DataFrame({**index, **facts, **numbers, "focus_fpr": 0.05}))
    (folder / "tables").mkdir()
    pd.concat(tables).to_parquet(folder / "tables" / text_groups.TABLE, index=False)
    facts = {"config": {}, "models": [], "reason": "", "format": 1, "tables": {}}
    (folder / "tables" / "text_groups.json").write_text(json.dumps(facts))
    recipe = recipe_of_files(folder, text_groups.RECIPE)
    vars(recipe)["models"] = PresentModels(tuple(range(32)), tuple(range(10)))
    return SweepResults([recipe])


def test_claims_are_about_all_groups(tmp_path: Path):
    drawn = text_groups.draw(results(tmp_path, ("tokens", "tfidf", "prefix")))
    assert tuple(claim.statement for claim in drawn.claims) == text_groups.STATEMENTS
    rates, precision, gain = drawn.claims
    # Short texts differ by 4 points in the FPR, of which 2.5 are allowed, and by 6 in precision, of which 10 are.
    assert (rates.holds, precision.holds, gain.holds) == (False, True, True)
    assert rates.verdict == "undecided"
    assert precision.verdict == gain.verdict == SUPPORTED_HERE
    for group, gap in (("length 3 to 30", "0.040"), ("prefix shared", "0.000")):
        assert f"{group} minus all: {gap}" in rates.finding
    assert gain.finding.count("minus one: 0.050") == 3
    labels = drawn.data.query("division == 'prefix' and group >= 0")["label"]
    assert [*labels.unique()] == ["own", "shared"]
    assert not any("no division" in note for note in drawn.notes)


def test_absent_divisions_are_named(tmp_path: Path):
    drawn = text_groups.draw(results(tmp_path, ("tokens",)))
    [note] = [note for note in drawn.notes if "no division" in note]
    assert "TF-IDF" in note
    assert "prefix" in note
    assert {*drawn.data["division"]} == {"tokens"}
    assert drawn.data.query("metric == 'fpr' and group == 0 and thresholds == 'one'")[
        "value"
    ].item() == pytest.approx(0.09)
