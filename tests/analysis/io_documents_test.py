"""What is read of a recipe whose samples are pieces of documents."""

import numpy as np
import pytest
from synthetic_workdir import FPRS, write_workdir

from analysis.experiments.strongmia import samples
from analysis.io import RecipeResults
from lm_mia import stats

DOCUMENTS, PIECES = 60, 8


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    return write_workdir(
        tmp_path_factory.mktemp("split") / "demo",
        samples=DOCUMENTS * PIECES,
        pieces=PIECES,
        attacks=("lira_online", "loss"),
    )


def test_samples_have_their_documents(recipe: RecipeResults):
    table = recipe.view.table("samples.parquet")
    assert table["document"].tolist() == np.repeat(np.arange(DOCUMENTS), PIECES).tolist()
    assert table["piece"].tolist() == [*range(PIECES)] * DOCUMENTS


def test_intervals_are_over_documents(recipe: RecipeResults):
    samples = recipe.view.table("samples.parquet")
    table = recipe.view.table("intervals.csv")
    rows = table[table["attack"] == "lira_online"]
    rows = rows[(rows["metric"] != "balanced_accuracy") & (rows["models"] == 1)]
    expected, over_samples = (
        stats.bootstrap_intervals(
            samples["score"], samples["member"], FPRS, cluster_N=cluster_N, replicates=40
        )
        for cluster_N in (samples["document"], None)
    )
    low = [expected.auc_low_T[0], *expected.tpr_low_TxF[0]]
    high = [expected.auc_high_T[0], *expected.tpr_high_TxF[0]]
    np.testing.assert_allclose(rows["low"], low)
    np.testing.assert_allclose(rows["high"], high)
    assert not np.isnan(expected.auc_low_T[0])
    assert expected.auc_low_T[0] != over_samples.auc_low_T[0]


def test_properties_of_samples_have_their_documents(recipe: RecipeResults):
    properties = samples.read(recipe)
    for prop in properties:
        assert prop.document_N.tolist() == np.repeat(np.arange(DOCUMENTS), PIECES).tolist()
