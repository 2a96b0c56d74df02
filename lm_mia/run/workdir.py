"""The workdir of a run: its layout, the config.json of each recipe, and the log of metrics.

The layout is the same for one recipe and for many:

    config.json        the recipes in order of creation, and the figures requested so far
    metrics            the log, one file per process
    populations/HASH   tokens and sample tables
    recipes/NAME       config.json, scores.zarr, checkpoints, tables
"""

import contextlib
import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm_mia import events
from lm_mia.atomic import write_atomically
from lm_mia.config import listed_figures
from lm_mia.config import recipe as recipes
from lm_mia.errors import UserError, broken_link
from lm_mia.machine import available_cores, package_version

_RECIPE_FIELDS = ("names", "recipe_hash", "population", "population_sha256", "format")
_PROVENANCE_FIELDS = ("lm_mia", "packages", "commit", "cpu_cores")
_PARTS = ("config.json", "metrics", "populations", "recipes", "figures", "tables", "logs")
"""Parts of a workdir that commands read or write and that may be symbolic links."""
_PARTS_OF_A_RECIPE = ("checkpoints", "scores.zarr")
"""The large parts of a recipe, which are most often kept on another disk."""


@dataclasses.dataclass(frozen=True)
class Workdir:
    """Paths of a workdir, and the contents of its JSON files."""

    path: Path

    @property
    def config_file(self) -> Path:
        """The file that lists recipes and figures; it exists once a command has started in the workdir."""
        return self.path / "config.json"

    @property
    def report(self) -> Path:
        """The report page."""
        return self.path / "report.html"

    def population_dir(self, name: str, folder: str = "") -> Path:
        """Folder of tokens, sample table, tokenizer and manifest of a population; `folder` is population.folder."""
        return (Path(folder) if folder else self.path / "populations") / name

    def recipe_dir(self, name: str) -> Path:
        """Folder of config, scores, checkpoints and tables of one recipe."""
        return self.path / "recipes" / name

    def check(self) -> None:
        """Raises UserError if the path is a file or a part of a workdir, or if a large part is a link to nothing."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--workdir={self.path}: is a file; choose a writable folder")
        if outer := _containing_workdir(self.path):
            raise UserError(
                f"--workdir={self.path}: is a part of the workdir {outer}; use --workdir={outer}"
            )
        if broken := _broken_links(self.path):
            raise UserError("\n".join(map(broken_link, broken)))

    def read_config(self) -> dict[str, Any]:
        """Returns the content of config.json, with at least "recipes" and "figures", whose files have absolute paths.

        If the file is missing, the recipes are those that have models, and there are no figures.

        Raises:
          UserError: if the file was not written by lm_mia, or is damaged.
        """
        stored = _read(self.config_file)
        if stored is None:
            recipes = sorted(
                p.name for p in (self.path / "recipes").glob("*") if contains_models(p)
            )
            return {"recipes": recipes, "figures": []}
        for name in ("recipes", "figures"):
            if not _is_list_of_strings(stored.get(name)):
                raise _invalid_config_error(self.config_file)
        # The name of the path ".." is "..", and that of "" is "", so these are checked separately.
        if any(Path(name).name != name or name in ("", "..") for name in stored["recipes"]):
            raise _invalid_config_error(self.config_file)
        return stored | {"figures": listed_figures.from_file(stored["figures"], self.path)}

    def write_config(self, content: Mapping[str, Any]) -> None:
        """Replaces config.json; the arguments are as `read_config` returns them."""
        write_config(
            self.config_file,
            {**content, "figures": listed_figures.to_file(content["figures"], self.path)},
        )

    def read_recipe_config(self, name: str) -> dict[str, Any] | None:
        """Returns the content of a recipe's config.json, or None if the recipe does not exist yet.

        Raises:
          UserError: if the file was not written by lm_mia, was edited, is missing although there are models, or if the
            recipe has another format.
        """
        folder = self.recipe_dir(name)
        stored = _read(folder / "config.json")
        if stored is None:
            if contains_models(folder):
                raise UserError(
                    f"{folder / 'config.json'}: missing, but there are models in its folder; restore "
                    "it, or choose another --workdir"
                )
            return None
        if (
            not {"config", "later", *_RECIPE_FIELDS, *_PROVENANCE_FIELDS} <= stored.keys()
            or not isinstance(stored["config"], dict)
            or not _is_list_of_strings(stored["names"])
            or not str(stored["population"]).isalnum()
        ):
            raise _invalid_config_error(folder / "config.json")
        recipes.check_format(stored, folder)
        stored_hash = stored["recipe_hash"]
        if stored_hash != recipes.stored_recipe_hash(stored["config"]):
            raise UserError(
                f"{folder / 'config.json'}: its config does not match its recipe_hash={stored_hash}: the file was "
                "edited, or written by another version of lm_mia; restore it, or choose another --workdir"
            )
        return stored

    def recipe_names(self) -> list[str]:
        """Returns the names of the recipes of the workdir, in order of creation."""
        return [name for name in self.read_config()["recipes"] if self.read_recipe_config(name)]

    def log_event(self, event: Mapping[str, Any]) -> None:
        """Appends an event to the log; see `lm_mia.events`."""
        events.append(self.path, event)


def _containing_workdir(path: Path) -> Path | None:
    """Returns the workdir of which a path is a part, such as WORKDIR of WORKDIR/recipes/NAME; None if there is none."""
    absolute = Path(os.path.abspath(path))
    for levels, outer in enumerate(absolute.parents[:2], 1):
        if absolute.relative_to(outer).parts[0] not in _PARTS[2:]:
            continue
        with contextlib.suppress(OSError, ValueError):
            content = json.loads((outer / "config.json").read_bytes())
            if isinstance(content, dict) and {"recipes", "figures"} <= content.keys():
                return Path(os.path.normpath(path.joinpath(*[".."] * levels)))
    return None


def _broken_links(workdir: Path) -> list[Path]:
    """Returns the links to missing files among a workdir and its large parts.

    They are looked at before a command starts, since without them its models would seem to be missing. What is inside
    these parts is not looked at: there may be thousands of files, on a slow file system.
    """
    recipes = _entries(workdir / "recipes")
    paths = [workdir, *(workdir / name for name in _PARTS)]
    paths += [*_entries(workdir / "populations"), *recipes]
    paths += [recipe / name for recipe in recipes for name in _PARTS_OF_A_RECIPE]
    return [path for path in paths if path.is_symlink() and not os.path.exists(path)]


def _entries(folder: Path) -> list[Path]:
    """Returns what a folder contains; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        return sorted(folder.iterdir())
    return []


