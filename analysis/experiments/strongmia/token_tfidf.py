"""The study "token_tfidf": the mean TF-IDF over all tokens of each sample.

The column tfidf of the sample table is the mean over the distinct tokens of a sample, in which a token that occurs
several times counts once. StrongMIA Figure 31(a) is of the mean over all tokens.

    token_tfidf.parquet   the mean TF-IDF over all tokens of each attacked sample
"""

import numpy as np
import pandas as pd

from lm_mia.attacks.experiment import RecipeView
from lm_mia.attacks.spec import Study
from lm_mia.attacks.study_inputs import StudyError
from lm_mia.data import features
from lm_mia.data.documents import no_progress
from lm_mia.data.population import FREQUENCY_FILE

TABLE = "token_tfidf.parquet"


def tables(view: RecipeView) -> dict[str, pd.DataFrame]:
    """Returns the table of the study.

    Raises:
      StudyError: the losses were imported, so that the tokens are not known.
    """
    population = view.attacked
    if population.is_imported:
        raise StudyError(
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
    return {TABLE: pd.DataFrame({"id": ids_N, "tfidf": tfidf_N})}


STUDY = Study("token_tfidf", tables, (TABLE,))
