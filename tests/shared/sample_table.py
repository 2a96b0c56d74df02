"""The sample table of a population, for tests."""

import pandas as pd

from lm_mia.data.population import Population


def table_of(population: Population) -> pd.DataFrame:
    """Returns the sample table; row i is sample i."""
    return pd.read_parquet(population.folder / f"{population.prefix}samples.parquet")
