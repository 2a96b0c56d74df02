from typing import Any

import pandas as pd
import pytest

from analysis.report import audited


def tables(**changes: Any) -> dict[str, pd.DataFrame]:
    row = {
        "attack": "rmia",
        "model": "",
        "members": 500,
        "nonmembers": 1000,
        "unit": "sample",
        "auc": 0.8,
        "auc_low": 0.78,
        "auc_high": 0.82,
    } | changes
    points = pd.DataFrame(
        {
            "attack": ["rmia"] * 3,
            "fpr": [0.001, 0.01, 0.1],
            "tpr": [0.02, 0.2, 0.6],
            "low": [0.0, 0.15, 0.55],
            "high": [0.1, 0.25, 0.65],
        }
    )
    return {"summary": pd.DataFrame([row]), "tpr_at_fpr": points}


def test_the_rate_is_the_lowest_that_allows_ten_false_positives():
    assert "finds 20 (15 to 25) at one false alarm" in audited.sentences(tables())
    text = audited.sentences(tables(nonmembers=200))
    assert "finds 60 (55 to 65) at 10 false alarms" in text


def test_too_few_nonmembers_give_no_number_of_members_found():
    text = audited.sentences(tables(nonmembers=50))
    assert "too few" in text
    assert "0.80" in text


@pytest.mark.parametrize("unit", ["user", "trial"])
def test_groups_of_samples_have_no_sentence(unit: str):
    assert audited.sentences(tables(unit=unit)) == ""


def test_several_models_have_no_sentence():
    several = tables()
    several["summary"] = pd.concat([several["summary"]] * 2, ignore_index=True)
    assert audited.sentences(several) == ""
