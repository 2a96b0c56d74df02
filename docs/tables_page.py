"""Writes the generated parts of docs/tables.md: all tables, their columns and units, from their declarations.

    python docs/tables_page.py [--check]

A declaration (`lm_mia.attacks.declarations.Table`) stands beside the function that makes the table. With --check
nothing is written, and the exit code is 1 if the page is not what this script would write.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import generated_page

from analysis import (
    comparison,
    experiments,
    figure_section,
    scaling,
)
from analysis.experiments.causal import regression
from lm_mia.attacks import exports
from lm_mia.attacks.declarations import Column, Table
from lm_mia.attacks.spec import AttackTable, AttackTableNeed, Study, StudyNeed

PAGE = Path(__file__).resolve().parent / "tables.md"
OF_WORKDIR = (
    comparison.COMPARISON_TABLE,
    figure_section.CLAIMS_TABLE,
    regression.REGRESSION_TABLE,
    regression.REGRESSION_CURVES_TABLE,
    scaling.SCALING_TABLE,
)
OF_STUDIES = {
    "settings": Column("none", "the settings that the tables depend on, such as `attack.fprs`"),
    "step": Column("steps", "`attack.step`"),
    "roles": Column("none", "the numbers of the references, targets and replicas that are present"),
    "reason": Column("none", "why there are no tables; empty if there are"),
}
"""Fields of the JSON file of every study that has one."""


def declared() -> tuple[list[AttackTable], list[Study]]:
    """Returns the tables and studies of every recipe, and those that only figures need."""
    needs = [*experiments.of_every_recipe()]
    needs += [need for name in experiments.MODULES for need in experiments.find(name).reads]
    tables = [need.table for need in needs if isinstance(need, AttackTableNeed)]
    of_studies = [need.study for need in needs if isinstance(need, StudyNeed)]
    return [*dict.fromkeys(tables)], [*dict.fromkeys(of_studies)]


def of_recipe() -> list[Table]:
    """Returns all tables of a recipe."""
    attack_tables, studies = declared()
    of_studies = [made.table for made in attack_tables]
    for study in studies:
        of_studies += study.tables
        if study.facts:
            rows = f"Written by `lm-mia attack` with `{study.tables[0].file}`, or alone if there is a reason."
            of_studies.append(Table(f"{study.name}.json", rows, OF_STUDIES | {**study.facts}))
    return [*(table for table, _ in exports.DECLARED), *of_studies]


def lines(table: Table) -> Iterator[str]:
    """Yields the lines of a table on the page."""
    yield from (f"### `{table.file}`", "", table.rows, "")
    if table.key:
        names = ", ".join(f"`{name}`" for name in table.key)
        yield from (f"Rows are ordered by {names}.", "")
    yield f"| {'field' if table.file.endswith('.json') else 'column'} | unit | definition |"
    yield "|---|---|---|"
    for names, column in table.columns.items():
        quoted = ", ".join(f"`{name}`" for name in names.split(", "))
        yield f"| {quoted} | {column.unit} | {column.meaning} |"
    yield ""
    if table.notes:
        yield from (table.notes, "")


def fill(text: str, part: str, tables: Iterable[Table]) -> str:
    """Returns the page with the tables between the comments that mark a part."""
    begin, end = f"<!-- {part}: written by docs/tables_page.py -->\n", f"<!-- end: {part} -->\n"
    body = "\n".join(line for table in tables for line in lines(table))
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    [_] = pattern.findall(text)
    return pattern.sub(lambda _: f"{begin}\n{body}\n{end}", text)


def page_text() -> str:
    """Returns the text of docs/tables.md."""
    text = fill(PAGE.read_text(encoding="utf-8"), "tables of a recipe", of_recipe())
    return fill(text, "tables of the workdir", OF_WORKDIR)


def main() -> int:
    """Writes the page, or compares it; returns the exit code."""
    return generated_page.main({PAGE: page_text}, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
