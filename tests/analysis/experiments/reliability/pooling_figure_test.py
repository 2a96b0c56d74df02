"""What the report shows about pooled thresholds, against pooling.csv and vulnerability.parquet."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.artist import getp
from views import recipe_of_files

from analysis.experiments.reliability import pooling

FACTS: dict[str, object] = {"reason": "", "settings": {"focus_fpr": 0.05}, "models": 16}
TPR = dict(zip(pooling.STRATEGIES, np.linspace(0.2, 0.55, 8), strict=True))


def write(folder: Path, facts: dict[str, object] = FACTS) -> Path:
    """Writes tables with TPRs of 0.2, 0.25, ... for the strategies, and others that are not shown."""
    (folder / "tables").mkdir()
    (folder / "tables" / "pooling.json").write_text(json.dumps(facts))
    rows = [
        {"fpr": fpr, "strategy": name, "oracle": oracle, "models": models}
        | {"threshold": 1.5 if name == "naive" else math.nan}
        | {"tpr": tpr if (fpr, oracle, models) == (0.05, False, 16) else 0.9}
        | {"realized_fpr": 0.07 if name.endswith("_normal") else 0.0471}
        | {"in_cells": 80, "out_cells": 80, "samples": 10, "left_out": 3}
        | {"tpr_low": math.nan if name == "per_model" else tpr - 0.1, "tpr_high": tpr + 0.1}
        for fpr in (0.01, 0.05)
        for oracle in (False, True)
        for models in (8, 16)
        for name, tpr in TPR.items()
    ]
    pd.DataFrame(rows).to_csv(folder / "tables" / "pooling.csv", index=False)
    columns = {"tpr_gaussian": [0.11, 0.61, math.nan], "tpr_gaussian_population": [0.05, 0.4, 0.4]}
    pd.DataFrame(columns).to_parquet(folder / "tables" / "vulnerability.parquet")
    return folder


def test_numbers_are_those_with_all_models_at_the_focus_rate(tmp_path: Path):
    shown = pooling.read(recipe_of_files(write(tmp_path)))
    assert shown is not None
    assert {row["strategy"]: row["tpr"] for row in shown.rows} == pytest.approx(TPR)
    assert (shown.models, shown.fpr, shown.reason) == (16, 0.05, "")
    assert shown.verdict == (
        "For a requested FPR of 5%, the normal quantile has a realized FPR of 7%, and the predictive t quantile "
        "4.71%. One threshold for the LiRA scores of all samples finds 20% of the members, and one for standardized "
        "losses 25%."
    )


def test_figures_show_rates_and_intervals(tmp_path: Path):
    figures = pooling.recipe_figures(recipe_of_files(write(tmp_path)))
    bars, histogram = figures["pooling"], figures["gaussian_tpr"]
    assert bars is not None
    assert histogram is not None
    left, right = bars.axes
    tprs, fprs = ([axes.patches[i] for i in range(8)] for axes in (left, right))
    assert [getp(bar, "width") for bar in tprs] == pytest.approx([*TPR.values()])
    assert [getp(bar, "width") for bar in fprs].count(0.07) == 2
    [container] = [c for c in left.containers if type(c).__name__ == "ErrorbarContainer"]
    ends = [segment[:, 0] for bar in container[2] for segment in bar.get_segments()]
    np.testing.assert_allclose(ends, [(t - 0.1, t + 0.1) for t in [*TPR.values()][:-1]])
    [axes] = histogram.axes
    known, all_samples = (getp(patch, "data").values for patch in axes.patches)
    assert (known[4], known[24], known.sum()) == (0.5, 0.5, 1.0)
    assert all_samples.max() == pytest.approx(2 / 3)


def test_without_tables_or_with_a_reason_nothing_is_drawn(tmp_path: Path):
    assert pooling.read(recipe_of_files(tmp_path)) is None
    assert {*pooling.recipe_figures(recipe_of_files(tmp_path)).values()} == {None}
    write(tmp_path, {"reason": "too few", "config": {}})
    shown = pooling.read(recipe_of_files(tmp_path))
    assert shown is not None
    assert shown.reason == "too few"
    assert {*pooling.recipe_figures(recipe_of_files(tmp_path)).values()} == {None}


@pytest.mark.filterwarnings("error")
def test_without_scores_nothing_is_drawn(tmp_path: Path):
    path = write(tmp_path) / "tables" / "pooling.csv"
    table = pd.read_csv(path).assign(realized_fpr=math.nan, tpr=math.nan)
    table.to_csv(path, index=False)
    shown = pooling.read(recipe_of_files(tmp_path))
    assert shown is not None
    assert "OUT references" in shown.reason
    assert {*pooling.recipe_figures(recipe_of_files(tmp_path)).values()} == {None}
    # Samples may have scores although none has the moments of both classes.
    nothing = pd.DataFrame({"tpr_gaussian": [math.nan], "tpr_gaussian_population": [math.nan]})
    nothing.to_parquet(tmp_path / "tables" / "vulnerability.parquet")
    [axes] = pooling.draw_gaussian(recipe_of_files(tmp_path), 0.05).axes
    assert all(getp(patch, "data").values.sum() == 0 for patch in axes.patches)
