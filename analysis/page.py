"""Writes the report page WORKDIR/report.html: its recipes, figures, and how they were produced.

    python -m analysis WORKDIR [--figure=strongmia_fig01_references ...] [--recipe=NAME ...]

Modules that draw are imported where they are needed, so that `summary_lines` and `check_figures` load quickly.
"""

import argparse
import contextlib
import datetime
import math
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from analysis.figures import MODULES, PAGE_FILES, RECIPE_FIGURES, exists, file_name, find
from analysis.formatting import (
    MIN_HEADLINE_REPLICAS,
    found_card,
    needs_nonmembers,
    percent,
    plural,
    plus_minus,
    share_range,
)
from lm_mia.atomic import (
    write_atomically,
)
from lm_mia.attacks.spec import (
    Request,
    Variant,
    attack_spec,
)
from lm_mia.config.listed_figures import is_file, matches
from lm_mia.errors import UserError

if TYPE_CHECKING:
    from analysis.comparison import RecipeSummary
    from analysis.figure_section import FigureSection
    from analysis.io import RecipeResults, SweepResults
    from analysis.recipe_section import RecipeSection
    from lm_mia.attacks.results import Key
    from lm_mia.attacks.spec import FigureNeed

_OTHER_ATTACKS: Mapping[str, str] = MappingProxyType({"stacked": "stacked LiRA", "loss": "loss"})
"""Attacks whose AUC stands beside that of LiRA in the lines that a command prints."""
_QUESTION = "Who was in the training data, and would the answer survive retraining?"


def write_page(
    workdir: Path,
    recipes: Sequence[str] | None,
    figures: Sequence[str],
    progress: Callable[[str, float, float], None],
    log: Callable[[str], None],
) -> Path:
    """Draws all figures, and writes them, their tables, the report page, and each recipe's page of single samples.

    If a recipe or a figure fails, the page shows the reason in one line; the others are still drawn.

    Args:
      workdir: the workdir.
      recipes: names of the recipes to show; None shows all.
      figures: names of figures of papers, or paths of Python files that define EXPERIMENT, in the order of the page.
      progress: called as ``progress("report", done, total)``, and with other labels by figures that take long.
      log: called with one line for each recipe or figure that could not be shown, with the reason.

    Returns:
      The path of the page, WORKDIR/report.html.

    Raises:
      UserError: there is no such figure.
      UserError: the workdir or a recipe does not exist, or there is nothing to show.
    """
    from analysis import (
        comparison,
        figure_section,
        io,
        markup,
        recipe_section,
        sample_page,
        target_section,
    )

    check_figures(figures, io.read_workdir(workdir)["recipes"])
    sweep = io.read_recipes(workdir, recipes, progress)
    sweep = io.with_needs(sweep, figure_needs(figures))
    all_recipes = [*sweep.recipes, *sweep.without_population]
    failures: dict[str, str] = {}
    with_tables, without_replicas = [], []
    for recipe in sweep.recipes:
        try:
            if recipe.view.has("flips.json"):
                with_tables.append(recipe)
            elif _has_section_without_replicas(recipe, alone=len(all_recipes) == 1):
                without_replicas.append(recipe)
        except UserError as error:  # such as a damaged score store
            failures[recipe.name] = markup.reason(error)
    for recipe in all_recipes:
        if recipe not in with_tables:
            (recipe.recipe_dir / sample_page.PAGE).unlink(missing_ok=True)
    total = len(figures) + len(with_tables) + len(without_replicas) + len(all_recipes)
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        progress("report", done, total)

    progress("report", 0, total)
    if with_tables:
        sample_page.start_bundling()  # while the figures are drawn
    recipe_sections: dict[str, RecipeSection | str] = {**failures}
    for recipe in with_tables:
        try:
            alone = len(all_recipes) == 1
            recipe_sections[recipe.name] = recipe_section.draw(recipe, alone=alone)
            sample_page.write(recipe)
        except UserError as error:
            recipe_sections[recipe.name] = markup.reason(error)
        step()
    for recipe in without_replicas:
        try:
            recipe_sections[recipe.name] = target_section.draw(recipe)
        except UserError as error:
            recipe_sections[recipe.name] = markup.reason(error)
        step()
    summaries = []
    for recipe in all_recipes:
        summaries.append(comparison.summarize(recipe))
        step()
    failures = {name: s for name, s in recipe_sections.items() if isinstance(s, str)}
    has_comparison = not _is_single_recipe(all_recipes)
    has_comparison = has_comparison and not all(m.missing_reason for m in summaries)
    if len(failures) == len(recipe_sections) and not figures and not has_comparison:
        reason = [*failures.values(), *(m.missing_reason for m in summaries)][0]
        raise UserError(
            reason if len(all_recipes) == 1 else f"{workdir}: nothing to show yet: {reason}"
        )
    for name, reason in failures.items():
        log(f"not shown: {name}: {reason}")
    figure_sections = []
    for name in figures:
        section = figure_section.make_section(name, sweep, workdir)
        # Figures from a user's file always show their claims.
        if name in MODULES and not sweep.compares_with_papers:
            section = section.without_comparison()
        figure_sections.append(section)
        if reason := figure_sections[-1].missing:
            log(f"not drawn: {name}: {reason}")
        step()
    html = _render(workdir, sweep, recipe_sections, summaries, figure_sections)
    write_atomically(workdir / "report.html", html)
    return workdir / "report.html"


