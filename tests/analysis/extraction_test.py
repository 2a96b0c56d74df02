"""Extraction: its tables and figure."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_workdir import (
    copy_workdir,
    with_tables,
    write_extraction,
    write_workdir,
)

from analysis import extraction
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
    return extraction.Extraction(samples, curves, [], facts, np.arange(len(samples)))


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
    assert re.findall(r"\d+", text) == ["32", "3", "2", "1", "1", "3"]
    assert "next 1 token." in text
    assert text.endswith("3 were requested.")


def test_impossible_suffixes_are_not_plotted() -> None:
    samples = rows([-INF, -5.0, -INF, -7.0, -9.0], log_p_greedy=0.0)
    samples[0]["log_p_chosen"] = -INF
    figure = extraction.draw(make_extraction(samples, [], FACTS))
    legend = figure.axes[0].get_legend()
    assert legend is not None
    labels = [t.get_text() for t in legend.get_texts()]
    assert labels == ["Members (1)", "Non-members (2)"]


def test_missing_texts_have_no_rate() -> None:
    row = {"inclusion": math.nan, "p_above_0.5": 0.25, "p_above_0.5_low": 0.1}
    row |= {"p_above_0.5_high": 0.5}
    assert extraction.format_rate(row, "inclusion") == "–"
    assert extraction.format_rate(row, "p_above_0.5") == "25% [10%, 50%]"
    assert extraction.format_rate(row | {"p_above_0.5_low": math.nan}, "p_above_0.5") == "25%"


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
    of_unlikely = write_extraction(finished, 40, level=-150.0)
    unlikely = extraction.read(of_unlikely)
    assert unlikely is not None
    assert not unlikely.is_extractable
    assert len(extraction.draw(unlikely).axes) == 1


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
    assert "and 0 non-members)" in read.request_text()


def test_heavy_tailed_scores_have_a_logarithmic_axis() -> None:
    for scores, scale in (([9.0, 3, 1], "linear"), ([9000.0, 3, 1], "symlog")):
        result = make_extraction(rows([-5.0, -6, -7], scores), [], FACTS)
        assert extraction.draw(result).axes[0].get_xscale() == scale


def test_extraction_of_another_attack_is_not_shown(finished: RecipeResults) -> None:
    extracted = write_extraction(finished, 40)
    assert extraction.read(extracted) is not None
    attack = dataclasses.replace(extracted.config.attack, references=6)
    other = dataclasses.replace(
        extracted, config=dataclasses.replace(extracted.config, attack=attack)
    )
    assert extraction.recipe_figures(other) == {"extraction": None}
