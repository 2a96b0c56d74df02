"""Configs that draw the figures of a paper: their argument, ``[FIGURE,]SETTING``, and the recipes of their sweep.

The full name of a figure is ``PAPER_NUMBER_SUBJECT``, such as ``strongmia_fig05_instability``. In the argument of the
paper's own config its number, ``fig05``, is enough.
"""

import dataclasses
import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, cast, get_args

from lm_mia.config.schema import Config
from lm_mia.errors import UserError

Setting = Literal["paper", "gpu", "cpu"]


@dataclasses.dataclass(frozen=True)
class PaperConfig:
    """What a config file needs to draw the figures of a paper: its ``get_config`` and its ``sweep``."""

    paper: str
    """The title of the paper, for messages."""
    file: str
    """The name of the config file, for messages."""
    figures: Mapping[str, Sequence[str]]
    """Full name of a figure -> the names of the recipes that it needs; a simulation needs none."""
    recipe: Callable[[Setting, str], Config]
    """Returns the config of a recipe, by setting and name."""

    def get_config(self, arg: str = "") -> Config:
        """Returns the config of the first recipe of the figures, which lists the figures to draw and compares them
        with the paper. If all figures are simulations, it has no recipe.

        Args:
          arg: ``[FIGURE,]SETTING``, as for `parse_argument`.

        Raises:
          UserError: as `parse_argument`.
        """
        figures, recipes = self._selected(arg)
        first = recipes[0] if recipes else Config(has_recipe=False)
        return dataclasses.replace(first, figures=tuple(figures), compare_with_papers=True)

    def sweep(self, arg: str = "") -> Iterator[dict[str, Any]]:
        """Yields the fields in which each further recipe of the figures differs from the first; ``arg`` as above."""
        return sweep_entries(self._selected(arg)[1])

    def _selected(self, arg: str) -> tuple[list[str], list[Config]]:
        """Returns the figures that an argument names, and their recipes without duplicates."""
        figures, setting = parse_argument(arg, self.figures, self.paper, self.file)
        names = dict.fromkeys(name for figure in figures for name in self.figures[figure])
        return figures, [self.recipe(setting, name) for name in names]


def figure_number(name: str) -> str:
    """Returns the number of a figure or table in its paper: ``fig05`` for ``strongmia_fig05_instability``.

    A name that does not belong to a paper, such as ``scaling``, is returned unchanged.
    """
    parts = name.split("_", 2)
    return parts[1] if len(parts) == 3 else name


def current_figure_name(name: str) -> str:
    """Returns the name of a figure that a workdir lists, in which earlier versions left out ``strongmia_``.

    Example:
      >>> current_figure_name("fig05_instability")
      'strongmia_fig05_instability'
    """
    return re.sub(r"^(?=(fig|tab)\d\d_\w+$)", "strongmia_", name)


def parse_argument(
    arg: str, figures: Collection[str], paper: str, file: str
) -> tuple[list[str], Setting]:
    """Returns the full names of the figures that an argument names, all of them if it names none, and the setting.

    Args:
      arg: ``[FIGURE,]SETTING``; several figures may be named, as in ``fig01,fig05,cpu``.
      figures: the full names of all figures of the paper.
      paper: the title of the paper, for messages.
      file: the name of the config, for messages.

    Raises:
      UserError: a figure or the setting is unknown, or the setting is missing.

    Example:
      >>> parse_argument("fig05,cpu", ["strongmia_fig05_instability"], "StrongMIA", "strongmia.py")
      (['strongmia_fig05_instability'], 'cpu')
    """
    *names, setting = arg.split(",")
    by_name = {figure_number(full): full for full in figures} | {full: full for full in figures}
    if setting not in get_args(Setting):
        raise UserError(
            (f"SETTING={setting}: must be" if setting else "SETTING is missing: it must be")
            + f" paper, gpu or cpu, and come last; write [FIGURE,]SETTING after the colon, as in {file}:"
            f"{figure_number(next(iter(figures)))},cpu"
        )
    for name in names:
        if name not in by_name:
            similar = max(
                by_name, key=lambda known: difflib.SequenceMatcher(None, name, known).ratio()
            )
            raise UserError(
                f"FIGURE={name}: {paper} has no such figure; did you mean {similar}? "
                f"Name one of {_listed([*map(figure_number, figures)])}"
            )
    selected = list(dict.fromkeys(by_name[name] for name in names)) or list(figures)
    return selected, cast(Setting, setting)


def _listed(numbers: Sequence[str]) -> str:
    """Lists numbers of figures: "fig02, fig04 or fig05", or, if there are many, "fig01 to fig32 or tab01 to tab07"."""
    if len(numbers) > 8:
        kinds: dict[str, list[str]] = {}
        for number in numbers:
            kinds.setdefault(number[:3], []).append(number)
        numbers = [f"{kind[0]} to {kind[-1]}" for kind in kinds.values()]
    *others, last = numbers
    return f"{', '.join(others)} or {last}" if others else last


def sweep_entries(recipes: Sequence[Config]) -> Iterator[dict[str, Any]]:
    """Yields, for each recipe after the first, the fields in which it differs from the first, with its values."""
    for config in recipes[1:]:
        yield dict(_changes(recipes[0], config))


def _changes(old: Any, new: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(old):
        a, b = getattr(old, field.name), getattr(new, field.name)
        if dataclasses.is_dataclass(a):
            yield from _changes(a, b, f"{prefix}{field.name}.")
        elif a != b:
            yield prefix + field.name, b
