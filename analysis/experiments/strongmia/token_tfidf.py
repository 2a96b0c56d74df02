"""The study "token_tfidf": the mean TF-IDF over all tokens of each sample.

The column tfidf of the sample table is the mean over the distinct tokens of a sample, in which a token that occurs
several times counts once. StrongMIA Figure 31(a) is of the mean over all tokens.

    token_tfidf.parquet   the mean TF-IDF over all tokens of each attacked sample
"""

import numpy as np
import pandas as pd

from lm_mia.attacks.declarations import Column, Table
from lm_mia.attacks.spec import Study
from lm_mia.attacks.studies import StudyView
from lm_mia.attacks.table_sets import Write
from lm_mia.data import features
from lm_mia.data.documents import no_progress
from lm_mia.data.population import FREQUENCY_FILE
from lm_mia.errors import Unavailable

TABLE = "token_tfidf.parquet"


def compute(
    view: StudyView,
    write: Write,
) -> None:
    """Computes the table of the study.

    Raises:
      Unavailable: the losses were imported, so that the tokens are not known.
    """
    population = view.attacked
    if population.is_imported:
        raise Unavailable(
            "the losses were imported, so that the tokens of the samples are not known"
        )
    frequency_V, bos = np.load(population.folder / FREQUENCY_FILE), population.tokenizer.bos_id()
    tfidf_N = features.mean_tfidf(
        population.tokens,
        population.offsets_N1,
        frequency_V,
        int(
            frequency_V[bos]
        ),  # Every sample over which frequencies were counted begins with <bos>.
        (bos, population.tokenizer.eos_id()),
        no_progress,
        over="all",
    )
    ids_N = population.first_id + np.arange(len(population))
    write(TABLE, pd.DataFrame({"id": ids_N, "tfidf": tfidf_N}))


STUDY = Study(
    "token_tfidf",
    compute,
    tables=(
        Table(
            TABLE,
            (
                "Written by `lm-mia attack` for figures that need the study `token_tfidf`, with one row per attacked "
                "sample."
            ),
            {
                "id": Column("none", "id of the sample in the population"),
                "tfidf": Column(
                    "none",
                    (
                        "mean TF-IDF over all tokens of the sample, where a token that occurs k times counts k "
                        "times; `tfidf` of `samples.parquet` of the population is the mean over distinct tokens"
                    ),
                ),
            },
            key=("id",),
        ),
    ),
)
