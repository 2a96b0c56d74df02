"""Determines the recipes that a command works on, and their folders in the workdir.

The recipes come from the config and its sweep; a single config is a sweep of one. Without ``--config``, they are all
recipes of the workdir.
"""

import argparse
import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from lm_mia import config, user_files
from lm_mia.config import Config, hf_checkpoint, listed_figures, load, validate
from lm_mia.config.fields import get, mistakes, types_of
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
from lm_mia.run import model_sizes
from lm_mia.run.workdir import Workdir, contains_models, provenance, write_config


@dataclasses.dataclass(frozen=True)
class SweepRecipe:
    """One recipe of a command, and the folders of its files."""

    workdir: Workdir
    name: str
    """The name of the recipe's folder, which also identifies the recipe in messages."""
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
    """A message for each attack setting for which the larger value of an earlier command is kept."""
    earlier: dict[str, Any] | None = dataclasses.field(default=None, compare=False, repr=False)
    """The recipe's config.json before the command; None if there was none, or if no folder has been claimed yet."""

    @property
    def folder(self) -> Path:
        """The recipe's folder in the workdir, which need not exist yet."""
        return self.workdir.recipe_dir(self.name)

    @property
    def population_dir(self) -> Path:
        """The folder of the recipe's population, which need not exist yet."""
        folder = self.config.population.folder
        return self.workdir.population_dir(population_hash(self.config), folder)

    @property
    def models(self) -> list[subsets.ModelSeeds]:
        """All models that the config requests, in the order of their numbers."""
        return subsets.models_of_config(self.config)

    def stored_config(self) -> dict[str, Any] | None:
        """Returns the recipe's config.json, or None if it does not exist.

        Raises:
          UserError: if the folder has models of another recipe.
        """
        stored = self.workdir.read_recipe_config(self.name)
        if stored is None:
            return None
        if not (
            contains_models(self.folder)
            or self.workdir.population_dir(
                stored["population"], stored["config"]["population"].get("folder", "")
            ).exists()
        ):
            return stored  # there are no results yet, so any config is allowed
        changes = differences(stored["config"], self.config)
        if changes and "imported" in (
            stored["config"]["corpus"]["source"],
            self.config.corpus.source,
        ):
            raise UserError(_import_message(self, stored["config"], changes))
        if changes:
            raise UserError(
                f"--workdir={self.workdir.path}: its recipe {self.name} has a different config:\n"
                + "\n".join(f"  {change}" for change in changes)
                + "\n  choose another --workdir or name, or restore these fields"
            )
        return stored


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The recipes of a command."""

    config_arg: str | None
    """The value of ``--config``; None if the recipes were read from the workdir, "" if there is none because losses are
    imported."""
    workdir: Workdir
    overrides: tuple[str, ...]
    """Flags such as ``--config.section.field=value``, which apply to all recipes."""
    recipes: tuple[SweepRecipe, ...]
    figures: tuple[str, ...]
    """The figures that the report page shows: names, and absolute paths of Python files."""
    shows_listed_figures: bool = False
    """Whether these are the figures that the workdir lists, since the command names none. Files may be missing."""

    def flags(self) -> tuple[list[str], tuple[str, ...]]:
        """Returns the flags with which another command works on the same recipes: (config and workdir, overrides)."""
        config_flag = [f"--config={self.config_arg}"] if self.config_arg else []
        return [*config_flag, f"--workdir={self.workdir.path}"], self.overrides


def sweep_from_flags(
    args: argparse.Namespace,
    overrides: Sequence[str],
    problems: list[str],
    *,
    needs_workdir: bool,
    attacks: bool = True,
) -> Sweep | None:
    """Returns the sweep that the flags of a command describe, as `read_sweep` does; None if a flag is invalid.

    Args:
      args: the attributes ``config`` and ``workdir``, each of which may be None.
      overrides: as in `read_sweep`.
      problems: error messages about other flags; those about these flags are appended. A missing flag is reported only
        if there are no other errors, since it may have been misspelled.
      needs_workdir: whether the command requires a workdir even if it has a config.
      attacks: as in `read_sweep`.
    """
    if args.config and (line := load.namesake(args.config)):
        print(line, file=sys.stderr)
    lacks_workdir = needs_workdir and not args.workdir
    if not problems:
        if lacks_workdir:
            start_hint = "" if args.config else ", and --config=quickstart to start a new run"
            problems.append(f"--workdir: missing; add --workdir=runs/quickstart{start_hint}")
        elif not args.config and not args.workdir:
            problems.append("--config: missing; add --config=quickstart")
    if not args.config and problems:
        return None
    if lacks_workdir:  # also report errors in the config
        collect_errors(problems, lambda: load.load_sweep(args.config, overrides))
        return None
    return collect_errors(
        problems, lambda: read_sweep(args.config, args.workdir, overrides, attacks=attacks)
    )


def read_sweep(
    config_arg: str | None, folder: str | None, overrides: Sequence[str], *, attacks: bool = True
) -> Sweep:
    """Returns the recipes that a command requests.

    Args:
      config_arg: ``FILE.py``, or the name of an included config; either may be followed by ``:ARG``. None: the recipes
        of the workdir, with the settings of their last command.
      folder: the workdir, which need not exist if there is a config. None: no folder is read, as for `lm-mia plan`.
      overrides: flags such as ``--config.section.field=value``, which apply to all recipes.
      attacks: whether attack.attacks is checked, for which the files of users' attacks must exist.

    Raises:
      UserError: with one line per error in the config and its sweep, or if a folder of the workdir has models of
        another recipe.
    """
    workdir = Workdir(Path("WORKDIR" if folder is None else folder))
    if folder is not None:
        workdir.check()
    if config_arg is None:
        return _recipes_of_workdir(workdir, overrides, attacks=attacks)
    loaded = [(s, _with_absolute_files(c)) for s, c in load.load_sweep(config_arg, overrides)]
    requests = recipe_requests(loaded, load.default_name(config_arg))
    recipes = [
        SweepRecipe(workdir, r.names[0], r.config, r.names, r.entries, r.overrides)
        if folder is None
        else _recipe_of_request(workdir, r)
        for r in requests
    ]
    all_names = {name for request in requests for name in request.names}
    recipes = [
        dataclasses.replace(recipe, other_names=frozenset(all_names - {*recipe.names}))
        for recipe in recipes
    ]
    if attacks:
        check_attacks([c for _, c in loaded if c.has_recipe])
    for recipe in recipes if folder is not None else ():
        recipe.stored_config()
    figures = listed_figures.with_absolute_paths(loaded[0][1].figures)
    return Sweep(config_arg, workdir, tuple(overrides), tuple(recipes), figures)


def imported_sweep(folder: str, c: Config) -> Sweep:
    """Returns a recipe of imported losses as a sweep of one.

    Args:
      folder: the workdir, which need not exist.
      c: the config, with a name.

    Raises:
      UserError: as `read_sweep`.
    """
    check_attacks([c])
    workdir = Workdir(Path(folder))
    workdir.check()
    recipe = _recipe_of_request(workdir, RecipeRequest((c.name,), (0,), {}, c))
    recipe.stored_config()
    return Sweep("", workdir, (), (recipe,), ())


def with_stored_attack(folder: str, c: Config) -> Config:
    """Returns the config of an import; if nothing is new in it, with the attack settings that its recipe has.

    Otherwise, repeating an import would undo the settings of `lm-mia attack`.

    Args:
      folder: the workdir, which need not exist.
      c: the config, with a name.
    """
    workdir = Workdir(Path(folder))
    stored = workdir.read_recipe_config(c.name)
    if stored is None or _stored_key(workdir, c.name) != recipe_key(c):
        return c
    old = from_dict(stored["config"])
    is_new = (
        c.attack.references > old.attack.references
        or c.attack.replicas > old.attack.replicas
        or not {*c.score.statistics} <= {*old.score.statistics}
    )
    return c if is_new else dataclasses.replace(c, attack=old.attack)


def _import_message(recipe: SweepRecipe, stored: Mapping[str, Any], changes: Sequence[str]) -> str:
    """Returns the error message if a request does not fit the losses that a recipe has, or is to have, by an import.

    ``changes`` are the `differences` between the request and the stored config.
    """
    where = f"--workdir={recipe.workdir.path}: its recipe {recipe.name}"
    if stored["corpus"]["source"] != "imported":
        return f"{where} has models that lm_mia made, not imported losses; choose another --workdir or --name"
    if recipe.config.corpus.source != "imported":
        return (
            f"{where} has imported losses, so no models can be made in it; choose another --workdir, or leave out "
            "--config to attack these losses"
        )
    fields = {change.partition(":")[0]: change for change in changes}
    problems: list[str] = []
    if change := fields.get("population.samples"):
        problems.append(f"number of {change.removeprefix('population.')}")
    elif {"corpus.path", "corpus.split_documents"} & {*fields}:
        problems.append("samples: other columns or texts than in the first import")
    if change := fields.get("train.subset"):
        problems.append(f"--{change.removeprefix('train.')}")
    if change := fields.get("score.statistics"):
        problems.append(f"arrays beside the loss: {change.partition(': ')[2]}")
    explained = (
        "population.samples",
        "corpus.path",
        "corpus.split_documents",
        "train.subset",
        "score.statistics",
    )
    if others := [field for field in fields if field not in explained]:
        problems.append(
            f"{', '.join(others)}: the models were trained elsewhere, so only fields of attack can be set"
        )
    return (
        f"{where} was imported with other losses or settings:\n"
        + "\n".join(f"  {problem}" for problem in problems)
        + "\n  restore these, or choose another --workdir or --name"
    )


def require_recipes(sweep: Sweep, command: str) -> None:
    """Raises UserError if a sweep has no recipe, as if all figures are simulations: a command has nothing to do."""
    if not sweep.recipes:
        raise UserError(
            f"has_recipe=False: there is no recipe, and so no models for {command}; add entries to sweep(), or, if all "
            "figures are simulations, use lm-mia run or lm-mia report"
        )


def leave_out_imported(sweep: Sweep, command: str) -> tuple[Sweep, str]:
    """Leaves out the recipes with imported losses, on which a command cannot work.

    Args:
      sweep: the recipes.
      command: the command, for the messages.

    Returns:
      The other recipes, and a line that names those that are left out; "" if there are none.

    Raises:
      UserError: if all recipes have imported losses.
    """
    left_out = [r.name for r in sweep.recipes if r.config.corpus.source == "imported"]
    if not left_out:
        return sweep, ""
    kept = tuple(recipe for recipe in sweep.recipes if recipe.name not in left_out)
    if not kept:
        raise UserError(
            f"--workdir={sweep.workdir.path}: the losses of recipe {left_out[0]} were imported, so {command} has no "
            "models to work on; use lm-mia attack, report or status"
        )
    line = (
        f"{command}: leaves out {', '.join(left_out)}, whose losses were imported; lm-mia attack and lm-mia report "
        "work on all recipes of the workdir"
    )
    return dataclasses.replace(sweep, recipes=kept), line


def check_attacks(configs: Sequence[Config]) -> None:
    """Raises UserError with all rules about attack.attacks that configs break."""
    from lm_mia.attacks import registry  # loads SciPy, which workers need not

    lines = dict.fromkeys(line for c in configs for line in registry.problems(c))
    if lines:
        raise UserError("\n".join(lines))


def _with_absolute_files(c: Config) -> Config:
    """Returns a config with absolute paths of users' files, so that later commands may start in any folder."""
    names = tuple(map(user_files.absolute, c.attack.attacks))
    attack = dataclasses.replace(
        c.attack, attacks=names, headline=user_files.absolute(c.attack.headline)
    )
    optimizer = dataclasses.replace(c.optimizer, name=user_files.absolute(c.optimizer.name))
    init = c.model.init
    if hf_checkpoint.is_checkpoint(init):
        init = f"hf:{hf_checkpoint.folder_of(init)}"
    model = dataclasses.replace(c.model, kind=user_files.absolute(c.model.kind), init=init)
    folder = os.path.abspath(c.population.folder) if c.population.folder else ""
    population = dataclasses.replace(c.population, folder=folder)
    return dataclasses.replace(
        c, attack=attack, optimizer=optimizer, model=model, population=population
    )


