"""Writes the pages of a workdir: its report, the pages of papers, and the figures and tables beside them.

    python -m analysis WORKDIR [--figure=strongmia_fig01_references ...] [--recipe=NAME ...]

Modules that draw are imported where they are needed, so that `summary_lines` and `check_figures` load quickly.
"""

import argparse
import contextlib
import math
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.experiments import MODULES, PAGE_FILES, RECIPE_FIGURES, exists, file_name, find
from analysis.formatting import (
    needs_nonmembers,
    percent,
    plural,
)
from lm_mia.config.listed_figures import is_file, matches
from lm_mia.errors import Unavailable, UserError

if TYPE_CHECKING:
    from analysis.io import RecipeResults
    from lm_mia.attacks.results import Key
    from lm_mia.attacks.spec import FigureNeed
    from lm_mia.attacks.unchanged import Inputs, Made


def write_page(
    workdir: Path,
    recipes: Sequence[str] | None,
    figures: Sequence[str],
    progress: Callable[[str, float, float], None],
    log: Callable[[str], None],
    inputs: "Inputs | None" = None,
    redraw: Collection[str] = (),
) -> Path:
    """Draws all figures, and writes them, their tables, the report page, and further pages of recipes and papers.

    If a recipe or a figure fails, the page shows the reason in one line; the others are still drawn.

    Args:
      workdir: the workdir.
      recipes: names of the recipes to show; None shows all.
      figures: names of figures of papers, or paths of Python files that define EXPERIMENT, in the order of the pages.
      progress: called as ``progress("report", done, total)``, and with other labels by figures that take long.
      log: called with one line for each recipe or figure that could not be shown, with the reason.
      inputs: what the recipes and figures follow from. What was made of the same inputs, and was not edited since, is
        not made again. None: everything is made.
      redraw: figures that are drawn again in any case.

    Returns:
      The path of the page, WORKDIR/report.html.

    Raises:
      UserError: there is no such figure.
      UserError: the workdir or a recipe does not exist, or there is nothing to show.
      UserError: no recipe has numbers, although models are under attack, and no figure could be drawn; the page is then
        written all the same.
    """
    from analysis import io
    from lm_mia.attacks.unchanged import Made

    check_figures(figures, io.read_workdir(workdir)["recipes"])
    path, made, logged = workdir / "report.html", Made(workdir), list[str]()
    key = inputs.key(recipes=recipes) if inputs else ""
    if not redraw and (lines := made.find(_REPORT, key)) is not None and not _is_outdated(workdir):
        for line in lines:
            log(line)
        progress("report", 1, 1)
        return path

    def log_and_keep(line: str) -> None:
        logged.append(line)
        log(line)

    is_complete = _write_all(
        workdir, recipes, figures, progress, log_and_keep, made, inputs, redraw
    )
    if inputs and is_complete:
        made.store(_REPORT, key, _files_of_report(workdir), logged)
    return path


_REPORT = "report"
"""Name of the whole report among what was made."""


def _is_outdated(workdir: Path) -> bool:
    from lm_mia.attacks.unchanged import is_report_outdated

    return is_report_outdated(workdir)


def _files_of_report(workdir: Path) -> list[Path]:
    """Returns all files that a report may have written."""
    from lm_mia.attacks.unchanged import files_in

    pages = [workdir / "report.html"]
    pages += [*workdir.glob("recipes/*/report.html"), *workdir.glob("recipes/*/samples.html")]
    return [*pages, *files_in(workdir / "figures", workdir / "tables")]