def _has_section_without_replicas(recipe: "RecipeResults", *, alone: bool) -> bool:
    """Returns whether a recipe without replicas has a section.

    Sections for all recipes of a large sweep would make the page too long; their comparison suffices. Recipes with an
    evaluation that is shown nowhere else have one.
    """
    attack = recipe.config.attack
    if attack.targets:
        is_shown = alone or recipe.is_imported or attack.zero_run
        return bool(is_shown) and recipe.view.has("targets.csv")
    studies = ((attack.leave_one_out, "pooling.json"), (attack.zero_run, "zero_run.json"))
    return any(is_set and recipe.view.has(name) for is_set, name in studies)


def _has_decisions(recipe: "RecipeResults") -> bool:
    try:
        return recipe.view.has("flips.json")
    except UserError:
        return False


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


def summary_lines(workdir: Path, recipes: Sequence[str] | None) -> list[str]:
    """Returns the lines that a command prints at its end: the main numbers of each recipe, and the path of the page.

    Args:
      workdir: the workdir.
      recipes: names of recipes; None for all.

    Returns:
      The lines. If a recipe has no numbers, its line says why; no error is raised.
    """
    from analysis import io
    from lm_mia.attacks.exports import is_report_outdated

    lines = []
    sweep = io.with_needs(io.read_recipes(workdir, recipes), ())
    for recipe in [*sweep.recipes, *sweep.without_population]:
        lines.append(f"{recipe.name}: {_summarize(recipe)}")
        with contextlib.suppress(UserError):
            sentences = io.read_warnings(recipe)
            lines += [f"{recipe.name}: warning: {sentence}" for sentence in sentences]
    page = workdir / "report.html"
    if page.is_file():
        outdated = " (older than the tables)" if is_report_outdated(workdir) else ""
        lines.append(f"report: {page}{outdated}")
    return lines


def _summarize(recipe: "RecipeResults") -> str:
    """Returns the main numbers of a recipe in words; without numbers, the reason."""
    if recipe.has_population:
        with contextlib.suppress(UserError):
            if recipe.view.has("flips.json"):
                return _summarize_replicas(recipe)
            if recipe.config.attack.targets and (summary := _summarize_targets(recipe)):
                return summary
            if recipe.view.has("pooling.json"):
                return _summarize_pooling(recipe)
            if recipe.view.has("zero_run.json"):
                return _summarize_zero_run(recipe)
    from analysis import comparison  # loads Matplotlib

    reason = comparison.summarize(recipe).missing_reason
    return f"no numbers: {reason.removeprefix(f'{recipe.name}: ')}"


def _summarize_replicas(recipe: "RecipeResults") -> str:
    from analysis import io, tables

    facts = recipe.view.facts("flips")
    focus = facts["config"]["focus_fpr"]
    rows = tables.best_per_attack(io.read_table(recipe, "attacks.csv"))
    best = {row["attack"]: row for row in rows}
    lira = best["lira_online"]
    other_subsets = _summarize_reference_targets(recipe)
    if other_subsets:
        other_subsets = f" over {facts['replicas']} replicas, {other_subsets}"
    others = ", ".join(
        f"{name} {plus_minus(row['auc_mean'], row['auc_std'])}"
        for attack, name in _OTHER_ATTACKS.items()
        if (row := best.get(attack))
    )
    numbers = _format_numbers(
        plus_minus(lira["auc_mean"], lira["auc_std"]),
        lira[f"tpr_at_{focus:g}_mean"],
        focus,
        other_subsets + (f" ({others})" if others else ""),
        interval=_interval(recipe, f"tpr_at_{focus:g}"),
    )
    counts = f"({facts['replicas']} replicas, {facts['references']} references)"
    if facts["replicas"] < MIN_HEADLINE_REPLICAS:
        return f"{numbers}; fewer than {MIN_HEADLINE_REPLICAS} replicas are too few to report coin flips {counts}"
    shares = next(
        row
        for row in tables.coin_flip_rows(tables.read_flip_shares(recipe))
        if math.isclose(row["fpr"], focus)
    )
    observed, at_127 = [], []
    for column, name in (("member_fraction", "members"), ("nonmember_fraction", "non-members")):
        observed.append(f"{100 * shares[column]:.1f}% of {name}")
        at_127.append(share_range(shares[f"{column}_127_low"], shares[f"{column}_127_high"]))
    return (
        f"{numbers}; coin flips (flip rate {facts['cutoff']:.3f} or more): {', '.join(observed)}; 127 replicas would "
        f"show {' and '.join(at_127)} {counts}"
    )