def check_attacked(recipes: Sequence[SweepRecipe]) -> None:
    """Raises UserError with a line for each recipe of which nothing could be attacked after its models are trained."""
    problems = [
        f"{recipe.name}: {line}" if len(recipes) > 1 else line
        for recipe in recipes
        for line in validate.nothing_attacked(recipe.config)
    ]
    if problems:
        raise UserError("\n".join(problems))


def _recipe_of_request(workdir: Workdir, request: RecipeRequest) -> SweepRecipe:
    """Returns the requested recipe, with the folder that already holds it under any name, or a new folder."""
    c, name = request.config, request.names[0]
    # Losses are imported by name: two imports may have the same samples and settings, but other models.
    is_import = c.corpus.source == "imported"
    # A name that is derived from overrides may belong to another recipe of the workdir. This recipe is then in a folder
    # with a hash in its name, if an earlier command requested both.
    if not is_import and (
        workdir.read_recipe_config(name) is None
        or (not c.name and _stored_key(workdir, name) != recipe_key(c))
    ):
        with contextlib.suppress(StopIteration):
            name = next(
                n for n in workdir.recipe_names() if _stored_key(workdir, n) == recipe_key(c)
            )
    for alias in request.names[1:] if c.name else ():
        if alias != name and workdir.read_recipe_config(alias):
            raise UserError(
                f"--workdir={workdir.path}: name={alias!r} is now a name of recipe {name}, but the workdir has another "
                f"recipe of this name; choose another --workdir, or another name"
            )
    stored = workdir.read_recipe_config(name)
    if c.name and stored and _stored_key(workdir, name) == recipe_key(c):
        # Several commands may share a named recipe, so keep models and statistics that only other commands need.
        c = merge_configs(c, from_dict(stored["config"]))
    kept_messages = tuple(
        f"attack.{field.name}={value!r}: recipe {name} keeps the larger value {larger!r} of an earlier command; leave "
        "out --config to lower it"
        for field in dataclasses.fields(c.attack)
        if (value := getattr(request.config.attack, field.name))
        != (larger := getattr(c.attack, field.name))
    )
    return SweepRecipe(
        workdir,
        name,
        c,
        request.names,
        request.entries,
        request.overrides,
        kept_settings=kept_messages,
    )


