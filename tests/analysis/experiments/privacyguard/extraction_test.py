"""PrivacyGuard's table and figure of extraction, and which samples a figure needs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from verdicts import SUPPORTED_HERE

from analysis import extraction as tables
from analysis import papers
from analysis.experiments.privacyguard import extraction
from analysis.experiments.strongmia import extraction as of_scores
from analysis.io import Unavailable
from lm_mia import config
from lm_mia.score.extraction import extraction_curves, extraction_rates

N = 60
SCHEMES = {"greedy": "greedy", "sampled": "temperature 1", "chosen": "temperature 1, top 40"}


def made_samples(**columns: Any) -> pd.DataFrame:
    """Returns results for 60 samples, every other one a member; every third suffix is generated greedily."""
    n = np.arange(N)
    results = pd.DataFrame({"id": n, "member": n % 2 == 0, "score": -1.0 * n, "in_prompt": 0.0})
    results.loc[4, "in_prompt"] = 1.0
    is_generated_N = np.where(n % 3 == 0, 1.0, 0.0)
    results["included_greedy"], results["overlap_greedy"] = is_generated_N, is_generated_N
    for name in SCHEMES:
        results[f"log_p_{name}"] = np.log(np.where(n % 3 == 0, 0.6, 0.02))
    return results.assign(**columns)


def as_sweep(
    monkeypatch: pytest.MonkeyPatch,
    results: pd.DataFrame,
    choose: Any = "random",
    curves: list[Any] | None = None,
) -> Any:
    """Returns recipes whose extraction has these results."""
    settings = config.Extract(samples=N, choose=choose)
    read = tables.Extraction(
        samples=results.to_dict("records"),  # pyright: ignore
        curves=curves or [],
        rates=extraction_rates(results, settings).to_dict("records"),  # pyright: ignore
        facts={"schemes": SCHEMES, "config": vars(settings)},
        document_N=np.arange(N),
    )
    monkeypatch.setattr(tables, "read", lambda _: read)
    recipe = SimpleNamespace(recipe_dir=Path("demo"), name="demo")
    return {extraction.RECIPE: recipe, "main": recipe}


def test_table_has_ours_above_the_published_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    result = extraction.draw_tab04(as_sweep(monkeypatch, made_samples()))
    assert result.table is not None
    assert [*result.table.index] == [
        "Greedy, members",
        "Greedy, non-members",
        "Temperature 1, top 40, members",
        "Temperature 1, top 40, non-members",
        "Greedy, Enron and Pythia-12B (published)",
        "Top-k, Enron and Pythia-12B (published)",
    ]
    cells = result.table.to_dict("index")
    assert [*cells["Greedy, Enron and Pythia-12B (published)"].values()] == [
        *("10,000", "4.90%", "6.45%", "4.50%", "4.50%")
    ]
    assert cells["Greedy, members"]["Samples"] == "29"
    assert cells["Greedy, members"]["Inclusion"].startswith("34.5% [17.9%, ")
    assert cells["Temperature 1, top 40, members"]["Inclusion"] == "–"  # no texts
    numbers = papers.item("privacyguard_tab04_extraction").numbers
    assert {*result.ours} == {*numbers} == {*result.not_comparable}
    assert len(result.data) == 4


def test_claims_compare_criteria_on_the_same_members(monkeypatch: pytest.MonkeyPatch) -> None:
    overlap_N = np.where(np.arange(N) % 3 <= 1, 1.0, 0.0)
    results = made_samples(overlap_greedy=overlap_N)
    lcs, likely = extraction.draw_tab04(as_sweep(monkeypatch, results)).claims
    used_N = (results["member"] & (results["in_prompt"] == 0)).to_numpy()
    third_N = np.arange(N)[used_N] % 3
    assert f"minus inclusion: {(third_N == 1).mean():.3f}, " in lcs.finding
    assert "over 29 members" in lcs.finding
    assert "model fixed" in lcs.finding
    assert likely.estimate is not None
    assert likely.estimate.value == pytest.approx((third_N != 0).mean())
    assert (lcs.verdict, likely.verdict) == (SUPPORTED_HERE,) * 2
    results = made_samples(overlap_greedy=0.0, log_p_chosen=-np.inf)
    lcs, likely = extraction.draw_tab04(as_sweep(monkeypatch, results)).claims
    assert (lcs.verdict, likely.verdict) == ("undecided",) * 2
    assert not lcs.holds


def test_query_curves_are_drawn_for_both_random_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    curves: list[Any] = extraction_curves(made_samples()).to_dict("records")
    sweep = as_sweep(monkeypatch, made_samples(), curves=curves)
    result = extraction.draw_fig08(sweep)
    assert result.figure is not None
    for axes, scheme in zip(result.figure.axes, ("chosen", "sampled"), strict=True):
        assert axes.get_title(loc="left") == SCHEMES[scheme].capitalize()
        lines = axes.get_lines()
        assert len(lines) == 10  # 5 probabilities, members and non-members
        is_shown = (result.data["scheme"] == scheme) & (result.data["class"] == "members")
        curve = result.data[is_shown & (result.data["probability"] == 0.1)]
        np.testing.assert_array_equal(np.asarray(lines[0].get_ydata()), curve["share"])
    assert result.claims == ()


def test_figures_need_samples_that_were_chosen_as_in_the_paper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Unavailable, match=r"choose=scores\b.*\brandom; "):
        extraction.draw_tab04(as_sweep(monkeypatch, made_samples(), "scores"))
    with pytest.raises(Unavailable, match=r"choose=random\b.*\bscores; "):
        of_scores.draw_fig07(as_sweep(monkeypatch, made_samples()))
