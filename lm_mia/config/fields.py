"""The types and ranges of the fields of a config, which stand in their annotations, and the check of all values.

An annotation is a type with the marks of the package annotated-types, such as ``Annotated[int, Ge(1)]``, with a `Rule`
for which that package has no mark, and with `Before` if the field was added later. A number and a word make
``Annotated[int, Ge(1)] | Literal["auto"]``; of a list, the marks of the items stand inside.
"""

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen

LARGEST_INTEGER = 2**31 - 1
"""The largest 32-bit integer, which is the maximum of fields without a maximum of their own."""
_LONGEST_VALUE = 200
"""Maximum number of characters of a value in a message."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule about the values of a field for which annotated-types has no mark."""

    is_met: Callable[[Any], bool]
    text: str
    """How the description of the field goes on, as in "a list of names" + "without duplicates"."""


@dataclasses.dataclass(frozen=True)
class Before:
    """The value that gives the models of versions without the field. It is needed only by fields that affect models.

    At this value, the field is no part of the hash of a recipe or a population, and a stored config without the field
    counts as having it, whatever the default is or becomes. So existing workdirs remain valid.
    """

    value: Any
    """As in JSON: a list for a tuple."""


def distinct(digits: int = 0) -> Rule:
    """Returns the rule that a list has no duplicates; of numbers with `digits`, none in their first digits."""

    def is_met(values: Sequence[Any]) -> bool:
        return len({f"{x:.{digits}g}" if digits else x for x in values}) == len(values)

    return Rule(is_met, "without duplicates" + (f" in their first {digits} digits" * bool(digits)))


ASCENDING = Rule(lambda values: list(values) == sorted(values), "in ascending order")


def is_expression(text: str) -> bool:
    """Returns whether a text is a regular expression of Python."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


@functools.cache
def types_of(section: type) -> Mapping[str, Any]:
    """Returns the annotations of all fields of a dataclass and its sections, by names such as ``model.layers``."""
    return dict(_types_of(section))


def _types_of(section: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, kind in typing.get_type_hints(section, include_extras=True).items():
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from _types_of(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, kind


def before(section: type) -> dict[str, Any]:
    """Returns the fields that were added later, each with the value that gives the models of earlier versions."""
    return {
        name: mark.value
        for name, kind in types_of(section).items()
        for mark in _marks(kind)
        if isinstance(mark, Before)
    }


def get(node: Any, name: str) -> Any:
    """Returns the value of a field such as ``model.layers``; None if its section is not a section of ours."""
    for part in name.split("."):
        node = getattr(node, part, None)
    return node


def replaced(node: Any, name: str, value: Any) -> Any:
    """Returns a config, or a section of one, with another value of a field such as ``model.layers``."""
    first, _, rest = name.partition(".")
    return dataclasses.replace(
        node, **{first: replaced(getattr(node, first), rest, value) if rest else value}
    )


def mistakes(config: Any) -> dict[str, str]:
    """Returns a message for each field whose value has a wrong type or is out of its range: name -> message.

    Values of classes that a config file defines, such as a subclass of Model or an enum of strings, have wrong types,
    since the worker processes that train models could not load them.
    """
    found, default = {}, type(config)()
    for name, kind in typing.get_type_hints(type(config)).items():
        value = getattr(config, name)
        if dataclasses.is_dataclass(kind) and type(value) is not kind:
            assert isinstance(kind, type)
            must = f"must be a {kind.__name__} of lm_mia.config, such as {kind.__name__}()"
            found[name] = f"{name}={shown(value)}: {must}"
    for name, kind in types_of(type(config)).items():
        value = get(config, name)
        if name.partition(".")[0] not in found and (rule := broken_rule(kind, value)):
            found[name] = f"{name}={shown(value)}: {rule}{remedy(get(default, name))}"
    return found


def broken_rule(kind: Any, value: Any) -> str:
    """Returns the rule of a field's annotation that a value breaks, as "must be ..."; "" if there is none."""
    if accepts(kind, value):
        return ""
    base, marks = without_marks(kind), _marks(kind)
    [*_, maximum] = (
        LARGEST_INTEGER,
        *(cast(float, mark.le) for mark in marks if isinstance(mark, Le)),
    )
    integers = value if type(value) is tuple else (value,)
    if float not in (base, *map(without_marks, get_args(base))) and any(
        type(x) is int and x > maximum for x in integers
    ):
        return f"must be at most {maximum:,}"
    return f"must be {describe(kind)}"


def remedy(default: Any) -> str:
    """Returns what goes on after a rule, with the default of the field as a flag would give it."""
    text = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return f"; the default is {text or 'empty'}"