def _stored_key(workdir: Workdir, name: str) -> tuple[Any, ...] | None:
    """Returns the `recipe_key` of a recipe of the workdir, or None if there is none, or if it has unknown fields."""
    stored = workdir.read_recipe_config(name)
    if stored is None:
        return None
    try:
        return recipe_key(from_dict(stored["config"]))
    except (TypeError, ValueError):
        return None


def _recipes_of_workdir(workdir: Workdir, overrides: Sequence[str], *, attacks: bool) -> Sweep:
    """Returns the recipes of a workdir, with the settings of their last command and the overrides."""
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
                "fields; add --config to replace fields that do not affect models, or choose another --workdir"
            ) from error
        if problems := mistakes(c):
            raise UserError(
                "\n".join(
                    f"{workdir.recipe_dir(name) / 'config.json'}: {s}" for s in problems.values()
                )
            )
        recipe = SweepRecipe(
            workdir,
            name,
            _with_absolute_files(load.apply_overrides(c, overrides)),
            tuple(stored["names"]),
        )
        recipe.stored_config()  # raises if the overrides would make other models
        recipes.append(recipe)
    if not recipes and not contents["figures"]:
        raise UserError(f"--workdir={workdir.path}: has no recipes yet; add --config=quickstart")
    if attacks:
        check_attacks([recipe.config for recipe in recipes])
    changes = load.figure_changes(overrides)
    figures = changes.shown
    if figures is None:
        figures = listed_figures.without(contents["figures"], changes.removed)
    return Sweep(
        None,
        workdir,
        tuple(overrides),
        tuple(recipes),
        listed_figures.with_absolute_paths(figures),
        shows_listed_figures=changes.shown is None,
    )