def _write_all(
    workdir: Path,
    recipes: Sequence[str] | None,
    figures: Sequence[str],
    progress: Callable[[str, float, float], None],
    log: Callable[[str], None],
    made: "Made",
    inputs: "Inputs | None",
    redraw: Collection[str],
) -> bool:
    """Writes the report as `write_page` does; returns whether the same inputs will give the same report."""
    from analysis import (
        comparison,
        figure_section,
        markup,
        opening,
        paper_pages,
        recipe_figures,
        sample_page,
    )
    from analysis.report import write

    sweep = opening.read_recipes(workdir, recipes, progress)
    sweep = opening.with_needs(sweep, figure_needs(figures))
    all_recipes = [*sweep.recipes, *sweep.without_population]
    failures: dict[str, str] = {}
    with_decisions, without_replicas = [], []
    for recipe in sweep.recipes:
        try:
            if recipe.view.has("flips.json"):
                with_decisions.append(recipe)
            elif _has_results_without_replicas(recipe):
                without_replicas.append(recipe)
        except UserError as error:  # such as a damaged score store
            failures[recipe.name] = markup.reason(error)
    shown = [*with_decisions, *without_replicas]
    for recipe in all_recipes:
        if recipe not in shown:
            (recipe.recipe_dir / sample_page.PAGE).unlink(missing_ok=True)
    total = len(figures) + len(shown) + len(all_recipes)
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        progress("report", done, total)

    progress("report", 0, total)
    keys: dict[str, str] = {}
    if inputs:
        is_alone = len(all_recipes) == 1
        keys = {r.name: inputs.key_of_recipe(r.name, alone=is_alone) for r in shown}
    changed = [r for r in shown if made.find(_entry(r), keys.get(r.name, "")) is None]
    if any(recipe.config.score.token_samples for recipe in with_decisions if recipe in changed):
        sample_page.start_bundling()  # while the figures are drawn
    for recipe in shown:
        try:
            if recipe in changed:
                if recipe in with_decisions or _has_figures(recipe, all_recipes):
                    recipe_figures.write(recipe)
                _write_samples(recipe)
                if recipe.name in keys:
                    files = [path for path in _files_of_recipe(recipe) if path.is_file()]
                    made.store(_entry(recipe), keys[recipe.name], files, True)
        except UserError as error:
            failures[recipe.name] = markup.reason(error)
        step()
    summaries = []
    for recipe in all_recipes:
        summaries.append(comparison.summarize(recipe))
        step()
    has_results = {r.name for r in (*with_decisions, *without_replicas)} - {*failures}
    has_results |= {m.recipe.name for m in summaries if not m.missing_reason}
    if not has_results and not figures:
        reason = [*failures.values(), *(m.missing_reason for m in summaries)][0]
        raise UserError(
            reason if len(all_recipes) == 1 else f"{workdir}: nothing to show yet: {reason}"
        )
    for name, reason in failures.items():
        log(f"not shown: {name}: {reason}")
    if all_recipes and not len(all_recipes) == len(with_decisions) == 1:
        comparison.write(workdir, summaries)
    sections, is_complete = [], not failures
    drawn = figure_section.UnchangedSections(made, inputs, sweep) if inputs else None
    for name in figures:
        section = drawn.find(name, workdir) if drawn and name not in redraw else None
        if section is None:
            section = figure_section.make_section(name, sweep, workdir)
            if drawn and section.result is not None:
                drawn.store(name, section, workdir)
        # The error of a user's file may have had a cause outside of it.
        is_complete &= not section.missing or name in MODULES
        # Figures from a user's file always show their claims.
        if name in MODULES and not sweep.compares_with_papers:
            section = section.without_comparison()
        sections.append(section)
        if section.missing:
            log(f"not drawn: {name}: {section.missing}")
        step()
    pages = paper_pages.write(workdir, sections)
    write.write(workdir, all_recipes, with_decisions, pages)
    if all(section.missing for section in sections) and (reason := _missing_numbers(all_recipes)):
        raise UserError(f"{workdir / 'report.html'}: has no numbers: {reason}")
    return is_complete


def _missing_numbers(recipes: "Sequence[RecipeResults]") -> str:
    """Returns why no recipe has numbers; empty if one has some, or has no models under attack."""
    from analysis.report import strength

    reasons = []
    for recipe in recipes:
        if not (recipe.config.attack.targets or recipe.config.attack.replicas):
            return ""
        try:
            strength.read(recipe)
        except UserError as error:
            reasons.append(str(error))
        else:
            return ""
    return reasons[0] if reasons else ""


def _entry(recipe: "RecipeResults") -> str:
    """Returns the name of the figures and samples of a recipe among what was made."""
    return f"figures of {recipe.name}"


def _files_of_recipe(recipe: "RecipeResults") -> list[Path]:
    """Returns the files of the figures of a recipe, and its page of samples, which need not exist."""
    from analysis import sample_page

    figures = recipe_figure_files(recipe.recipe_dir.parents[1], recipe.name)
    return [*figures, recipe.recipe_dir / sample_page.PAGE]


def recipe_figure_files(workdir: Path, name: str) -> list[Path]:
    """Returns the files of the figures of a recipe, which need not exist."""
    from analysis import plotting

    return [
        workdir / "figures" / f"{name}-{figure}.{suffix}"
        for figure in RECIPE_FIGURES
        for suffix in plotting.FORMATS
    ]


