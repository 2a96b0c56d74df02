"""How the recipes on the report page were produced: files, versions, commit, settings and population."""

import contextlib
import importlib.metadata
import json
from collections.abc import Sequence
from typing import Any

from analysis import io, markup, recipe_section
from analysis.io import RecipeResults, Record
from lm_mia.errors import UserError


def render(recipes: Sequence[RecipeResults]) -> str:
    """Returns the section of the page, with a collapsible part per recipe."""
    contents = []
    for recipe in recipes:
        try:
            contents.append(recipe_facts(recipe))
        except UserError as error:
            contents.append({"name": recipe.name, "error": markup.reason(error)})
    return markup.environment().get_template("made.html.j2").render(recipes=contents)


def recipe_facts(recipe: RecipeResults) -> dict[str, Any]:
    """Returns what the section shows about one recipe."""
    run = io.read_run_record(recipe)
    config = run["config"]
    manifest = io.read_manifest(recipe)
    tables: dict[str, str] = {}
    with contextlib.suppress(UserError):  # such as damaged scores, which its section reports
        tables = recipe_section.table_files(recipe)
    details = {k: v for k, v in manifest.items() if isinstance(v, dict | list)}
    return {
        "name": recipe.name,
        "error": "",
        "names": ", ".join(recipe.shown_names),
        "tables": tables,
        "config": json.dumps(config, indent=2),
        "commands": _commands(run),
        "model": ""
        if recipe.is_imported
        else f"{recipe.config.model.layers}x{recipe.config.model.width}",
        "parameters": f"{recipe.parameters:,}",
        "population": f"populations/{recipe.population_dir.name}",
        "manifest": {k: v for k, v in manifest.items() if not isinstance(v, dict | list)},
        "manifest_details": json.dumps(details, indent=2) if details else "",
    }


def version() -> str:
    """Returns the installed version of lm_mia, which writes the page."""
    return importlib.metadata.version("lm-mia")


def _commands(run: Record) -> list[Record]:
    """Returns versions and machine of the first command and of later commands that differed from it."""
    commands = []
    for i, entry in enumerate([run, *run["later"]]):
        cores = entry.get("cpu_cores")
        commands.append(
            {
                "title": f"Later command {i}" if i else "First command",
                "version": entry.get("lm_mia") or "not recorded",
                "commit": entry.get("commit") or "not recorded",
                "cores": "not recorded" if cores is None else cores,
                "packages": entry.get("packages") or {},
            }
        )
    return commands
