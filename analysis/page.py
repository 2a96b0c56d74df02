"""Writes the report page WORKDIR/report.html: recipes, figures of a paper, and how everything was made.

    python -m analysis WORKDIR [--figure=fig01_references ...] [--recipe=NAME ...]

Modules that draw are imported only where they are needed, so that `answers` and `check_figures` load quickly.
"""

import argparse
import csv
import datetime
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.figures import MODULES, file_name, find
from lm_mia.atomic import EXTRACTION_JSON, FLIPS_JSON, TARGETS_CSV, write_atomically
from lm_mia.config.needs import PresentModels, assign_roles, attack_settings, target_attack
from lm_mia.config.recipe import from_dict
from lm_mia.errors import UserError

if TYPE_CHECKING:
    from analysis.comparison import Measured
    from analysis.figure_part import FigureSection
    from analysis.io import RecipeResults, SweepResults
    from analysis.recipe_part import Part
    from lm_mia.config.needs import LossNeed, Need

_QUESTION = "Who was in the training data, and would the answer survive retraining?"


def write_page(
    folder: Path,
    recipes: Sequence[str] | None,
    figures: Sequence[str],
    progress: Callable[[str, float, float], None],
    say: Callable[[str], None],
) -> Path:
    """Draws all figures, and writes them, their tables and the page that shows them.

    If a recipe or a figure fails, the page shows the reason in one line, and the others are still drawn.

    Args:
      folder: of the workdir.
      recipes: names of the recipes to show; None: all of the workdir.
      figures: names of figures of the paper, or paths of Python files that define FIGURE, in the order of the page.
      progress: called as ``progress("report", done, total)``.
      say: called with one line for each recipe or figure that could not be shown, which gives the reason.

    Returns:
      The path of the page, WORKDIR/report.html.

    Raises:
      UserError: a figure is unknown.
      analysis.io.WorkdirError: the workdir or a recipe does not exist, or there is nothing to show.
    """
    from analysis import comparison, figure_part, io, markup, recipe_part

    check_figures(figures)
    found = io.read_recipes(folder, recipes)
    everyone = [*found.all, *found.unbuilt]
    finished = [r for r in found.all if (r.folder / FLIPS_JSON).is_file()]
    total, done = len(figures) + len(finished) + len(everyone), 0

    def step() -> None:
        nonlocal done
        done += 1
        progress("report", done, total)

    progress("report", 0, total)
    parts: dict[str, Part | str] = {}
    for recipe in finished:
        try:
            parts[recipe.name] = recipe_part.draw(recipe.folder, alone=len(everyone) == 1)
        except (io.MissingModelsError, UserError) as error:
            parts[recipe.name] = markup.reason(error)
        step()
    measured = []
    for recipe in everyone:
        measured.append(comparison.measure(recipe))
        step()
    whys = {name: part for name, part in parts.items() if isinstance(part, str)}
    compared = not _by_itself(everyone, parts) and not all(m.why for m in measured)
    if len(whys) == len(parts) and not figures and not compared:
        why = [*whys.values(), *(m.why for m in measured)][0]
        raise io.WorkdirError(
            why if len(everyone) == 1 else f"{folder}: nothing to show yet: {why}"
        )
    for name, why in whys.items():
        say(f"not shown: {name}: {why}")
    shown = []
    for name in figures:
        shown.append(figure_part.show(name, found, folder))
        if why := shown[-1].absent:
            say(f"not drawn: {name}: {why}")
        step()
    write_atomically(folder / "report.html", _render(folder, found, parts, measured, shown))
    return folder / "report.html"


def check_figures(names: Sequence[str]) -> None:
    """Checks the names of figures before any work.

    Args:
      names: as of `write_page`.

    Raises:
      UserError: with one line for each name that is not a figure, or whose file does not define FIGURE.
    """
    wrong: list[str] = []
    files: dict[str, str] = {}
    for name in names:
        try:
            if name not in MODULES:
                find(name)
        except UserError as error:
            wrong.append(str(error))
            continue
        other = files.setdefault(file_name(name), name)
        if other != name:
            wrong.append(f"figures={name!r}: {other!r} has the same file name; rename one of them")
    if wrong:
        raise UserError("\n".join(wrong))


def needs(names: Sequence[str]) -> list["Need | LossNeed"]:
    """Returns what figures need from the attacks stage; names and errors are those of `check_figures`."""
    return [need for name in names for need in find(name).needs]