def _summarize_reference_targets(recipe: "RecipeResults") -> str:
    """Summarizes the AUC of LiRA over targets with different training subsets; empty for fewer than two of them."""
    from analysis import io

    auc_M = io.read_frame(recipe, "reference_targets.csv", ["auc"])["auc"].dropna().tolist()
    if len(auc_M) < 2:
        return ""
    return f"{_format_auc(auc_M)} over {len(auc_M)} targets of different subsets"


def _summarize_targets(recipe: "RecipeResults") -> str:
    """Summarizes LiRA with all references, with the numbers of `analysis.comparison`; empty without targets."""
    from lm_mia.attacks import evaluations  # loads SciPy

    def points(name: str) -> Sequence[Mapping[Any, Any]]:
        """Returns the rates of an attack at attack.fprs; none if it was not made."""
        attack = attack_spec(recipe.attackable, Variant(name))
        if attack is None or attack not in recipe.view.declared.score_table:
            return []
        table = recipe.view.pieces.table(Request(attack, evaluations.operating_points))
        return table[~table["on_curve"]].to_dict("records")

    if not (rows := points("lira_online")):
        return ""
    auc_T = _aucs(rows)
    counts = f"({plural(len(auc_T), 'target')}, {plural(len(recipe.references), 'reference')})"
    if any(map(math.isnan, auc_T)):
        return f"LiRA has no AUC, since samples have too few IN or OUT references {counts}"
    focus = recipe.config.attack.focus_fpr
    # It is NaN if so many samples have no score that the rate cannot be measured.
    tpr_T = [row["tpr"] for row in rows if math.isclose(row["fpr"], focus)]
    others = ", ".join(
        f"{other_name} {_format_auc(other_auc_T)}"
        for other, other_name in _OTHER_ATTACKS.items()
        if (other_auc_T := _aucs(points(other)))
    )
    numbers = _format_numbers(
        _format_auc(auc_T),
        statistics.fmean(tpr_T),
        focus,
        f" ({others})" if others else "",
        interval=_interval(recipe, f"tpr_at_{focus:g}"),
        nonmembers=f"{min(row['nonmembers'] for row in rows):,}",
    )
    return f"{numbers} {counts}"


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


