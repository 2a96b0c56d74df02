"""The figures that the config.json of a workdir lists, and how a command names those that it removes from the list."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from lm_mia.config.paper import current_figure_name


def from_file(figures: Sequence[str], workdir: Path) -> list[str]:
    """Returns the figures that config.json lists: current names of figures, and absolute paths of Python files."""
    folder = os.path.abspath(workdir)
    return [
        os.path.join(folder, name) if is_file(name) else current_figure_name(name)
        for name in figures
    ]


def to_file(figures: Sequence[str], workdir: Path) -> list[str]:
    """Returns the figures as config.json lists them.

    Paths of files in the workdir are relative to it, so that they remain right if the workdir is moved. Other paths are
    absolute, so that a later command may start in another folder.
    """
    folder = os.path.abspath(workdir)
    return [
        os.path.relpath(name, folder) if Path(name).is_relative_to(folder) else name
        for name in with_absolute_paths(figures)
    ]


def is_file(figure: str) -> bool:
    """Returns whether a figure is a Python file rather than one that lm_mia includes."""
    return figure.endswith(".py")


def with_absolute_paths(figures: Sequence[str]) -> tuple[str, ...]:
    """Returns the figures with absolute paths of files, which are relative to the folder of the command."""
    return tuple(os.path.abspath(name) if is_file(name) else name for name in figures)


def matches(name: str, figures: Collection[str]) -> set[str]:
    """Returns the figures that NAME in ``--config.figures=-NAME`` stands for; empty if there are none.

    Args:
      name: the name of a figure, or the path of a file; if no figure has this path, its file name with or without
        ``.py``. Files need not exist.
      figures: the figures.
    """
    same = {current_figure_name(name), name, *with_absolute_paths([name])}
    exact = {figure for figure in figures if same & {figure, *with_absolute_paths([figure])}}
    return exact or {f for f in figures if is_file(f) and name in (Path(f).name, Path(f).stem)}


def without(figures: Sequence[str], removed: Sequence[str]) -> list[str]:
    """Returns the figures without those for which one of the names in `removed` stands; see `matches`."""
    left_out = {figure for name in removed for figure in matches(name, figures)}
    return [figure for figure in figures if figure not in left_out]
