"""Writes docs/results/claims.csv: the claims of all figures and their verdicts in finished workdirs.

    python docs/claims_of_runs.py WORKDIR [WORKDIR ...]

A figure that several of the workdirs have is taken from the last of them. docs/figures_page.py prints these claims, so
that what to expect at the setting `cpu` is what a run has shown.
"""

import argparse
from pathlib import Path

import pandas as pd

CLAIMS = Path(__file__).resolve().parent / "results" / "claims.csv"
COLUMNS = (
    "figure",
    "statement",
    "verdict",
    "p_value",
    "value",
    "low",
    "high",
    "over",
    "not_covered",
)


def main() -> None:
    """Reads tables/claims.csv of each workdir, and writes their rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workdirs", type=Path, nargs="+")
    tables = [pd.read_csv(w / "tables" / "claims.csv") for w in parser.parse_args().workdirs]
    claims = pd.concat(tables, ignore_index=True)
    claims = claims.drop_duplicates(["figure", "statement"], keep="last").sort_values(
        "figure", kind="stable"
    )
    claims.to_csv(CLAIMS, columns=[*COLUMNS], index=False, float_format="%.4g")
    print(f"{CLAIMS}: {len(claims)} claims of {claims['figure'].nunique()} figures")


if __name__ == "__main__":
    main()
