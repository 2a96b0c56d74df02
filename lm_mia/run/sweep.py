"""The recipes that a command works on, from the config and its sweep, and their folders in the workdir.

A single config is a sweep of one. Without ``--config``, the command works on all recipes of the workdir.
"""

import argparse
import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import filelock

from lm_mia import config
from lm_mia.atomic import write_atomically
from lm_mia.config import Config, load
from lm_mia.config.recipe import (
    FORMAT,
    RecipeRequest,
    differences,
    from_dict,
    merge_configs,
    population_hash,
    recipe_hash,
    recipe_key,
    recipe_requests,
)
from lm_mia.data import subsets
from lm_mia.errors import UserError, collect_errors
from lm_mia.run.workdir import Workdir, contains_models, provenance


@dataclasses.dataclass(frozen=True)
class SweepRecipe:
    """One recipe of a command, and where its files are."""

    workdir: Workdir
    name: str
    """The name of the recipe's folder, which is shown in messages."""
    config: Config
    names: tuple[str, ...] = ()
    """All names that the command gives to the recipe."""
    entries: tuple[int, ...] = ()
    """Indices of the sweep's entries that request the recipe; 0 is the config itself. Empty if the recipe was read from
    the workdir."""
    overrides: dict[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """The overrides of the first of these entries."""
    other_names: frozenset[str] = frozenset()
    """Names of the other recipes of the command."""
    kept_settings: tuple[str, ...] = ()
    """A message for each setting of the command that is lower than that of an earlier command, which is kept."""

    @property
    def folder(self) -> Path:
        """The recipe's folder in the workdir, which need not exist yet."""
        return self.workdir.recipe_dir(self.name)

    @property
    def population_dir(self) -> Path:
        """The folder of the population, which need not exist yet."""
        return self.workdir.population_dir(population_hash(self.config))

    @property
    def models(self) -> list[subsets.ModelSeeds]:
        """All models that the config requests, in the order of their numbers."""
        return subsets.models_of_config(self.config)

    def stored_config(self) -> dict[str, Any] | None:
        """Returns the recipe's config.json, or None; raises UserError if the folder has models of another recipe."""
        stored = self.workdir.read_recipe_config(self.name)
        if stored is None:
            return None
        if not (
            contains_models(self.folder)
            or self.workdir.population_dir(stored["population"]).exists()
        ):
            return stored  # nothing has been made yet, so any config is allowed
        lines = differences(stored["config"], self.config)
        if stored["format"] != FORMAT:
            lines.append(
                f"format: {stored['format']!r} -> {FORMAT!r} (this version of lm_mia would train different models)"
            )
        if lines:
            raise UserError(
                f"--workdir={self.workdir.path}: its recipe {self.name} has a different config:\n"
                + "\n".join(f"  {line}" for line in lines)
                + "\n  choose another --workdir, or restore these fields"
            )
        return stored


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The recipes of a command."""

    config_arg: str | None
    """The value of ``--config``; None: the recipes of the workdir are used."""
    workdir: Workdir
    overrides: tuple[str, ...]
    """Flags such as ``--config.section.field=value``, which apply to all recipes."""
    recipes: tuple[SweepRecipe, ...]
    figures: tuple[str, ...]
    """Figures of papers that the report page shows."""

    def flags(self) -> tuple[list[str], tuple[str, ...]]:
        """Returns the flags of another command on the same recipes: (config and workdir, overrides)."""
        config_flag = [f"--config={self.config_arg}"] if self.config_arg else []
        return [*config_flag, f"--workdir={self.workdir.path}"], self.overrides


def sweep_from_flags(
    args: argparse.Namespace, overrides: Sequence[str], wrong: list[str], *, needs_workdir: bool
) -> Sweep | None:
    """Returns the sweep of the flags of a command, as `read_sweep` does.

    Args:
      args: has ``config`` and ``workdir``, which may be None.
      overrides: as in `read_sweep`.
      wrong: the mistakes so far; those found here are added. A flag is reported as missing only if no other flag is
        wrong, since it may have been misspelt.
      needs_workdir: whether the command needs a workdir even if it has a config.
    """
    lacks_workdir = needs_workdir and not args.workdir
    if not wrong:
        if lacks_workdir:
            begin = "" if args.config else ", and --config=quickstart to start a new run"
            wrong.append(f"--workdir: missing; add --workdir=runs/quickstart{begin}")
        elif not args.config and not args.workdir:
            wrong.append("--config: missing; add --config=quickstart")
    if args.config == "" and not wrong:  # such as --config=$CONFIG of a variable that is not set
        wrong.append(
            "--config=: names no config; add a name, as --config=quickstart, or leave it out"
        )
    if not args.config and wrong:
        return None
    if lacks_workdir:  # report the mistakes in the config as well
        collect_errors(wrong, lambda: load.load_sweep(args.config, overrides))
        return None
    return collect_errors(wrong, lambda: read_sweep(args.config, args.workdir, overrides))


def read_sweep(config_arg: str | None, folder: str | None, overrides: Sequence[str]) -> Sweep:
    """Returns the recipes that a command requests.

    Args:
      config_arg: ``FILE.py``, or the name of an included config; either may be followed by ``:ARG``. None: the recipes
        of the workdir, with the settings of their last command.
      folder: the workdir, which need not exist if there is a config. None: no folder is read, as for a plan.
      overrides: flags such as ``--config.section.field=value``, which apply to all recipes.

    Raises:
      UserError: with one line per mistake in the config and its sweep, or if a folder of the workdir has models of
        another recipe.
    """
    workdir = Workdir(Path("WORKDIR" if folder is None else folder))
    if folder is not None:
        workdir.check()
    if config_arg is None:
        return _recipes_of_workdir(workdir, overrides)
    entries = load.load_sweep(config_arg, overrides)
    requests = recipe_requests(entries, load.default_name(config_arg))
    recipes = [
        SweepRecipe(workdir, r.names[0], r.config, r.names, r.entries, r.overrides)
        if folder is None
        else _recipe_of_request(workdir, r)
        for r in requests
    ]
    all_names = {name for request in requests for name in request.names}
    recipes = [
        dataclasses.replace(t, other_names=frozenset(all_names - {*t.names})) for t in recipes
    ]
    for recipe in recipes if folder is not None else ():
        recipe.stored_config()
    figures = _with_absolute_paths(entries[0][1].figures)
    return Sweep(config_arg, workdir, tuple(overrides), tuple(recipes), figures)


def _with_absolute_paths(figures: Sequence[str]) -> tuple[str, ...]:
    """Returns the figures with absolute paths, so that a later command may start in another folder."""
    return tuple(os.path.abspath(name) if name.endswith(".py") else name for name in figures)


def _recipe_of_request(workdir: Workdir, request: RecipeRequest) -> SweepRecipe:
    """Returns the recipe of a request, in the folder that already has it under any name, or else in a new folder."""
    c, name = request.config, request.names[0]
    # A derived name may be that of another recipe, whose folder has a hash in its name if both were in one command.
    if workdir.read_recipe_config(name) is None or (
        not c.name and _stored_key(workdir, name) != recipe_key(c)
    ):
        with contextlib.suppress(StopIteration):
            name = next(
                n for n in workdir.recipe_names() if _stored_key(workdir, n) == recipe_key(c)
            )
    for alias in request.names[1:] if c.name else ():
        if alias != name and workdir.read_recipe_config(alias):
            raise UserError(
                f"--workdir={workdir.path}: name={alias!r} is now a name of recipe {name}, but the workdir has another "
                f"recipe {alias}; choose another --workdir, or another name"
            )
    stored = workdir.read_recipe_config(name)
    if c.name and stored and _stored_key(workdir, name) == recipe_key(c):
        # Several commands may share a named recipe, so models and statistics that only other commands need are kept.
        c = merge_configs(c, from_dict(stored["config"]))
    kept = tuple(
        f"attack.{field.name}={value!r}: recipe {name} keeps the larger value {larger!r} of an earlier command; leave "
        "out --config to lower it"
        for field in dataclasses.fields(c.attack)
        if (value := getattr(request.config.attack, field.name))
        != (larger := getattr(c.attack, field.name))
    )
    return SweepRecipe(
        workdir, name, c, request.names, request.entries, request.overrides, kept_settings=kept
    )


def _stored_key(workdir: Workdir, name: str) -> tuple[Any, ...] | None:
    """Returns the `recipe_key` of a recipe of the workdir, or None if another format or version of lm_mia made it."""
    stored = workdir.read_recipe_config(name)
    if stored is None or stored["format"] != FORMAT:
        return None
    try:
        return recipe_key(from_dict(stored["config"]))
    except (TypeError, ValueError):
        return None


def _recipes_of_workdir(workdir: Workdir, overrides: Sequence[str]) -> Sweep:
    contents = require_workdir(workdir)
    if any(word.startswith("--config.name") for word in overrides):
        raise UserError(
            "--config.name: cannot be set without --config, since the recipes of the workdir already have names; leave "
            "it out, or add --config"
        )
    recipes = []
    for name in workdir.recipe_names():
        stored = workdir.read_recipe_config(name)
        assert stored is not None
        try:
            c = from_dict(stored["config"])
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{workdir.recipe_dir(name) / 'config.json'}: was written by another version of lm_mia, with other "
                f"fields (format {stored['format']}; this version has format {FORMAT}); choose another --workdir"
            ) from error
        if wrong := load.type_errors(c):
            raise UserError(
                "\n".join(
                    f"{workdir.recipe_dir(name) / 'config.json'}: {s}" for s in wrong.values()
                )
            )
        recipe = SweepRecipe(
            workdir, name, load.apply_overrides(c, overrides), tuple(stored["names"])
        )
        recipe.stored_config()
        recipes.append(recipe)
    if not recipes:
        raise UserError(f"--workdir={workdir.path}: has no recipes yet; add --config=quickstart")
    given = any(word.startswith("--config.figures") for word in overrides)
    figures = recipes[0].config.figures if given else tuple(contents["figures"])
    return Sweep(None, workdir, tuple(overrides), tuple(recipes), _with_absolute_paths(figures))


def require_workdir(workdir: Workdir) -> dict[str, Any]:
    """Returns the workdir's config.json; raises UserError if the folder or this file does not exist."""
    if not workdir.config_file.exists():
        exists = workdir.path.is_dir()
        problem = "no command has started there" if exists else "there is no such folder"
        raise UserError(
            f"--workdir={workdir.path}: {problem}; check the spelling, or start with `lm-mia run --config=quickstart`"
        )
    return workdir.read_config()


def claim_folders(sweep: Sweep) -> tuple[Sweep, Callable[[], None]]:
    """Writes config.json of the workdir and of every recipe before any work, under a lock.

    The recorded package versions and commit are those of the first command; later ones are appended to a list.

    Returns:
      The sweep, whose recipes use folders that another command may just have created for the same recipes, and a
      function that removes what was created, to be called if the first stage finds that the input is invalid.

    Raises:
      UserError: if a folder has models of another recipe, or the workdir cannot be written.
    """
    workdir, made_by = sweep.workdir, provenance()
    created: list[Path] = []

    def write(path: Path, content: dict[str, Any], old: dict[str, Any] | None) -> None:
        if content != old:
            created.extend(p for p in (path.parent, path) if not p.exists())
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(content, indent=1) + "\n")

    try:
        lock = workdir.path / ".config.lock"
        folders = [workdir.path, workdir.path / "recipes"]
        created += [p for p in (*reversed(workdir.path.parents), *folders, lock) if not p.exists()]
        folders[1].mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(lock):
            recipes = _with_current_folders(sweep)
            names = {*workdir.recipe_names(), *(recipe.name for recipe in recipes)}
            for recipe in recipes:
                old = recipe.stored_config()
                write(recipe.folder / "config.json", _content(recipe, old, made_by, names), old)
            _move_aliases(workdir, recipes)
            old = workdir.read_config()
            listed = [*old["recipes"], *(recipe.name for recipe in recipes)]
            figures = [*old["figures"], *sweep.figures]
            content = {"format": FORMAT, "recipes": listed, "figures": figures}
            content |= {k: list(dict.fromkeys(content[k])) for k in ("recipes", "figures")}
            write(workdir.config_file, content, old)
    except OSError as error:
        raise UserError(
            f"--workdir={workdir.path}: {error.strerror}; choose a writable folder"
        ) from error

    def disclaim() -> None:
        if not created or not workdir.path.exists() or (workdir.path / "populations").exists():
            return
        with contextlib.suppress(OSError, UserError), filelock.FileLock(lock):
            contents = workdir.read_config()
            ours = {path.parent.name for path in created if path.parent.parent == folders[1]}
            if theirs := [name for name in contents["recipes"] if name not in ours]:
                # Another command has begun here since: it needs the file.
                text = json.dumps(contents | {"recipes": theirs}, indent=1) + "\n"
                write_atomically(workdir.config_file, text)
            kept = {workdir.config_file, lock} if theirs else set[Path]()
            for path in reversed(created):
                with contextlib.suppress(OSError):
                    if path not in kept:
                        path.rmdir() if path.is_dir() else path.unlink()

    return dataclasses.replace(sweep, recipes=tuple(recipes)), disclaim


