"""Extraction: its tables, figure and section of the page."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_workdir import (
    RECIPE_FIGURES,
    Page,
    copy_workdir,
    with_tables,
    write_extraction,
    write_workdir,
)

from analysis import extraction, recipe_section
from analysis.io import RecipeResults

INF = float("inf")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    folder = tmp_path_factory.mktemp("run") / "demo"
    return write_workdir(folder, samples=100, attacks=("lira_online",), references=8, bootstraps=0)


@pytest.fixture
def finished(attacked: RecipeResults, tmp_path: Path) -> RecipeResults:
    """Returns a separate copy without an extraction."""
    return copy_workdir(attacked, tmp_path / "demo")


def page(recipe: RecipeResults) -> Page:
    drawn = extraction.recipe_figures(recipe)["extraction"] is not None
    return Page(
        recipe_section.render(
            recipe_section.facts(recipe),
            {name: "data:," for name in RECIPE_FIGURES + ("extraction",) * drawn},
        )
    )


def rows(log_p: list[float], score: list[float] | None = None, **more: Any) -> list[dict[str, Any]]:
    """Returns rows of tables/extraction.csv in which every other sample is a member."""
    common = {"log_p_greedy": -INF, "log_p_chosen": -1.0}
    common |= {f"{name}_greedy": 0.0 for name in ("exact", "contained", "overlap")} | more
    score = score or list(map(float, range(len(log_p), 0, -1)))
    return [
        common | {"id": i, "member": i % 2 == 0, "score": s, "log_p_sampled": log_p[i]}
        for i, s in enumerate(score)
    ]


FACTS = {
    "config": {"samples": 3, "prefix_tokens": 32, "suffix_tokens": 1, "choose": "scores"},
    "schemes": {"greedy": "greedy", "sampled": "temperature 1", "chosen": "top 40"},
}


def curve(*shares: tuple[int, float], kind: str = "members") -> list[dict[str, Any]]:
    common = {"scheme": "sampled", "class": kind, "probability": 0.5}
    return [common | {"queries": n, "share": share} for n, share in shares]


def make_extraction(
    samples: list[dict[str, Any]], curves: list[dict[str, Any]], facts: dict[str, Any]
) -> extraction.Extraction:
    """Returns an extraction whose samples are not pieces of the same documents."""
    return extraction.Extraction(samples, curves, [], [], facts, np.arange(len(samples)))


def by_scheme(samples: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    rows = make_extraction(samples, [], FACTS).scheme_rows()
    return {row["scheme"]: row for row in rows}


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        (math.log(0.0067), "0.0067"),
        (math.log(0.001), "0.001"),
        (math.log(0.99), "0.99"),
        (0.0, "1"),
        (-112.673650, "1.2 × 10⁻⁴⁹"),
        (math.log(9.96e-5), "1.0 × 10⁻⁴"),
        (-300 * math.log(10), "1.0 × 10⁻³⁰⁰"),
        (-1e4, "1.1 × 10⁻⁴³⁴³"),  # far below the range of float64
        (-INF, "0"),
        (math.log(10), "10"),
        (math.log(10**6), "10⁶"),
        (math.log(10**18), "10¹⁸"),
    ],
)
def test_exponentials_are_formatted_from_logarithms(log: float, shown: str) -> None:
    assert extraction.format_exponent(log) == shown


def test_request_text_counts_samples_and_tokens() -> None:
    result = make_extraction(rows([-1.0, -2.0, -3.0]), [], FACTS | {"schemes": {}})
    text = result.request_text()
    assert "the first 32 tokens of each of 3 samples (2 members and 1 non-member)" in text
    assert "asked for the next 1 token." in text
    assert text.endswith("3 were requested.")


def test_probabilities_are_summarized_per_scheme() -> None:
    row_by_scheme = by_scheme(rows([math.log(0.0067), -100.0, -105.0]))
    sampled = row_by_scheme["Temperature 1"]
    assert (sampled["highest"], sampled["median"]) == ("0.0067", "3.7 × 10⁻⁴⁴")
    assert (sampled["likely"], sampled["impossible"]) == (1, 0)
    greedy = row_by_scheme["Greedy"]
    assert (greedy["highest"], greedy["median"], greedy["impossible"]) == ("0", "0", 3)
    assert row_by_scheme["Top 40"]["likely"] == 3


def test_impossible_suffixes_are_counted_but_not_plotted() -> None:
    samples = rows([-INF, -5.0, -INF, -7.0, -9.0], log_p_greedy=0.0)
    samples[0]["log_p_chosen"] = -INF
    row_by_scheme = by_scheme(samples)
    assert [row["impossible"] for row in row_by_scheme.values()] == [0, 2, 1]
    figure = extraction.draw(make_extraction(samples, [], FACTS))
    legend = figure.axes[0].get_legend()
    assert legend is not None
    labels = [t.get_text() for t in legend.get_texts()]
    assert labels == ["Members (1)", "Non-members (2)"]


def test_generated_suffixes_are_counted() -> None:
    samples = rows([-1.0] * 4, exact_sampled=0.0, contained_sampled=0.0, overlap_sampled=0.5)
    samples[0] |= {"exact_greedy": 1.0, "contained_greedy": 1.0, "overlap_greedy": 1.0}
    samples[1] |= {"contained_greedy": 1.0, "overlap_greedy": 1.0}
    samples[2] |= {"overlap_greedy": 0.53125, "overlap_sampled": 0.51}
    row_by_scheme = by_scheme(samples)
    counts = [
        [row_by_scheme[s][name] for name in ("exact", "anywhere", "half")]
        for s in [*row_by_scheme][:2]
    ]
    assert counts == [[1, 2, 3], [0, 0, 1]]
    assert "exact" not in row_by_scheme["Top 40"]  # no text was generated with it


def test_query_rows_match_the_curves() -> None:
    curves = curve((1, 0.0), (10, 0.01), (10**6, 0.25))
    curves += curve((1, 0.0), (10, 0.0), (10**6, 0.125), kind="nonmembers")
    query_rows = make_extraction(rows([-3.0]), curves, FACTS).query_rows()
    assert query_rows == [
        {"queries": "1", "members": "0.0%", "nonmembers": "0.0%"},
        {"queries": "10⁶", "members": "25.0%", "nonmembers": "12.5%"},
    ]


def test_rank_correlation_uses_negative_log_probability() -> None:
    n = list(map(float, range(1, 31)))
    for log_p, start in (([-x for x in n], "−1.00 ["), ([x - 40 for x in n], "1.00 [")):
        result = make_extraction(rows(log_p, n[::-1]), [], FACTS)
        assert str(result.rank_correlation()).startswith(start)
    assert make_extraction(rows([-INF, -INF]), [], FACTS).rank_correlation() is None


def test_rates_are_shown_with_intervals_of_random_samples_only(finished: RecipeResults) -> None:
    of_random = write_extraction(finished, 40, choose="random")
    read = extraction.read(of_random)
    assert read is not None
    assert (
        "drawn at random from the members and the non-members that are long" in read.request_text()
    )
    row = next(r for r in read.rates if (r["scheme"], r["class"]) == ("greedy", "members"))
    low, high = (f"{100 * row[f'inclusion_{end}']:.3g}%" for end in ("low", "high"))
    shown = page(of_random).words
    assert f"[{low}, {high}]" in shown
    assert "p_z > 0.01" in shown
    assert "Left out: 2 samples whose suffix has no letters or digits" in shown
    assert "exact 95% intervals for the share of all members" in shown
    assert "reference-00" not in shown
    shown = page(write_extraction(finished, 40)).words
    assert f"[{low}, {high}]" not in shown
    assert "These samples were not drawn at random" in shown


def test_missing_texts_have_no_rate() -> None:
    row = {"inclusion": math.nan, "p_above_0.5": 0.25, "p_above_0.5_low": 0.1}
    row |= {"p_above_0.5_high": 0.5}
    assert extraction.format_rate(row, "inclusion") == "–"
    assert extraction.format_rate(row, "p_above_0.5") == "25% [10%, 50%]"
    assert extraction.format_rate(row | {"p_above_0.5_low": math.nan}, "p_above_0.5") == "25%"


def test_extraction_from_the_reference_is_shown_for_samples_it_did_not_see(
    finished: RecipeResults,
) -> None:
    with_reference = write_extraction(finished, 40, reference=True)
    read = extraction.read(with_reference)
    assert read is not None
    first = read.reference_rows()[0]
    assert (first["scheme"], first["criterion"]) == ("Greedy", "Inclusion")
    trained = first["trained"]
    counts = [trained[name] for name in ("both", "target_only", "reference_only", "neither")]
    assert sum(counts) == trained["samples"]
    assert counts[0] == counts[2] == 0  # nothing is extracted from the reference
    shown = page(with_reference).words
    assert "The same prefixes were given to reference-00" in shown
    assert "Only the replica was trained on them" in shown
    read.reference[:] = [r for r in read.reference if r["in_reference"]]
    assert read.reference_rows()[0]["trained"] is None
    assert extraction.REFERENCE in recipe_section.table_files(finished)
    write_extraction(finished, 40)
    assert extraction.REFERENCE not in recipe_section.table_files(finished)


def test_samples_without_a_score_are_not_drawn(finished: RecipeResults) -> None:
    samples = rows([-5.0, -6.0, -7.0], score=[3.0, 1.0, math.nan])
    figure = extraction.draw(make_extraction(samples, [], FACTS))
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [t.get_text() for t in legend.get_texts()] == ["Members (1)", "Non-members (1)"]


def test_curves_are_drawn_if_any_sample_is_extractable(finished: RecipeResults) -> None:
    likely = write_extraction(finished, 40)
    table = likely.view.table(extraction.TABLE)
    read = extraction.read(likely)
    assert read is not None
    assert read.is_extractable
    assert (len(read.samples), int(read.member_N.sum())) == (40, int(table.member.sum()))
    assert len(extraction.draw(read).axes) == 2
    text = page(likely).words
    assert "5. Which samples can be extracted" in text
    assert extraction.TABLE in recipe_section.table_files(finished)
    assert "n queries with probability p" in text
    assert read.request_text() in text
    assert all(row["scheme"] + row["highest"] + row["median"] in text for row in read.scheme_rows())
    assert f"the choice of samples: {read.rank_correlation()}." in text
    of_unlikely = write_extraction(finished, 40, level=-150.0)
    unlikely = extraction.read(of_unlikely)
    assert unlikely is not None
    assert not unlikely.is_extractable
    assert len(extraction.draw(unlikely).axes) == 1
    assert "n queries with probability p" not in page(of_unlikely).words


def test_figure_without_nonmembers_is_drawn(finished: RecipeResults) -> None:
    read = extraction.read(
        with_tables(
            write_extraction(finished, 40),
            extraction=lambda table: table[table["member"]],
            extraction_curves=lambda table: table[table["class"] == "members"],
        )
    )
    assert read is not None
    assert read.member_N.all()
    assert len(extraction.draw(read).axes[1].get_lines()) == 2
    assert "and 0 non-members) and asked for the next 30 tokens." in read.request_text()
    assert "nonmembers" not in read.query_rows()[0]


def test_heavy_tailed_scores_have_a_logarithmic_axis() -> None:
    for scores, scale in (([9.0, 3, 1], "linear"), ([9000.0, 3, 1], "symlog")):
        result = make_extraction(rows([-5.0, -6, -7], scores), [], FACTS)
        assert extraction.draw(result).axes[0].get_xscale() == scale


def test_page_without_tables_has_no_section(finished: RecipeResults) -> None:
    text = page(finished).words
    assert "extract" not in text
    assert not [name for name in recipe_section.table_files(finished) if "extraction" in name]


def test_extraction_of_another_attack_is_not_shown(finished: RecipeResults) -> None:
    extracted = write_extraction(finished, 40)
    assert extraction.read(extracted) is not None
    attack = dataclasses.replace(extracted.config.attack, references=6)
    other = dataclasses.replace(
        extracted, config=dataclasses.replace(extracted.config, attack=attack)
    )
    assert extraction.recipe_figures(other) == {"extraction": None}
    shown = page(other)
    assert "Samples were not extracted from these models yet; run lm-mia extract." in shown.words
    assert "Which samples can be extracted" not in shown.words
    assert not [a for _, a in shown.tags if "extraction.pdf" in (a.get("href") or "")]
