"""The tables and the page of a recipe whose samples are pieces of documents."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_workdir import Page, write_workdir

from analysis import page

DOCUMENTS, PIECES = 40, 10


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_workdir(
        tmp_path_factory.mktemp("split") / "demo",
        samples=DOCUMENTS * PIECES,
        pieces=PIECES,
        attacks=("lira_online", "loss"),
    )


def test_samples_have_their_documents(recipe: Path):
    table = pd.read_parquet(recipe / "tables" / "samples.parquet")
    assert table["document"].tolist() == np.repeat(np.arange(DOCUMENTS), PIECES).tolist()
    assert table["piece"].tolist() == [*range(PIECES)] * DOCUMENTS


def test_page_says_what_splitting_does(recipe: Path):
    written = page.write_page(recipe.parents[1], None, (), lambda *_: None, lambda _: None)
    shown = Page(written.read_text())
    assert f"The samples are consecutive pieces of {DOCUMENTS} documents." in shown.words