def unlisted_removals(sweep: Sweep) -> list[str]:
    """Returns a line for each figure that ``--config.figures=-NAME`` removes although the workdir does not list it.

    This is no error, since a command may be repeated. If there is a config, the figure may be one of the config's.
    """
    listed = sweep.workdir.read_config()["figures"]
    return [
        f"--config.figures=-{name}: the workdir lists no such figure"
        + (f", only {', '.join(listed)}" if listed else "")
        for name in load.figure_changes(sweep.overrides).removed
        if sweep.config_arg is None and not listed_figures.matches(name, listed)
    ]


def require_workdir(workdir: Workdir, *, has_config: bool = False) -> dict[str, Any]:
    """Returns the workdir's config.json; raises UserError if the folder or this file does not exist.

    Args:
      workdir: the workdir.
      has_config: whether the command has a --config.
    """
    if not workdir.config_file.exists():
        if recipes := workdir.recipe_names():
            raise UserError(
                f"--workdir={workdir.path}: its config.json is missing; repeat `lm-mia run` with the --config of "
                f"{', '.join(recipes)}, which writes it again and keeps all models"
            )
        exists = workdir.path.is_dir()
        if exists and not has_config and any(workdir.path.iterdir()):
            raise UserError(
                f"--workdir={workdir.path}: is not a workdir of lm_mia: it has files, but no config.json; check the "
                "spelling"
            )
        problem = "no command has been started in this folder" if exists else "no such folder"
        command = "lm-mia run" if has_config else "lm-mia run --config=quickstart"
        raise UserError(
            f"--workdir={workdir.path}: {problem}; check the spelling, or start with `{command}`"
        )
    return workdir.read_config()


