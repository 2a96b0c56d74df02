"""Numbers that depend on the number of replicas: which of them are compared with the paper and between recipes."""

import re
from pathlib import Path

import numpy as np
import pytest
from synthetic_workdir import with_files
from verdicts import SUPPORTED_HERE

from analysis import figure_section, paper_pages, papers, scaling
from analysis.claims.jackknife import Jackknife
from analysis.claims.trends import gap_at_equal
from analysis.experiments import find
from analysis.experiments.strongmia import instability, instability_tables
from analysis.formatting import size_label
from analysis.io import RecipeResults, SweepResults

NAMES = ("flip-140M", "flip-302M")


def with_replicas(recipe: RecipeResults, replicas: int) -> RecipeResults:
    """Returns the recipe with tables that tell of another number of replicas."""
    return with_files(recipe, {"flips.json": recipe.view.facts("flips") | {"replicas": replicas}})


@pytest.fixture
def sweep(recipes: SweepResults):
    """Returns the two recipes with these numbers of replicas."""

    def make(*replicas: int) -> SweepResults:
        made = [
            with_replicas(recipes[name], count) for name, count in zip(NAMES, replicas, strict=True)
        ]
        return SweepResults(made)

    return make


COMPARABLE = {
    "strongmia_fig05_instability": {"auc"},
    "strongmia_fig26_flip_detail_140m": set(),
    "strongmia_fig27_flip_detail_302m": set(),
    "strongmia_fig30_coin_free": {
        f"{size} {name}" for size in ("140M", "302M") for name in ("auc",)
    },
    "strongmia_tab03_flip_shares_140m": set(),
    "strongmia_tab04_flip_shares_302m": set(),
}


@pytest.mark.parametrize("name", COMPARABLE)
def test_numbers_of_other_replicas_are_not_compared(name: str, sweep):
    few, as_in_paper = (find(name).draw(sweep(*counts)) for counts in ((12, 12), (125, 127)))
    assert few.ours.keys() - few.not_comparable == COMPARABLE[name]
    assert few.not_comparable <= few.ours.keys()
    assert as_in_paper.not_comparable == frozenset()
    assert as_in_paper.ours.keys() == few.ours.keys()
    note = "are based on 12 replicas, and would differ with 125 to 128"
    assert note in few.not_comparable_note
    assert as_in_paper.not_comparable_note == ""


@pytest.mark.parametrize(
    "name", ["strongmia_tab05_true_positives_140m", "strongmia_tab06_true_positives_302m"]
)
def test_counts_among_other_numbers_of_members_are_not_compared(name: str, sweep):
    few, as_in_paper = (find(name).draw(sweep(*counts)) for counts in ((12, 12), (125, 127)))
    tprs = {key for key in few.ours if key.endswith(" tpr")}
    assert few.ours.keys() - few.not_comparable == tprs
    # The samples are fewer than in the paper, too.
    assert as_in_paper.not_comparable == {key for key in few.ours if key.endswith(" tp")}
    assert "524,288" in as_in_paper.not_comparable_note


def test_page_shows_the_paper_on_request_only(recipes: SweepResults, tmp_path: Path):
    compared = figure_section.make_section("strongmia_fig05_instability", recipes, tmp_path)
    assert "221k parameters" in compared.title
    assert compared.title.startswith("Figure 5: ")
    assert compared.title.endswith("(302M in the paper)")
    alone = compared.without_comparison()
    assert f"Figure 5: {alone.title} (302M in the paper)" == compared.title
    html, text = (
        " ".join(paper_pages.render(page, [s], figure_section.claims_table([s])).split())
        for page, s in (("own", alone), ("strongmia", compared))
    )
    for words in (
        "In the paper",
        "of the paper",
        "Exploring the limits",
        "marked as not comparable",
        "302M",
    ):
        assert words not in html
    assert "In the paper" in text
    assert compared.published_rows
    assert alone.image == compared.image


def test_page_marks_numbers_that_are_not_compared(recipes: SweepResults, tmp_path: Path):
    shown = figure_section.make_section("strongmia_tab05_true_positives_140m", recipes, tmp_path)
    ours = {row["description"]: row["ours"] for row in shown.published_rows}
    numbers = papers.item("strongmia_tab05_true_positives_140m").numbers
    assert not ours[numbers["fpr=0.1 tpr"].description].endswith("(not comparable)")
    assert ours[numbers["fpr=0.1 coin_flip_share_percent"].description].endswith(
        " (not comparable)"
    )
    # There are no numbers at this FPR.
    assert ours[numbers["fpr=1e-05 coin_flip_share_percent"].description] == "–"