def _with_current_folders(sweep: Sweep) -> list[SweepRecipe]:
    """Returns the recipes with their current folders: another command may have created some since they were read."""
    if sweep.config_arg is None:  # the settings are those of the workdir and the flags
        names = {recipe.name for recipe in sweep.recipes}
        current = _recipes_of_workdir(sweep.workdir, sweep.overrides).recipes
        return [recipe for recipe in current if recipe.name in names]
    recipes = []
    for recipe in sweep.recipes:
        names = recipe.names or (recipe.name,)
        request = RecipeRequest(names, recipe.entries, recipe.overrides, recipe.config)
        current = _recipe_of_request(recipe.workdir, request)
        recipes.append(
            dataclasses.replace(
                current,
                other_names=recipe.other_names,
                kept_settings=(*recipe.kept_settings, *current.kept_settings),
            )
        )
    return recipes


def _move_aliases(workdir: Workdir, recipes: Sequence[SweepRecipe]) -> None:
    """Removes the names of the command's recipes from other recipes of the workdir, which were called so before."""
    ours = {recipe.name for recipe in recipes}
    taken = ours.union(*(recipe.names for recipe in recipes))
    for name in workdir.recipe_names():
        stored = workdir.read_recipe_config(name)
        assert stored is not None
        kept = [n for n in stored["names"] if n == name or n not in taken]
        if name not in ours and kept != stored["names"]:
            text = json.dumps(stored | {"names": kept}, indent=1) + "\n"
            write_atomically(workdir.recipe_dir(name) / "config.json", text)


