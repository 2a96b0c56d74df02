"""Writes docs/results/claims.csv: the claims of all figures and their verdicts in finished workdirs.

    python docs/claims_of_runs.py WORKDIR [WORKDIR ...]

A figure that several of the workdirs have is taken from the last of them; figures that none of them has keep their
rows. The column commit has the commit that trained the models. docs/figures_page.py prints these claims, so that what
to expect at the setting `cpu` is what a run has shown.
"""

import argparse
import json
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
    "commit",
)


def main() -> None:
    """Reads tables/claims.csv of each workdir, and writes their rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workdirs", type=Path, nargs="+")
    tables = [pd.read_csv(CLAIMS, dtype={"commit": str})] if CLAIMS.exists() else []
    for workdir in parser.parse_args().workdirs:
        table = pd.read_csv(workdir / "tables" / "claims.csv").assign(commit=_commit(workdir))
        replaced = [earlier[~earlier["figure"].isin(table["figure"])] for earlier in tables]
        tables = [*replaced, table]
    claims = pd.concat(tables, ignore_index=True).sort_values("figure", kind="stable")
    claims.to_csv(CLAIMS, columns=[*COLUMNS], index=False, float_format="%.4g")
    print(f"{CLAIMS}: {len(claims)} claims of {claims['figure'].nunique()} figures")


def _commit(workdir: Path) -> str:
    """Returns the first digits of the commit that trained the models of a workdir; empty for simulations."""
    for path in sorted((workdir / "recipes").glob("*/config.json")):
        return json.loads(path.read_text(encoding="utf-8"))["commit"][:8]
    return ""


if __name__ == "__main__":
    main()