def shown(value: Any) -> str:
    """Returns a value as Python writes it, in one line that is not too long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of an integer with more than 4,300 digits, or of a class of the user
        text = f"({type(value).__name__})"
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def accepts(kind: Any, value: Any) -> bool:
    """Returns whether a value has the type of an annotation, and meets all of its marks."""
    origin = get_origin(kind)
    if origin is Annotated:
        base, marks = kind.__origin__, kind.__metadata__
        has_maximum = any(isinstance(mark, Le) for mark in marks)
        is_small = has_maximum or type(value) is not int or value <= LARGEST_INTEGER
        return accepts(base, value) and is_small and all(_is_met(mark, value) for mark in marks)
    if origin is Literal:
        return type(value) is str and value in get_args(kind)
    if origin is tuple:
        items = get_args(kind)
        if items[-1] is ... and type(value) is tuple:
            items = items[:1] * len(value)
        is_long_enough = type(value) is tuple and len(value) == len(items)
        return is_long_enough and all(map(accepts, items, value))
    if _is_union(kind):
        return any(accepts(part, value) for part in get_args(kind))
    if type(value) is not kind:
        return False
    if kind is str:
        return "\0" not in value and not any(
            "\ud800" <= character <= "\udfff" for character in value
        )
    return kind is not float or math.isfinite(value)


def converted(kind: Any, value: Any) -> Any:
    """Returns a value of a config file with whole numbers made floats where an annotation has floats.

    So 0 and 0.0 are the same recipe.
    """
    if get_origin(kind) is Annotated:
        return converted(kind.__origin__, value)
    if _is_union(kind):
        return converted(get_args(kind)[0], value)
    if get_origin(kind) is tuple and type(value) is tuple:
        items = get_args(kind)
        items = items[:1] * len(value) if items[-1] is ... else items
        return tuple(map(converted, items, value)) if len(items) == len(value) else value
    if kind is float and type(value) is int and abs(value) < 2**1000:
        return float(value)
    return value


def describe(kind: Any) -> str:
    """Returns what the value of a field must be: "an integer of at least 1, or auto"."""
    base, rules = _unwrapped(kind)
    if _is_union(base):
        number, word = get_args(base)
        return f"{describe(number)}, or {' or '.join(get_args(word))}"
    if get_origin(base) is not tuple:
        return " ".join([_phrase(kind, plural=False), *rules])
    item, *rest = get_args(base)
    if get_origin(item) is Literal:
        noun = f"a list of {', '.join(get_args(item))}"
    elif rest != [...]:
        noun = f"two {_phrase(item, plural=True)} such as 0.01,0.05"
    elif get_origin(item) is tuple:
        first, second = (_phrase(part, plural=False) for part in get_args(item))
        noun = f"a list of pairs of {first} and {second}, such as embedding,0.1,mlp,2,"
    else:
        number = "one or more " if any(isinstance(m, MinLen) for m in _marks(kind)) else ""
        example = {int: " such as 100,200", float: " such as 0.01,0.05"}
        noun = f"a list of {number}{_phrase(item, plural=True)}"
        noun += example.get(_unwrapped(item)[0], "")
    return " ".join([noun, *rules])


def _phrase(kind: Any, plural: bool) -> str:
    """Describes a value that is no list, or several of them."""
    base, rules = _unwrapped(kind)
    if get_origin(base) is Literal:
        return "one of " + ", ".join(get_args(base))
    if base is bool:
        return "True or False"
    marks = _marks(kind)
    low = [f"of at least {mark.ge:,}" for mark in marks if isinstance(mark, Ge)]
    low += [f"above {mark.gt:,}" for mark in marks if isinstance(mark, Gt)]
    high = [f"at most {mark.le:,}" for mark in marks if isinstance(mark, Le)]
    high += [f"below {mark.lt:,}" for mark in marks if isinstance(mark, Lt)]
    nouns = {int: ("an integer", "integers"), str: ("a string", "names")}
    finite = "" if high else "finite "
    noun = nouns.get(base, (f"a {finite}number", f"{finite}numbers"))[plural]
    text = " and ".join(low + high)
    ends = [mark.ge for mark in marks if isinstance(mark, Ge)]
    ends += [mark.le for mark in marks if isinstance(mark, Le)]
    if len(ends) == 2:
        text = "from {:,} to {:,}".format(*ends)
    return " ".join(filter(None, [noun, text, *(rules if plural else ())]))


def _unwrapped(kind: Any) -> tuple[Any, list[str]]:
    """Returns the type of an annotation without its marks, and the texts of its `Rule`s."""
    base = kind.__origin__ if get_origin(kind) is Annotated else kind
    return base, [mark.text for mark in _marks(kind) if isinstance(mark, Rule)]


def _marks(kind: Any) -> tuple[Any, ...]:
    """Returns the marks of an annotation; of a number or a word, those of the number."""
    if _is_union(kind):
        kind = get_args(kind)[0]
    return kind.__metadata__ if get_origin(kind) is Annotated else ()


def without_marks(kind: Any) -> Any:
    """Returns the type of an annotation without its marks, and without the words that a number may be."""
    base, _ = _unwrapped(kind)
    return without_marks(get_args(base)[0]) if _is_union(base) else base


def _is_met(mark: Any, value: Any) -> bool:
    match mark:
        case Ge(bound):
            return value >= bound
        case Gt(bound):
            return value > bound
        case Le(bound):
            return value <= bound
        case Lt(bound):
            return value < bound
        case MinLen(length):
            return len(value) >= length
        case Rule():
            return mark.is_met(value)
    return True


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (typing.Union, types.UnionType)


_Number = TypeVar("_Number", int, float)


def number(setting: _Number | str) -> _Number | Literal[0]:
    """Returns a setting that is a number, and 0 for a word such as "auto" or "all"."""
    return 0 if isinstance(setting, str) else setting
