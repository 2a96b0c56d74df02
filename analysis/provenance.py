"""How the recipes on the report page were made: files, versions, commit, settings and population."""

import importlib.metadata
import json
from collections.abc import Sequence
from typing import Any

from analysis import io, markup, recipe_part
from analysis.figures import extraction
from analysis.io import RecipeResults, Record
from lm_mia.errors import UserError


def render(recipes: Sequence[RecipeResults]) -> str:
    """Returns the section of the page, with a collapsible part for each recipe."""
    made = []
    for recipe in recipes:
        try:
            made.append(facts(recipe))
        except (io.MissingModelsError, UserError) as error:
            made.append({"name": recipe.name, "why": markup.reason(error)})
    return markup.environment().get_template("made.html.j2").render(recipes=made)


def facts(recipe: RecipeResults) -> dict[str, Any]:
    """Returns what the section shows of one recipe."""
    folder, run = recipe.folder, io.run(recipe.folder)
    config = run["config"]
    if io.has(
        folder, "flips.json"
    ):  # the tables may have been made with other settings than those of the last command
        config |= {"attack": io.flip_facts(folder)["config"]}
    if io.has(folder, extraction.FACTS) and (extracted := extraction.read(folder)):
        config |= {"extract": extracted.facts["config"]}
    manifest = io.manifest(folder)
    details = {k: v for k, v in manifest.items() if isinstance(v, dict | list)}
    return {
        "name": recipe.name,
        "why": "",
        "names": ", ".join(recipe.names),
        "tables": recipe_part.table_files(folder),
        "config": json.dumps(config, indent=2),
        "commands": _commands(run),
        "model": f"{recipe.config.model.layers}x{recipe.config.model.width}",
        "parameters": f"{recipe.parameters:,}",
        "population": f"populations/{recipe.population_folder.name}",
        "manifest": {k: v for k, v in manifest.items() if not isinstance(v, dict | list)},
        "manifest_details": json.dumps(details, indent=2) if details else "",
    }


def version() -> str:
    """Returns the version of lm_mia that writes the page."""
    return importlib.metadata.version("lm-mia")


def _commands(run: Record) -> list[Record]:
    """Returns versions and machine of the first command, and of later commands for which they differed."""
    found = []
    for i, entry in enumerate([run, *run["later"]]):
        cores = entry.get("cpu_cores")
        found.append(
            {
                "who": f"Later command {i}" if i else "First command",
                "version": entry.get("lm_mia") or "not recorded",
                "commit": entry.get("commit") or "not recorded",
                "cores": "not recorded" if cores is None else cores,
                "packages": entry.get("packages") or {},
            }
        )
    return found