def _write_samples(recipe: "RecipeResults") -> None:
    """Writes the page of single samples of a recipe, or deletes it if no sample has a score of the headline attack."""
    from analysis import sample_page

    try:
        sample_page.write(recipe)
    except Unavailable:
        (recipe.recipe_dir / sample_page.PAGE).unlink(missing_ok=True)


def _has_results_without_replicas(recipe: "RecipeResults") -> bool:
    attack = recipe.config.attack
    if attack.targets and recipe.view.has("targets.csv"):
        return True
    studies = ((attack.leave_one_out, "pooling.json"), (attack.zero_run, "zero_run.json"))
    return any(is_set and recipe.view.has(name) for is_set, name in studies)


def _has_figures(recipe: "RecipeResults", all_recipes: Sequence["RecipeResults"]) -> bool:
    """Returns whether the page has details of a recipe without replicas that link to figures."""
    attack = recipe.config.attack
    return len(all_recipes) == 1 or bool(attack.leave_one_out or attack.zero_run)


def leave_out_missing(figures: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns those of the figures that a workdir lists that exist, and a line about each of the others.

    A file may have been moved, renamed or deleted, or the workdir may come from another machine or version.
    """
    missing = [name for name in figures if not exists(name)]
    lines = [
        f"figures={name!r}: left out, since there is no such {'file' if is_file(name) else 'figure'}; restore it, or "
        f"remove the figure from the workdir with {_removing_flag(name, figures)}"
        for name in missing
    ]
    return [name for name in figures if name not in missing], lines


def _removing_flag(name: str, figures: Sequence[str]) -> str:
    """Returns the flag that removes a figure from those that a workdir lists, and no other one."""
    short = Path(name).name
    return shlex.quote(f"--config.figures=-{short if matches(short, figures) == {name} else name}")


def check_figures(
    names: Sequence[str], recipes: Sequence[str] = (), *, are_listed: bool = False
) -> None:
    """Checks the names of figures before any work.

    Args:
      names: names of figures, as in `write_page`.
      recipes: names of all recipes of the workdir.
      are_listed: whether the workdir lists these figures, so that the message names the flag that removes them.

    Raises:
      UserError: one line for each name that is not a figure, whose file does not define EXPERIMENT, or whose image or
        table would replace that of another figure or part of the page.
    """
    wrong: dict[str, str] = {}
    files: dict[str, str] = {}
    for name in names:
        try:
            if name not in MODULES:
                find(name)
        except UserError as error:
            wrong[name] = str(error)
            continue
        file = file_name(name)
        other = files.setdefault(file, name)
        if other != name:
            wrong[name] = f"figures={name!r}: {other!r} has the same file name; rename one of them"
        elif is_file(name) and (
            file in PAGE_FILES or any(f"{r}-{f}" == file for r in recipes for f in RECIPE_FIGURES)
        ):
            wrong[name] = (
                f"figures={name!r}: the page writes other results to files named {file}; rename the file"
            )
    if wrong:
        raise UserError(
            "\n".join(
                f"{line}, or remove the figure from the workdir with {_removing_flag(name, names)}"
                if are_listed
                else line
                for name, line in wrong.items()
            )
        )


def figure_needs(names: Sequence[str]) -> list["FigureNeed"]:
    """Returns what the page and figures need from the attacks stage; arguments and errors are as of `check_figures`."""
    from analysis import experiments

    return [*experiments.of_every_recipe(), *(need for name in names for need in find(name).reads)]


def figure_keys(names: Sequence[str]) -> list["Key"]:
    """Returns the keys of the results that figures keep in the workdir; arguments and errors as of `check_figures`."""
    return [key for name in names for key in find(name).stored_keys()]


def summary_lines(
    workdir: Path,
    recipes: Sequence[str] | None,
    log: Callable[[dict[str, str]], None] = lambda _: None,
    inputs: "Inputs | None" = None,
) -> list[str]:
    """Returns the lines that a command prints at its end: the main numbers of each recipe, and the path of the page.

    Args:
      workdir: the workdir.
      recipes: names of recipes; None for all.
      log: called with an event for the first sentences of each recipe, which `lm-mia status` shows later.
      inputs: what the recipes follow from; lines that were made of the same inputs are not made again. They are in the
        log already.

    Returns:
      The lines. If a recipe has no numbers, its line says why; no error is raised.
    """
    from lm_mia.attacks.unchanged import Made

    made, key = Made(workdir), inputs.key(recipes=recipes) if inputs else ""
    lines = made.find(_SUMMARY, key)
    if lines is None:
        lines = _summary_of_recipes(workdir, recipes, log)
        if inputs:
            made.store(_SUMMARY, key, (), lines)
    page = workdir / "report.html"
    if page.is_file():
        outdated = " (older than the tables)" if _is_outdated(workdir) else ""
        lines = [*lines, f"report: {page}{outdated}"]
    return lines


_SUMMARY = "summary"
"""Name of the last lines of commands among what was made."""


def _summary_of_recipes(
    workdir: Path, recipes: Sequence[str] | None, log: Callable[[dict[str, str]], None]
) -> list[str]:
    from analysis import io, opening

    lines: list[str] = []
    sweep = opening.with_needs(opening.read_recipes(workdir, recipes), ())
    for recipe in [*sweep.recipes, *sweep.without_population]:
        text = _summarize(recipe)
        lines.append(f"{recipe.name}: {text}")
        log({"event": "answer", "recipe": recipe.name, "text": text})
        with contextlib.suppress(UserError):
            sentences = io.read_warnings(recipe)
            lines += [f"{recipe.name}: warning: {sentence}" for sentence in sentences]
    return lines


def _summarize(recipe: "RecipeResults") -> str:
    """Returns the first sentences of the page of a recipe; without numbers, the reason."""
    from analysis import markup
    from analysis.report import recipe_page, strength

    attack = recipe.config.attack
    reason = "its population is not built yet"
    if recipe.has_population:
        try:
            if attack.targets or attack.replicas:
                return recipe_page.sentences(recipe, strength.read(recipe)).text
            if recipe.view.has("pooling.json"):
                return _summarize_pooling(recipe)
            return _summarize_zero_run(recipe)
        except UserError as error:
            reason = markup.reason(error)
    return f"no numbers: {reason.removeprefix(f'{recipe.name}: ')}"


def _summarize_pooling(recipe: "RecipeResults") -> str:
    """Summarizes the attacks on each reference with the others, if there are neither replicas nor targets."""
    from analysis import io

    facts = recipe.view.facts("pooling")
    if facts["reason"]:
        return f"no pooled rates: {facts['reason']}"
    focus = facts["settings"]["focus_fpr"]
    counts = f"({plural(facts['models'], 'reference')}, each attacked with the others)"
    for row in io.read_table(recipe, "pooling.csv"):
        is_shown = row["strategy"] == "standardized" and not row["oracle"]
        if is_shown and row["models"] == facts["models"] and row["fpr"] == focus:
            if math.isnan(row["tpr"]):
                break
            tpr = f"TPR {row['tpr']:.3f} at {percent(focus)} FPR"
            return f"{tpr}, by one threshold for standardized losses {counts}"
    return f"no TPR at an FPR of {percent(focus)}, which {needs_nonmembers(focus)} {counts}"


def _summarize_zero_run(recipe: "RecipeResults") -> str:
    facts = recipe.view.facts("zero_run")
    if facts["reason"]:
        return f"no zero-run evaluation: {facts['reason']}"
    table = recipe.recipe_dir / "tables" / "zero_run.csv"
    return f"zero-run evaluation of {plural(facts['models'], 'reference')} in {table}"


def main(argv: Sequence[str]) -> int:
    """Runs `python -m analysis`; returns 0, or 2 with one line on stderr."""
    from analysis import io

    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Draws the figures of a workdir and writes its report page.",
    )
    parser.add_argument("workdir", type=Path, help="the workdir")
    figure = (
        "name of a figure, such as strongmia_fig01_references, or path of a Python file that defines EXPERIMENT; "
        "repeatable (default: the figures listed in the workdir's config.json)"
    )
    parser.add_argument("--figure", action="append", metavar="NAME", help=figure)
    recipe = "name of a recipe; repeatable (default: all recipes of the workdir)"
    parser.add_argument("--recipe", action="append", metavar="NAME", help=recipe)
    options = parser.parse_args(argv)
    try:
        figures = options.figure
        if not figures:
            figures, lines = leave_out_missing(io.read_workdir(options.workdir)["figures"])
            for line in lines:
                print(line, file=sys.stderr)
        silent: Callable[[str, float, float], None] = lambda *_: None  # noqa: E731
        print(write_page(options.workdir, options.recipe, figures, silent, print))
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