def _is_list_of_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def contains_models(recipe_dir: Path) -> bool:
    """Returns whether a recipe's folder holds models or scores."""
    return (recipe_dir / "scores.zarr").exists() or (recipe_dir / "checkpoints").exists()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise _invalid_config_error(path) from error
    if not isinstance(content, dict):
        raise _invalid_config_error(path)
    return content


def write_config(path: Path, content: Mapping[str, Any]) -> None:
    """Replaces the config.json of a workdir or a recipe."""
    write_atomically(path, json.dumps(content, indent=1) + "\n")


def _invalid_config_error(path: Path) -> UserError:
    return UserError(f"{path}: not a config written by lm-mia; {_remedy(path)}")


def _remedy(path: Path) -> str:
    """Returns the remedy for the damaged config.json of a workdir or of a recipe."""
    if (path.parent / "recipes").is_dir():
        return "restore it, or delete it and repeat the command with its --config, which keeps all models"
    return "restore it, or choose another --workdir"


def provenance() -> dict[str, Any]:
    """Returns the versions of lm_mia and its packages, the commit, and the number of CPU cores for this process."""
    names = (
        "jax",
        "jaxlib",
        "optax",
        "orbax-checkpoint",
        "tensorstore",
        "numpy",
        "scipy",
        "sentencepiece",
        "tokenizers",
    )
    return {
        "lm_mia": package_version("lm-mia"),
        "packages": {name: package_version(name) for name in names},
        "commit": _commit(),
        "cpu_cores": available_cores(),
    }


def _commit() -> str | None:
    """Returns the commit of the checkout, with "+" if there are uncommitted changes; None outside a checkout."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10
        )
        dirty = subprocess.run(
            [*git, "status", "--porcelain"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (
        head.stdout.strip() + ("+" if dirty.stdout.strip() else "")
        if head.returncode == 0
        else None
    )
