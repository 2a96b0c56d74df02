"""The section about texts that can be extracted: when there is one, and which texts it shows."""

from pathlib import Path

import numpy as np
import pytest
from synthetic_workdir import copy_workdir, with_tables, write_extraction, write_workdir

from analysis import extraction
from analysis.experiments.recipe import extracted
from analysis.io import RecipeResults
from analysis.report import document


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    folder = tmp_path_factory.mktemp("run") / "demo"
    return write_workdir(folder, samples=100, attacks=("lira_online",), references=8, bootstraps=0)


def table_of(section: document.Section | None) -> tuple[str, document.Table]:
    assert section is not None
    sentence, table = section.blocks
    assert isinstance(sentence, str)
    assert isinstance(table, document.Table)
    return sentence, table


def test_likely_and_written_texts_are_shown(attacked: RecipeResults, tmp_path: Path):
    recipe = write_extraction(copy_workdir(attacked, tmp_path / "demo"), 40)
    result = extraction.read(recipe)
    assert result is not None
    extracted_N = extracted.extracted(result)
    likely_N = result.column("log_p_sampled") > np.log(0.01)
    written_N = (result.column("exact_greedy") > 0) | (result.column("exact_sampled") > 0)
    np.testing.assert_array_equal(extracted_N, likely_N | written_N)
    sentence, table = table_of(extracted.section(recipe))
    assert sentence.startswith(f"{extracted_N.sum()} of 40 ")
    assert "first 20 tokens" in sentence
    ids = [int(str(row.cells[0])) for row in table.rows]
    order = np.argsort(-result.column("log_p_sampled"), kind="stable")
    expected = [n for n in order if extracted_N[n]][:8]
    assert ids == [int(result.samples[n]["id"]) for n in expected]
    assert table.rows[0].cells[1].startswith(attacked.population.text(ids[0])[:100])
    for row, n in zip(table.rows, expected, strict=True):
        assert ("greedy" in row.cells[4]) == (result.samples[n]["exact_greedy"] > 0)


def test_without_extracted_texts_there_is_no_section(attacked: RecipeResults, tmp_path: Path):
    assert extracted.section(attacked) is None
    recipe = write_extraction(copy_workdir(attacked, tmp_path / "demo"), 40, level=-150.0)
    nothing = with_tables(
        recipe, extraction=lambda t: t.assign(exact_greedy=0.0, exact_sampled=0.0)
    )
    assert extracted.section(recipe) is not None  # the model has written some
    assert extracted.section(nothing) is None