def answers(folder: Path, recipes: Sequence[str] | None) -> list[str]:
    """Returns what a command prints at its end: one line per recipe with its main numbers, and the path of the page.

    Args:
      folder: of the workdir.
      recipes: names of recipes; None: all of the workdir.

    Returns:
      The lines. If the tables of a recipe cannot be read, its line says so; nothing is raised.
    """
    names: Sequence[str] = recipes or _json(folder / "config.json").get("recipes", [])
    compared = {row.get("recipe"): row for row in _rows(folder / "tables" / "comparison.csv")}
    lines = [_answer(folder / "recipes" / name, compared.get(name)) for name in names]
    page = folder / "report.html"
    if page.is_file():
        tables = [
            folder / "recipes" / name / f
            for name in names
            for f in (FLIPS_JSON, EXTRACTION_JSON, TARGETS_CSV)
        ]
        newest = max((path.stat().st_mtime for path in tables if path.is_file()), default=0.0)
        old = " (older than the tables)" if page.stat().st_mtime < newest else ""
        lines.append(f"report: {page}{old}")
    return lines


def _answer(recipe: Path, compared: dict[str, str] | None) -> str:
    """The line of one recipe, from its tables; without any, the reason in its line of tables/comparison.csv."""
    name = recipe.name
    try:
        if (recipe / FLIPS_JSON).is_file():
            return f"{name}: {_of_tables(recipe)}"
        if (recipe / TARGETS_CSV).is_file():
            return f"{name}: {_of_targets(recipe)}"
    except (OSError, KeyError, ValueError, TypeError, StopIteration):
        return f"{name}: its tables cannot be read; run lm-mia attack again"
    if compared and compared["why"]:
        return f"{name}: no numbers: {compared['why'].removeprefix(f'{name}: ')}"
    return f"{name}: not attacked yet"


def _of_tables(recipe: Path) -> str:
    facts = _json(recipe / FLIPS_JSON)
    focus = facts["config"]["focus_fpr"]
    best: dict[str, dict[str, str]] = {}
    for row in _rows(recipe / "tables" / "attacks.csv"):
        if int(row["references"]) >= int(
            best.get(row["attack"], {"references": "0"})["references"]
        ):
            best[row["attack"]] = row
    lira, loss = best["lira_online"], best.get("loss")
    said = _numbers(
        float(lira["auc_mean"]),
        float(lira["auc_std"] or "nan"),
        float(lira[f"tpr_at_{focus:g}_mean"] or "nan"),
        focus,
        f" (loss {_plus_minus(float(loss['auc_mean']), float(loss['auc_std'] or 'nan'))})"
        if loss
        else "",
    )
    counts = f"({facts['replicas']} replicas, {facts['references']} references)"
    if not facts["k_low"]:
        return f"{said}; too few replicas to tell which decisions are coin flips {counts}"
    shares = next(
        row
        for row in _rows(recipe / "tables" / "flip_shares.csv")
        if row["bin"] == "coin flip" and math.isclose(float(row["fpr"]), focus)
    )
    members, others = (100 * float(shares[f"{kind}_fraction"]) for kind in ("member", "nonmember"))
    return f"{said}; coin flips: {members:.1f}% of members, {others:.1f}% of non-members {counts}"


def _of_targets(recipe: Path) -> str:
    """LiRA with all references, as `analysis.comparison` shows it."""
    import pyarrow.parquet as pq

    c = from_dict(_json(recipe / "config.json")["config"])
    if _json((recipe / TARGETS_CSV).with_suffix(".json")) != attack_settings(c.attack):
        return "attacked with other settings; run lm-mia attack again"
    models = [row for row in _rows(recipe / "tables" / "models.csv") if row["role"] == "reference"]
    present = PresentModels(tuple(int(row["subset_seed"]) for row in models), ())
    count = len(assign_roles(present, c.attack).references)
    attack = target_attack(c, present, "lira_online", count)
    if attack is None:
        return "too few models"
    auc_T = [
        float(row["auc"]) for row in _rows(recipe / TARGETS_CSV) if row["attack_id"] == attack.id
    ]
    points = pq.read_table(
        (recipe / TARGETS_CSV).with_name("target_roc.parquet"),
        columns=["fpr", "tpr"],
        filters=[("attack_id", "==", attack.id), ("on_curve", "==", False)],
    ).to_pylist()
    focus = c.attack.focus_fpr
    tpr_T = [point["tpr"] for point in points if math.isclose(point["fpr"], focus)]
    auc_std = statistics.pstdev(auc_T) if len(auc_T) > 1 else math.nan
    numbers = _numbers(statistics.fmean(auc_T), auc_std, statistics.fmean(tpr_T), focus)
    return f"{numbers} ({len(auc_T)} targets, {count} references)"


def _numbers(auc: float, auc_std: float, tpr: float, fpr: float, also: str = "") -> str:
    at = f"{100 * fpr:.3g}% FPR"
    return f"LiRA AUC {_plus_minus(auc, auc_std)}{also}, TPR {tpr:.3f} at {at}"


def _plus_minus(mean: float, std: float) -> str:
    return f"{mean:.3f}" + ("" if math.isnan(std) else f" ± {std:.3f}")