def _content(
    recipe: SweepRecipe, old: dict[str, Any] | None, made_by: dict[str, Any], folders: set[str]
) -> dict[str, Any]:
    """Returns a recipe's config.json; `folders` are the recipes of the workdir, whose names are not aliases."""
    names = [*(old["names"] if old else [recipe.name]), *recipe.names]
    makers = [{name: old[name] for name in made_by}, *old["later"]] if old else [made_by]
    later = [*makers[1:], *([] if made_by in makers else [made_by])]
    population = population_hash(recipe.config)
    same = old is not None and old["population"] == population
    return {
        "config": config.to_dict(recipe.config),
        "names": [
            n
            for n in dict.fromkeys(names)
            if n == recipe.name or n not in recipe.other_names | folders
        ],
        "recipe_hash": recipe_hash(recipe.config),
        "population": population,
        "population_sha256": old["population_sha256"] if same and old else None,
        "format": FORMAT,
        **makers[0],
        "later": later,
    }


def record_population(recipe: SweepRecipe, sha256: str) -> None:
    """Stores the population's hash in the recipe's config.json; UserError if its models have another population."""
    path = recipe.folder / "config.json"
    with filelock.FileLock(recipe.workdir.path / ".config.lock"):
        stored = recipe.stored_config()
        if stored is None:
            raise UserError(
                f"{path}: was removed by another command that failed; run the same command again"
            )
        recorded = stored["population_sha256"]
        if recorded == sha256:
            return
        if recorded and contains_models(recipe.folder):
            raise UserError(
                f"{recipe.population_dir}: its samples (sha256 {sha256[:12]}) differ from those of the models in "
                f"{recipe.folder} ({recorded[:12]}); restore the folder, or choose another --workdir"
            )
        write_atomically(path, json.dumps(stored | {"population_sha256": sha256}, indent=1) + "\n")