def claim_folders(sweep: Sweep) -> tuple[Sweep, Callable[[], None]]:
    """Writes the config.json files of the workdir and of every recipe, under a lock, before any work starts.

    The recorded package versions and commit are those of the first command; those of later commands are appended to a
    list.

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
            if path == workdir.config_file:
                workdir.write_config(content)
            else:
                write_config(path, content)

    try:
        lock = workdir.path / ".config.lock"
        recipes_dir = workdir.path / "recipes"
        paths = (*reversed(workdir.path.parents), workdir.path, recipes_dir, lock)
        created += [path for path in paths if not path.exists()]
        recipes_dir.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(lock):
            recipes = _with_current_folders(sweep)
            names = {*workdir.recipe_names(), *(recipe.name for recipe in recipes)}
            for i, recipe in enumerate(recipes):
                old = recipe.stored_config()
                recipes[i] = dataclasses.replace(recipe, earlier=old)
                write(
                    recipe.folder / "config.json", _recipe_config(recipe, old, made_by, names), old
                )
            _move_aliases(workdir, recipes)
            old = workdir.read_config()
            all_names = [*old["recipes"], *(recipe.name for recipe in recipes)]
            removed = load.figure_changes(sweep.overrides).removed
            replaced = {Path(name).stem for name in sweep.figures if listed_figures.is_file(name)}
            # A figure whose file has moved replaces the earlier one, since both have the same image and table.
            listed = [
                name
                for name in listed_figures.without(old["figures"], removed)
                if name in sweep.figures or Path(name).stem not in replaced
            ]
            figures = [*listed, *sweep.figures]
            content = {"format": FORMAT, "recipes": all_names, "figures": figures}
            content |= {k: list(dict.fromkeys(content[k])) for k in ("recipes", "figures")}
            write(workdir.config_file, content, old)
    except OSError as error:
        raise UserError(
            f"--workdir={workdir.path}: {error.strerror}; choose a writable folder"
        ) from error

    def disclaim() -> None:
        is_built = any(
            folder.exists()
            for folder in (
                workdir.path / "populations",
                *(recipe.population_dir for recipe in recipes),
            )
        )
        if not created or not workdir.path.exists() or is_built:
            return
        with contextlib.suppress(OSError, UserError), filelock.FileLock(lock):
            contents = workdir.read_config()
            own_names = {path.parent.name for path in created if path.parent.parent == recipes_dir}
            if others := [name for name in contents["recipes"] if name not in own_names]:
                # Another command, which needs the file, has started in this workdir in the meantime.
                workdir.write_config(contents | {"recipes": others})
            kept_paths = {workdir.config_file, lock} if others else set[Path]()
            for path in reversed(created):
                with contextlib.suppress(OSError):
                    if path not in kept_paths:
                        path.rmdir() if path.is_dir() else path.unlink()

    return dataclasses.replace(sweep, recipes=tuple(recipes)), disclaim


def restore_settings(recipe: SweepRecipe, *, keeps_models: bool) -> str:
    """Stores the settings of attacks again that a recipe had before the command, since its attacks have failed.

    Args:
      recipe: the recipe, as `claim_folders` returned it.
      keeps_models: whether the command has made models, so that their numbers stay.

    Returns:
      A line that names the settings; "" if none were stored before, or if they are the same.
    """
    if recipe.earlier is None:
        return ""
    failed = config.to_dict(recipe.config)
    with filelock.FileLock(recipe.workdir.path / ".config.lock"):
        stored = recipe.workdir.read_recipe_config(recipe.name)
        try:
            earlier = from_dict(recipe.earlier["config"])
        except (TypeError, ValueError):  # of another version
            return ""
        c = dataclasses.replace(recipe.config, attack=earlier.attack)
        if keeps_models:
            c = merge_configs(c, recipe.config)
        restored = config.to_dict(c)
        if stored is None or stored["config"] != failed or restored == failed:
            return ""
        write_config(recipe.folder / "config.json", stored | {"config": restored})
    names = [name for name in types_of(Config) if get(c, name) != get(recipe.config, name)]
    return (
        f"{recipe.name}: the workdir keeps its earlier {', '.join(names)}, since the command failed"
    )


def _with_current_folders(sweep: Sweep) -> list[SweepRecipe]:
    """Returns the recipes with their current folders, some of which another command may have just created."""
    if sweep.config_arg is None:  # the settings are those of the workdir and the flags
        names = {recipe.name for recipe in sweep.recipes}
        current = _recipes_of_workdir(sweep.workdir, sweep.overrides, attacks=True).recipes
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
    """Removes the names of the command's recipes from other recipes of the workdir, whose aliases they were."""
    own_names = {recipe.name for recipe in recipes}
    taken_names = own_names.union(*(recipe.names for recipe in recipes))
    for name in workdir.recipe_names():
        stored = workdir.read_recipe_config(name)
        assert stored is not None
        kept_names = [n for n in stored["names"] if n == name or n not in taken_names]
        if name not in own_names and kept_names != stored["names"]:
            write_config(workdir.recipe_dir(name) / "config.json", stored | {"names": kept_names})