def _json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file; empty if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _rows(path: Path) -> list[dict[str, str]]:
    """Returns the lines of a CSV file; an empty list if there is no file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _render(
    folder: Path,
    found: "SweepResults",
    parts: Mapping[str, "Part | str"],
    measured: Sequence["Measured"],
    shown: Sequence["FigureSection"],
) -> str:
    """Returns the page as HTML; also writes the tables and the figure that cover all recipes."""
    from analysis import comparison, figure_part, formatting, markup, provenance

    everyone = [*found.all, *found.unbuilt]
    body, contents = [], []
    alone = len(everyone) == 1
    if not _by_itself(everyone, parts):
        png = comparison.write(folder, measured)
        image = markup.data_uri(png) if png else ""
        body.append(comparison.render(measured, image, list(parts)))
        contents.append(("comparison", "The recipe" if alone else "Recipes compared", []))
    if shown:
        figure_part.write_claims(folder, shown)
        body.append(figure_part.render(shown))
        links = [("claims", "Claims")] if any(s.claims for s in shown) else []
        links += [(s.name, s.short) for s in shown]
        contents.append(("figures", "Figures and tables", links))
    sections = []
    for name, part in parts.items():
        title = f"Recipe {name}"
        of_part = {"at": markup.anchor(name), "title": title}
        of_part |= {"why": part} if isinstance(part, str) else {"why": "", "html": part.html}
        sections.append(of_part)
        links = [] if isinstance(part, str) else part.facts["sections"]
        contents.append((of_part["at"], title, links))
    made = provenance.render(everyone)
    contents.append(("made", "How it was made", []))
    models = sum(m.models for m in measured)
    what = formatting.plural(models, "language model") if models else "language models"
    whose = f"recipe {everyone[0].name}" if alone else f"{len(everyone)} recipes"
    return (
        markup.environment()
        .get_template("page.html.j2")
        .render(
            name=folder.resolve().name,
            title=_QUESTION,
            lead=f"Membership inference on {what}: {whose} of the workdir {folder.resolve().name}.",
            cards=_cards(parts, measured, shown),
            time=datetime.datetime.now(datetime.UTC),
            version=provenance.version(),
            contents=contents,
            body=body,
            parts=sections,
            alone=alone,
            made=made,
        )
    )


def _by_itself(recipes: "Sequence[RecipeResults]", parts: Mapping[str, object]) -> bool:
    """Returns whether the page shows a single recipe with tables, so that a comparison would add nothing."""
    return len(recipes) == 1 and bool(parts)


def _cards(
    parts: Mapping[str, "Part | str"],
    measured: Sequence["Measured"],
    shown: Sequence["FigureSection"],
) -> list[tuple[str, str]]:
    """Returns the main numbers of the page, each with its description."""
    from analysis import figure_part
    from analysis.io import percent

    cards: list[tuple[str, str]] = []
    numbers = [m for m in measured if not m.why]
    if len(measured) == 1:
        [only] = [*parts.values()] or [""]
        if not isinstance(only, str):
            cards += only.facts["cards"]
        elif numbers:
            [m] = numbers
            cards.append((f"{m.auc[0]:.3f}", f"AUC of LiRA on {m.over}; 0.5 is chance"))
            cards.append((percent(m.tpr[0]), f"of members found at an FPR of {percent(m.fpr)}"))
    else:
        cards.append((f"{len(measured)}", "recipes"))
        cards.append((f"{sum(m.models for m in measured):,}", "models"))
        if numbers:
            low, high = (pick(numbers, key=lambda m: m.auc[0]) for pick in (min, max))
            cards.append((f"{low.auc[0]:.3f}", f"lowest AUC of LiRA ({low.recipe.name})"))
            cards.append((f"{high.auc[0]:.3f}", f"highest AUC of LiRA ({high.recipe.name})"))
    verdicts = figure_part.counted(shown)
    if any(verdicts.values()):
        cards += [
            (f"{count}", f"claims of the paper {verdict}") for verdict, count in verdicts.items()
        ]
    return cards


def main(argv: Sequence[str]) -> int:
    """Entry point of `python -m analysis`: 0, or 2 with one line on stderr."""
    from analysis import io

    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Draws the figures of a workdir and writes its report page.",
    )
    parser.add_argument("workdir", type=Path, help="the workdir")
    figure = (
        "name of a figure, such as fig01_references, or a Python file that defines FIGURE; repeatable "
        "(default: the figures that the workdir's config.json lists)"
    )
    parser.add_argument("--figure", action="append", metavar="NAME", help=figure)
    recipe = "name of a recipe; repeatable (default: all of the workdir)"
    parser.add_argument("--recipe", action="append", metavar="NAME", help=recipe)
    known = parser.parse_args(argv)
    try:
        figures = known.figure or io.read_workdir(known.workdir)["figures"]
        silent: Callable[[str, float, float], None] = lambda *_: None  # noqa: E731
        print(write_page(known.workdir, known.recipe, figures, silent, print))
    except (UserError, io.WorkdirError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