def _aucs(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Returns the AUC of each target, in order."""
    return [*{row["target"]: float(row["auc"]) for row in rows}.values()]


def _format_auc(auc_T: Sequence[float]) -> str:
    """Returns the mean and the standard deviation of the AUC over targets in words."""
    return plus_minus(
        statistics.fmean(auc_T), statistics.pstdev(auc_T) if len(auc_T) > 1 else math.nan
    )


def _interval(recipe: "RecipeResults", metric: str) -> str:
    """Returns the 95% interval of a metric of LiRA, of the mean over the attacked models if there are several; empty
    without one."""
    from analysis import tables

    rows = [
        row
        for row in tables.read_intervals(recipe, recipe.config.attack.bootstraps)
        if row["attack"] == "lira_online" and row["metric"] == metric and row["role"] != "reference"
    ]
    row = max(rows, key=lambda row: row["models"], default=None)
    if not row or math.isnan(row["low"]):
        return ""
    return f"{row['low']:.3f} to {row['high']:.3f}"


def _format_numbers(
    auc: str, tpr: float, fpr: float, more: str = "", interval: str = "", nonmembers: str = "fewer"
) -> str:
    """Returns the main numbers in words; `nonmembers` says how many non-members have a score."""
    text = f"LiRA AUC {auc}{more}, TPR "
    if not math.isnan(tpr):
        covered = f" (95% interval {interval})" if interval else ""
        return f"{text}{tpr:.3f}{covered} at {percent(fpr)} FPR"
    needs = f"which {needs_nonmembers(fpr)} with a score; there are {nonmembers}"
    return f"{text}unknown at {percent(fpr)} FPR, {needs}"


def _render(
    workdir: Path,
    sweep: "SweepResults",
    recipe_sections: Mapping[str, "RecipeSection | str"],
    summaries: Sequence["RecipeSummary"],
    figure_sections: Sequence["FigureSection"],
) -> str:
    """Returns the page as HTML; also writes the tables and the figure that cover all recipes."""
    from analysis import comparison, figure_section, markup, provenance

    all_recipes = [*sweep.recipes, *sweep.without_population]
    alone = len(all_recipes) == 1
    body, contents = [], []
    if all_recipes and not _is_single_recipe(all_recipes):
        png = comparison.write(workdir, summaries)
        image = markup.data_uri(png) if png else ""
        body.append(comparison.render(summaries, image, list(recipe_sections)))
        contents.append(("comparison", "The recipe" if alone else "Comparison of recipes", []))
    if figure_sections:
        figure_section.write_claims(workdir, figure_sections)
        body.append(figure_section.render(figure_sections))
        links = [("claims", "Claims")] if any(s.claims for s in figure_sections) else []
        links += [(s.name, s.short_title) for s in figure_sections]
        contents.append(("figures", "Figures and tables", links))
    recipes = []
    for name, section in recipe_sections.items():
        entry = {"at": markup.anchor(name), "title": f"Recipe {name}"}
        if isinstance(section, str):
            entry |= {"error": section}
            links = []
        else:
            entry |= {"error": "", "html": section.html}
            links = section.facts["sections"]
        recipes.append(entry)
        contents.append((entry["at"], entry["title"], links))
    contents.append(("made", "How the results were produced", []))
    models = sum(m.models for m in summaries)
    models_text = plural(models, "language model") if models else "language models"
    if not all_recipes:
        models_text = "simulated models"
    recipes_text = f"recipe {all_recipes[0].name}" if alone else f"{len(all_recipes)} recipes"
    workdir_name = workdir.resolve().name
    return (
        markup.environment()
        .get_template("page.html.j2")
        .render(
            name=workdir_name,
            title=_QUESTION,
            lead=f"Membership inference on {models_text}: {recipes_text} in the workdir {workdir_name}.",
            cards=_cards(recipe_sections, summaries, figure_sections),
            time=datetime.datetime.now(datetime.UTC),
            version=provenance.version(),
            contents=contents,
            body=body,
            recipes=recipes,
            alone=alone,
            made=provenance.render(all_recipes),
        )
    )


def _is_single_recipe(recipes: "Sequence[RecipeResults]") -> bool:
    """Returns whether the page shows a single recipe with decisions, for which a comparison would add nothing."""
    return len(recipes) == 1 and _has_decisions(recipes[0])


def _cards(
    recipe_sections: Mapping[str, "RecipeSection | str"],
    summaries: Sequence["RecipeSummary"],
    figure_sections: Sequence["FigureSection"],
) -> list[tuple[str, str]]:
    """Returns the main numbers of the page, each with its description."""
    from analysis import figure_section

    cards: list[tuple[str, str]] = []
    numbers = [m for m in summaries if not m.missing_reason]
    if len(summaries) == 1:
        [section] = [*recipe_sections.values()] or [""]
        if not isinstance(section, str):
            cards += section.facts["cards"]
        elif numbers:
            [m] = numbers
            cards.append((f"{m.auc[0]:.3f}", f"AUC of LiRA on {m.over}; 0.5 is chance"))
            cards.append(found_card(m.tpr[0], m.fpr))
    elif summaries:
        cards.append((f"{len(summaries)}", "recipes"))
        cards.append((f"{sum(m.models for m in summaries):,}", "models"))
        if numbers:
            low, high = (choose(numbers, key=lambda m: m.auc[0]) for choose in (min, max))
            cards.append((f"{low.auc[0]:.3f}", f"lowest AUC of LiRA ({low.recipe.name})"))
            cards.append((f"{high.auc[0]:.3f}", f"highest AUC of LiRA ({high.recipe.name})"))
    verdicts = figure_section.count_verdicts(figure_sections)
    claims = "claims"
    if figure_section.are_claims_of_paper(figure_sections):
        claims = "claims of the paper"
    cards += [(f"{count}", f"{claims} {verdict}") for verdict, count in verdicts.items() if count]
    return cards


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
