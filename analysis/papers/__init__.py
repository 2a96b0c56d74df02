"""What papers say: titles, findings, printed numbers and errata, and where this reproduction departs from them.

The texts and numbers stand in one YAML file for each paper, with these keys:

- name, authors, title: of the paper
- models: what kind of models the paper has, and what kind its figures have here
- departures: where the protocol of this reproduction is another one, or fills in what the paper does not say, and why
- errata: where the paper contradicts itself, or has a misprint
- items: name of a figure or table -> its title, what the paper shows in our words, and the numbers that it prints

A departure or an erratum lists the items that it concerns, such as ``fig04``; without a list it concerns all of them.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lm_mia.config.paper import figure_number

NAMES = ("strongmia", "reliability", "mace", "privacyguard", "causal")
"""The names of the papers, with which the names of their items begin."""
_FOLDER = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class PublishedNumber:
    """A number that the paper prints."""

    description: str
    value: float
    std: float
    """NaN if none is printed."""
    location: str
    """Where the paper prints it, such as "Section 3.1"."""


@dataclasses.dataclass(frozen=True)
class Remark:
    """A departure from the paper, or an erratum of the paper."""

    text: str
    """Full sentences."""
    items: tuple[str, ...] = ()
    """The numbers of the items that it concerns, such as ``fig04``; empty: all of them."""

    def concerns(self, item: str) -> bool:
        """Returns whether the remark is about an item in particular; its name is a full one."""
        return figure_number(item) in self.items


@dataclasses.dataclass(frozen=True)
class Item:
    """A figure or table of a paper."""

    title: str
    shows: str
    """What the paper shows."""
    numbers: Mapping[str, PublishedNumber]
    """Key -> a number that the paper prints."""


@dataclasses.dataclass(frozen=True)
class Paper:
    """One paper."""

    name: str
    authors: str
    title: str
    models: str
    departures: tuple[Remark, ...]
    errata: tuple[Remark, ...]
    items: Mapping[str, Item]
    """Full name -> item, such as ``strongmia_fig05_instability``."""


def name_of(item: str) -> str:
    """Returns the name of the paper of an item; empty for what belongs to no paper."""
    name = item.partition("_")[0]
    return name if name in NAMES else ""


def item(name: str) -> Item:
    """Returns an item of a paper by its full name."""
    return read(name_of(name)).items[name]


@functools.cache
def read(name: str) -> Paper:
    """Returns a paper by its name in `NAMES`."""
    text = (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    # The loader in C is twelve times as fast; PyYAML can be built without it.
    fields = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return Paper(
        name=fields["name"],
        authors=fields["authors"],
        title=fields["title"],
        models=fields["models"],
        departures=_remarks(fields["departures"]),
        errata=_remarks(fields["errata"]),
        items={
            key: Item(
                value["title"],
                value["shows"],
                {number["key"]: _number(number) for number in value.get("numbers", ())},
            )
            for key, value in fields["items"].items()
        },
    )


def _remarks(remarks: list[dict[str, Any]]) -> tuple[Remark, ...]:
    return tuple(Remark(remark["text"], tuple(remark.get("items", ()))) for remark in remarks)


def _number(fields: dict[str, Any]) -> PublishedNumber:
    value, std = float(fields["value"]), float(fields.get("std", math.nan))
    return PublishedNumber(fields["text"], value, std, fields["where"])