@pytest.mark.parametrize("name", ["strongmia_fig29_flip_by_fpr_302m", "strongmia_fig30_coin_free"])
def test_sizes_with_other_numbers_of_replicas_are_not_compared(name: str, sweep):
    equal, other = (
        next(
            claim
            for claim in find(name).draw(sweep(*counts)).claims
            if "arger model" in claim.statement
        )
        for counts in ((12, 12), (12, 13))
    )
    assert equal.verdict != "not tested"
    assert other.verdict == "not tested"
    assert re.match(r"flip-302M has 13 replicas\b.*\bflip-140M 12\b", other.finding)


def test_scaling_draws_coin_flips_of_equally_many_replicas(sweep):
    equal, other = (scaling.draw(sweep(*counts)) for counts in ((12, 12), (12, 13)))
    for drawn, has_panels in ((equal, True), (other, False)):
        assert drawn.figure is not None
        titles = [axes.get_ylabel() for axes in drawn.figure.axes]
        assert any(title.startswith("Coin flips") for title in titles) == has_panels
    assert "not drawn" in " ".join(other.notes)
    assert "not drawn" not in " ".join(equal.notes)


def test_gap_of_the_two_ratios_by_hand():
    tp_Bx1x2 = np.array([[2, 1], [4, 3], [0, 0]])[:, None]
    # (50 % + 75 % + 0 %) / 3 minus 4 of 6.
    found = instability_tables.ratio_gap(tp_Bx1x2)
    assert found == pytest.approx(125 / 3 - 100 * 4 / 6)
    assert np.isnan(instability_tables.ratio_gap(np.zeros((2, 1, 2)))).all()


@pytest.mark.parametrize(
    ("unstable", "verdict"),
    [(0.4, SUPPORTED_HERE), (0.31, "undecided"), (0.2, "undecided")],
)
def test_unstable_decisions_in_the_partial_auc(
    recipes: SweepResults, monkeypatch: pytest.MonkeyPatch, unstable: float, verdict: str
):
    by_size = {size: recipes[f"flip-{size}"] for size in ("140M", "302M")}
    facts = {
        size: {
            "cutoff": 0.45,
            "config": {"band": [0.01, 0.1], "fprs": [0.001, 0.01, 0.02, 0.1, 1.0]},
        }
        for size in by_size
    }
    share = {"tpr": 1.0, "unstable_tpr": unstable, "coin_flip_tpr": 0.2}
    noise_A1 = np.array([0, *np.linspace(-0.01, 0.01, 8)])[:, None, None]

    def read(_: RecipeResults, name: str, fpr: float) -> Jackknife:
        # Proportional to the FPR, so that straight lines between the rates are exact.
        noise = noise_A1 if name == "unstable_tpr" else 0 * noise_A1
        return Jackknife(fpr * (share[name] + noise), "replicas", ("the training subset",))

    monkeypatch.setattr(instability.decisions, "read_jackknife", read)
    claim = instability._claim_further_fall(by_size, facts)
    assert claim.verdict == verdict
    assert claim.holds == (unstable - 0.2 > 0.1)
    large = size_label(by_size["302M"])
    assert f"partial AUC of {large}, FPR 1% to 10%: {unstable - 0.2:.3f}" in claim.finding
    area = instability._partial_auc(by_size["140M"], "tpr", [0.01, 0.02, 0.1])
    assert area.value == pytest.approx((0.1**2 - 0.01**2) / 2)
    facts["140M"]["cutoff"] = 0.4
    assert instability._claim_further_fall(by_size, facts).verdict == "not tested"


@pytest.mark.parametrize("lacking", ["chinchilla-302M", ""])
def test_replicas_are_compared_with_compute_optimal_models(recipes: SweepResults, lacking: str):
    chosen = [recipe for recipe in recipes.recipes if lacking not in recipe.names]
    claim = find("strongmia_fig24_mean_roc").draw(SweepResults(chosen)).claims[-1]
    if lacking:
        assert claim.verdict == "not tested"
        assert claim.finding.startswith("this run has no")
    else:
        assert claim.verdict != "not tested"
        small, optimal = recipes["flip-140M"], recipes["chinchilla-140M"]
        samples = f"AUC of 98.3k, {small.samples:,} minus {optimal.samples:,} samples"
        assert claim.finding.startswith(samples)
        assert "training subset fixed" in claim.finding


