"""Writes the generated parts of docs/tables.md: all tables, their columns and units, from their declarations.

    python docs/tables_page.py [--check]

A declaration (`lm_mia.attacks.declarations.Table`) stands beside the function that makes the table. With --check
nothing is written, and the exit code is 1 if the page is not what this script would write.
"""

import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import generated_page

from analysis import (
    comparison,
    experiments,
    figure_section,
    scaling,
)
from analysis.experiments.causal import regression
from analysis.experiments.open import attack_comparison
from lm_mia.attacks import exports
from lm_mia.attacks.declarations import COMMON, Column, Table, common
from lm_mia.attacks.spec import AttackTable, AttackTableNeed, Study, StudyNeed

PAGE = Path(__file__).resolve().parent / "tables.md"
OF_WORKDIR = (
    comparison.COMPARISON_TABLE,
    figure_section.CLAIMS_TABLE,
    regression.REGRESSION_TABLE,
    regression.REGRESSION_CURVES_TABLE,
    scaling.SCALING_TABLE,
)
OF_STUDIES = common("settings", "step", "roles", "reason")
"""Fields of the JSON file of every study that has one."""
GROUPS = {
    "attacks.csv": "Decisions about replicas",
    "targets.csv": "Attacks on each model",
    "extraction.csv": "Extraction",
    "advantage.csv": "Membership advantage and epsilon",
    "attacked_models.csv": "Numbers of the report page",
    "pooling.csv": "Thresholds for many models",
    "zero_run.csv": "Members and non-members from different sources",
    "variance_components.csv": "Open questions: variance, tokens, numbers of references, recency, groups of texts",
    "attack_check.csv": "An attack of your own",
}
"""First table of a group -> heading of the group."""
ABOUT_GROUPS = {
    "attacks.csv": (
        "The *tables of decisions* are written if `attack.replicas` is above 0. Imported replicas may have no "
        "references: tables of LiRA's decisions are left out then, and `attack_flips.csv` has the flips and coin flips "
        "under the other attacks. Means and standard deviations are over replicas."
    ),
    "extraction.csv": "Written by `lm-mia extract` (and `lm-mia run`), if `extract.samples` is above 0.",
}
"""First table of a group -> what all tables of the group share."""


def declared() -> tuple[list[AttackTable], list[Study]]:
    """Returns the tables and studies of every recipe, and those that only figures need."""
    needs = [*experiments.of_every_recipe()]
    needs += [need for name in experiments.MODULES for need in experiments.find(name).reads]
    tables = [need.table for need in needs if isinstance(need, AttackTableNeed)]
    of_studies = [need.study for need in needs if isinstance(need, StudyNeed)]
    of_studies.append(attack_comparison.STUDY)  # of the experiment of an attack of your own
    return [*dict.fromkeys(tables)], [*dict.fromkeys(of_studies)]


def of_recipe() -> list[Table]:
    """Returns all tables of a recipe."""
    attack_tables, studies = declared()
    of_studies = [made.table for made in attack_tables]
    for study in studies:
        of_studies += study.tables
        if study.facts:
            rows = f"Written with `{study.tables[0].file}`, or alone if there is a reason."
            of_studies.append(Table(f"{study.name}.json", rows, OF_STUDIES | {**study.facts}))
    return [*(table for table, _ in exports.DECLARED), *of_studies]


def lines(table: Table) -> Iterator[str]:
    """Yields the lines of a table on the page, after those of the group that it begins."""
    if table.file in GROUPS:
        yield from (f"### {GROUPS[table.file]}", "")
        if table.file in ABOUT_GROUPS:
            yield from (ABOUT_GROUPS[table.file], "")
    yield from (f"#### `{table.file}`", "", table.rows, "")
    if table.notes:
        yield from (table.notes, "")
    shared = [name for name, column in table.columns.items() if column == COMMON.get(name)]
    start = f"Key: {quoted(table.key)}." if table.key else "Fields."
    others = [name for name in shared if name not in table.key]
    yield f"{start} [Common](#common-columns): {quoted(others)}." if others else start
    yield ""
    own = {names: column for names, column in table.columns.items() if names not in shared}
    yield from definitions(own)


def quoted(names: Iterable[str]) -> str:
    """Returns names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def definitions(columns: Mapping[str, Column]) -> Iterator[str]:
    """Yields a list of columns with their units and meanings."""
    for names, column in columns.items():
        unit = "" if column.unit == "none" else f" ({column.unit})"
        yield f"- {quoted(names.split(', '))}{unit}: {column.meaning}"
    if columns:
        yield ""


def fill(text: str, part: str, part_lines: Iterable[str]) -> str:
    """Returns the page with these lines between the comments that mark a part."""
    begin, end = f"<!-- {part}: written by docs/tables_page.py -->\n", f"<!-- end: {part} -->\n"
    body = "\n".join(part_lines)
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    [_] = pattern.findall(text)
    return pattern.sub(lambda _: f"{begin}\n{body}\n{end}", text)


def page_text() -> str:
    """Returns the text of docs/tables.md."""
    text = fill(PAGE.read_text(encoding="utf-8"), "common columns", definitions(COMMON))
    tables = of_recipe()
    assert {*GROUPS} <= {table.file for table in tables}
    text = fill(text, "tables of a recipe", itertools.chain(*map(lines, tables)))
    return fill(text, "tables of the workdir", itertools.chain(*map(lines, OF_WORKDIR)))


def main() -> int:
    """Writes the page, or compares it; returns the exit code."""
    return generated_page.main({PAGE: page_text}, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
