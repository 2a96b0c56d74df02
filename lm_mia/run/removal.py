"""Deletes recipes, and checkpoints of recipes, from a workdir: the commands ``lm-mia rm recipe`` and ``checkpoints``.

Parts of a workdir may be symbolic links. What they point to may be needed elsewhere, so it is deleted only if somebody
says so; otherwise only the link is.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import filelock

from lm_mia.config.recipe import from_dict
from lm_mia.data import subsets
from lm_mia.errors import UserError
from lm_mia.printing import format_bytes, plural
from lm_mia.run import inventory
from lm_mia.run.workdir import Workdir

DeletesTarget = Callable[[Path, Path], bool]
"""Asks whether what a link points to is deleted: (link, target) -> answer."""


def remove_recipe(
    workdir: Workdir, name: str, figures: Sequence[Path], deletes_target: DeletesTarget
) -> list[str]:
    """Deletes a recipe: models, scores, tables, pages, and its population unless another recipe has it.

    Args:
      workdir: the workdir.
      name: name of the recipe's folder.
      figures: files of the recipe in other folders, which need not exist.
      deletes_target: asks about links; it is called before anything is deleted, and what it raises is not caught.

    Returns:
      Lines for the user.

    Raises:
      UserError: there is no such recipe, or one of its models is being made.
    """
    stored = _stored(workdir, name)
    _check_idle(workdir, name, stored)
    parts = [workdir.recipe_dir(name)]
    others = [other for other in workdir.recipe_names() if other != name]
    if stored["population"] not in [_stored(workdir, other)["population"] for other in others]:
        parts.append(workdir.population_dir(stored["population"]))
    parts += figures
    kept = _links_to_keep(parts, deletes_target)
    with filelock.FileLock(workdir.path / ".config.lock"):
        content = workdir.read_config()
        recipes = [other for other in content["recipes"] if other != name]
        workdir.write_config(content | {"recipes": recipes})
    size = sum(_delete(part, kept) for part in parts)
    lines = [f"{name}: deleted ({format_bytes(size)})"]
    if (workdir.path / "report.html").exists() and others:
        lines.append(
            f"report: still shows it; run `lm-mia report --workdir={workdir.path}` to write it without {name}"
        )
    return [*lines, *_describe_kept(kept)]


def remove_checkpoints(workdir: Workdir, name: str, deletes_target: DeletesTarget) -> list[str]:
    """Deletes the checkpoints of a recipe, whose models keep their scores; arguments and errors as of `remove_recipe`.

    Raises:
      UserError: also if a model with a checkpoint is not scored yet, since it would have to be trained again.
    """
    stored = _stored(workdir, name)
    _check_idle(workdir, name, stored)
    folder, c = workdir.recipe_dir(name), from_dict(stored["config"])
    checkpoints = folder / "checkpoints"
    if not checkpoints.is_dir():
        raise UserError(f"{checkpoints}: there is no such folder, so there are no checkpoints")
    models = {path.name for path in checkpoints.iterdir()}
    unscored = inventory.unscored_models(c, folder, subsets.models_of_config(c))
    if unfinished := [str(model) for model in unscored if str(model) in models]:
        raise UserError(
            f"{checkpoints}: {plural(len(unfinished), 'model')} ({', '.join(unfinished[:3])}"
            f"{', ...' if unfinished[3:] else ''}) not scored yet would be trained again; run "
            f"`lm-mia run --workdir={workdir.path}` first"
        )
    kept = _links_to_keep([checkpoints], deletes_target)
    size = _delete(checkpoints, kept)
    return [
        f"{name}: deleted the checkpoints of {plural(len(models), 'model')} ({format_bytes(size)}); their scores "
        "stay, but further statistics, score points and extraction need new training",
        *_describe_kept(kept),
    ]


def _stored(workdir: Workdir, name: str) -> dict:
    """Returns the config.json of a recipe; raises UserError if there is none."""
    names = workdir.recipe_names()
    stored = workdir.read_recipe_config(name) if name in names else None
    if stored is None:
        has = f"it has {', '.join(names)}" if names else "it has none"
        raise UserError(f"{name}: no recipe of --workdir={workdir.path}; {has}")
    return stored


def _check_idle(workdir: Workdir, name: str, stored: dict) -> None:
    folder = workdir.recipe_dir(name)
    for model in subsets.models_of_config(from_dict(stored["config"])):
        if inventory.is_locked(folder, model):
            raise UserError(
                f"{name}: {model} is being trained or scored by another command; wait for it, or stop it first"
            )


def _links_to_keep(parts: Sequence[Path], deletes_target: DeletesTarget) -> dict[Path, Path]:
    """Asks about all links among what is to be deleted; returns those whose targets stay, with the targets."""
    kept: dict[Path, Path] = {}
    for part in parts:
        for link in _links(part, kept):
            target = link.resolve()
            if target.exists() and not deletes_target(link, target):
                kept[link] = target
    return kept


def _links(path: Path, kept: dict[Path, Path]) -> Iterator[Path]:
    """Yields the links at a path and below it, also those below the targets of links that are not kept."""
    if path.is_symlink():
        yield path
        if path in kept or not path.exists():
            return
        path = path.resolve()
    if path.is_dir():
        with os.scandir(path) as entries:
            found = [Path(e.path) for e in entries if e.is_symlink() or e.is_dir()]
        for entry in sorted(found):
            yield from _links(entry, kept)


def _delete(path: Path, kept: dict[Path, Path]) -> int:
    """Deletes a file or a folder, if it exists, and the targets of links that are not kept; returns the bytes."""
    size = 0
    if path.is_symlink():
        if path not in kept and path.exists():
            size = _delete(path.resolve(), kept)
        path.unlink()
    elif path.is_dir():
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries]
        size = sum(_delete(path / name, kept) for name in names)
        path.rmdir()
    else:
        with contextlib.suppress(FileNotFoundError):
            size = path.stat().st_size
            path.unlink()
    return size


def _describe_kept(kept: dict[Path, Path]) -> list[str]:
    return [f"kept: {target}, to which {link} pointed" for link, target in kept.items()]