def _recipe_config(
    recipe: SweepRecipe, old: dict[str, Any] | None, made_by: dict[str, Any], folders: set[str]
) -> dict[str, Any]:
    """Returns the content of a recipe's config.json; names of `folders`, the workdir's recipes, are not aliases."""
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
        "model_size": dataclasses.asdict(model_sizes.size(recipe.config)),
        "format": FORMAT,
        **makers[0],
        "later": later,
    }


def record_population(recipe: SweepRecipe, sha256: str) -> None:
    """Stores the population's hash in the recipe's config.json.

    Raises:
      UserError: if the models of the recipe were trained on another population, or another command with other
        settings has just claimed the folder.
    """
    path = recipe.folder / "config.json"
    with filelock.FileLock(recipe.workdir.path / ".config.lock"):
        stored = recipe.stored_config()
        if stored is None:
            raise UserError(
                f"{path}: was removed by another command that failed; run the same command again"
            )
        if stored["recipe_hash"] != recipe_hash(recipe.config):
            raise UserError(
                f"{path}: another command, with other settings, has just started under this name; choose another "
                "--workdir or name"
            )
        recorded = stored["population_sha256"]
        if recorded == sha256:
            return
        if recorded and contains_models(recipe.folder):
            raise UserError(
                f"{recipe.population_dir}: its samples (sha256 {sha256[:12]}) differ from those of the models in "
                f"{recipe.folder} (sha256 {recorded[:12]}); restore the folder, or choose another --workdir"
            )
        write_config(path, stored | {"population_sha256": sha256})