def posteriors_and_flips(
    rng: np.random.Generator, members: int, above: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean posteriors, and flip rates over 127 votes that rise to 0.4 at 0.6 and then change by ``above``."""
    posterior_M = rng.random(members)
    share_M = np.interp(posterior_M, [0, 0.6, 1], [0, 0.3, 0.3 + above])
    votes_M = rng.binomial(127, share_M)
    return posterior_M, 2 * votes_M * (127 - votes_M) / (127 * 126)


@pytest.mark.parametrize(
    ("above", "threshold", "verdict"),
    [
        (-0.3, 0.6, SUPPORTED_HERE),
        (0.2, 0.6, "undecided"),
        (0.0, 0.6, "undecided"),
        (-0.3, 1.0, "not tested"),  # No member is above the threshold.
    ],
)
def test_flip_rate_rises_and_declines(above: float, threshold: float, verdict: str):
    posterior_M, flip_M = posteriors_and_flips(np.random.default_rng(0), 500, above)
    claim = instability._claim_rises_and_declines(posterior_M, flip_M, np.arange(500), threshold)
    assert claim.verdict == verdict
    if threshold < 1:
        held = claim.finding.partition(" holds ")[2]
        assert all(part in held for part in ("training subset", "replicas", "references"))


def test_rank_correlations_on_both_sides_by_hand():
    posterior_M = np.array([0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9])
    flip_M = np.array([0.0, 0.1, 0.3, 0.2, 0.5, 0.3, 0.4, 0.1])
    claim = instability._claim_rises_and_declines(posterior_M, flip_M, np.arange(8), 0.5)
    # 1 - 6 x 2 / 60 below, and -(1 - 6 x 18 / 60) above.
    assert claim.finding.startswith("Rank correlation of flip rate")
    found = [part.split(": ")[1].split(",")[0] for part in claim.finding.split("; Neg")]
    assert found == ["0.800", "0.800"]


@pytest.mark.montecarlo
@pytest.mark.parametrize(("kind", "most"), [("flat above", 0.042), ("noise", 0.01)])
def test_monotone_flip_rates_are_rarely_called_not_monotone(kind: str, most: float):
    """The boundary of the claim is a flip rate that is flat above the threshold: 2.5%, with a standard error of 0.7."""
    rng = np.random.default_rng(1)
    supported = 0
    for _ in range(500):
        posterior_M, flip_M = posteriors_and_flips(rng, 300, 0.0)
        if kind == "noise":
            flip_M = rng.permutation(flip_M)
        claim = instability._claim_rises_and_declines(posterior_M, flip_M, np.arange(300), 0.6)
        supported += claim.verdict.startswith("supported")
    assert supported / 500 < most


def test_claims_at_a_high_fpr(recipes: SweepResults):
    recipe = recipes["flip-140M"]
    facts = recipe.view.facts("flips")
    not_monotone, equal_distance = instability._claims_at_high_fpr(recipe, facts)
    thresholds = recipe.view.table("thresholds.csv")
    at = np.isclose(thresholds["fpr"], 0.1)
    threshold = np.mean(1 / (1 + np.exp(-thresholds["threshold"][at])))
    assert f"posterior below {threshold:.3f}" in not_monotone.finding
    samples = recipe.view.table("samples.parquet")
    expected = gap_at_equal(
        samples["distance_0.1"].to_numpy(),
        samples["flip_rate_0.1"].to_numpy(),
        samples["member"].to_numpy(),
        np.arange(len(samples)),
    )
    assert equal_distance.estimate is not None
    assert equal_distance.estimate.value == pytest.approx(expected.value)
    assert equal_distance.verdict in (SUPPORTED_HERE, "undecided")
    other = facts | {"config": facts["config"] | {"fprs": [0.01, 0.2]}}
    assert {claim.verdict for claim in instability._claims_at_high_fpr(recipe, other)} == {
        "not tested"
    }
