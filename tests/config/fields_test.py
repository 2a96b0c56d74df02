"""Types and ranges of fields: every field has a range, and every value out of it is one line."""

import contextlib
import dataclasses
import math
import random
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Le, Lt, MinLen
from tiny_config import FILE, TINY, change, error_lines

from lm_mia.config import Config, fields, load, resolve
from lm_mia.config.fields import Before, accepts, broken_rule, describe, types_of
from lm_mia.config.validate import check, problems
from lm_mia.errors import UserError

TYPES = types_of(Config)


def numbers(kind: Any) -> Iterator[Any]:
    """Yields the annotations of all numbers in that of a field."""
    base = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    if base in (int, float):
        yield kind
    elif typing.get_origin(base) is not Literal:
        for part in typing.get_args(base):
            yield from numbers(part)


def test_every_number_has_a_range():
    for name, kind in TYPES.items():
        for number in numbers(kind):
            assert typing.get_origin(number) is Annotated, name
            assert not accepts(number, -1), name
            assert not accepts(number, True), name
            assert not accepts(number, "1"), name
            assert not accepts(number, math.nan), name
            assert not accepts(number, math.inf), name
            assert not accepts(number, 10**400), name


@pytest.mark.parametrize("name", TYPES)
def test_each_value_of_a_wrong_type_or_range_is_one_line(name: str):
    """The line begins with field=value, and says what must be and what the default is."""
    for value in (-1, -0.5, math.nan, 10**400, None, b"x", ("x", -1), object()):
        c = change(TINY, name, value)
        if accepts(TYPES[name], value):
            continue
        [line] = problems(c)
        assert line.startswith(f"{name}={fields.shown(value)}: must be ")
        assert "\n" not in line


def test_numbers_of_thousands_of_digits_and_long_values_are_one_line():
    for value in (10**5000, "x" * 5000, ("x\n" * 9,) * 999):
        [line] = problems(change(TINY, "train.epochs", value))
        assert line.startswith("train.epochs=")
        assert "\n" not in line
        assert len(line) < 500


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError


def test_a_value_that_cannot_be_shown_is_named_by_its_class():
    assert problems(change(TINY, "model.layers", Broken()))[0].startswith("model.layers=(Broken): ")


@pytest.mark.parametrize(
    ("kind", "good", "bad", "description"),
    [
        (Annotated[int, Ge(1)], (1, 2**31 - 1), (0, 2**31, 1.0, True), "an integer of at least 1"),
        (Annotated[int, Ge(0), Le(9)], (0, 9), (-1, 10), "an integer from 0 to 9"),
        (
            Annotated[float, Ge(0), Lt(1)],
            (0.0, 0.99),
            (1.0, math.nan, 0),
            "a number of at least 0 and below 1",
        ),
        (Annotated[float, Ge(0)], (0.0, 1e300), (math.inf,), "a finite number of at least 0"),
        (
            Annotated[int, Ge(1)] | Literal["all", "auto"],
            (1, "all", "auto"),
            (0, "none"),
            "an integer of at least 1, or all or auto",
        ),
        (
            Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1), fields.distinct()],
            ((1,), (1, 2)),
            ((), (1, 1), (0,), [1]),
            "a list of one or more integers of at least 1 such as 100,200 without duplicates",
        ),
        (
            Annotated[bool, Before(False)],
            (True, False),
            (0, 1, "True"),
            "True or False",
        ),
        (str, ("", "é"), ("\0", "\ud800", 1), "a string"),
    ],
)
def test_annotations_say_what_a_value_must_be(
    kind: Any, good: tuple[Any, ...], bad: tuple[Any, ...], description: str
):
    assert describe(kind) == description
    assert [broken_rule(kind, value) for value in good] == [""] * len(good)
    assert all(broken_rule(kind, value) for value in bad)


def test_whole_numbers_of_a_file_become_floats():
    assert type(fields.converted(TYPES["optimizer.weight_decay"], 0)) is float
    assert type(fields.converted(TYPES["optimizer.clip_norm"], 1)) is float
    assert fields.converted(TYPES["optimizer.clip_norm"], "none") == "none"
    [[_, factor]] = fields.converted(TYPES["optimizer.learning_rate_multipliers"], (("mlp", 2),))
    assert type(factor) is float
    assert type(fields.converted(TYPES["score.at_steps"], (2,))[0]) is int
    assert fields.converted(TYPES["optimizer.eps"], 10**400) == 10**400  # which is refused


@dataclasses.dataclass(frozen=True)
class Later:
    """A section with fields that were added in different versions."""

    old: bool = True
    new: Annotated[bool, Before(False)] = True
    number: Annotated[Annotated[int, Ge(1)] | Literal["auto"], Before("auto")] = 3


def test_a_later_field_declares_what_older_models_had():
    assert fields.before(Later) == {"new": False, "number": "auto"}
    assert fields.mistakes(Later()) == {}
    assert [*fields.mistakes(Later(number=0))] == ["number"]


VALUES: list[Any] = [
    *(-(10**400), -1, 0, 1, 2, 3, 7, 8, 16, 2**31, 2**64, 10**5000, True, False, None),
    *(0.0, -0.0, 0.5, 1.0, 1e-300, 1e308, math.nan, math.inf, -math.inf, -1.5),
    *("", "auto", "all", "none", "last", "8", "x", "\0", "\ud800", "(", "é\n", "a" * 300),
    *("hf:", "hf:\0", "hf:/nowhere", "hf:~nobody/x", "x.py:y", ".py:", "\0.py:y", "custom", "10M"),
    *("imported", "c4", "text", "given", "balanced", "bernoulli", "llama", "gpt2", "lion", "muon"),
    *("cudnn", "pallas", "bfloat16", "exact", "tuned", "pooled", "file"),
    *((), (1,), (0,), (0.5,), (0.5, 0.1), (0.1, 0.5), (1, 1), ("x",), ("(",), (None,), ((),)),
    *((("mlp", 2.0),), (("mlp", "2"),), (math.nan,), (10**400,), (1, 2, 3, 4), (1e308, 1e308)),
    *(("lira_online",), ("loss",), ("min_k", "min_k"), ("groups",), tuple(range(9000))),
    *([], [1], {}, {1}, b"x", object(), 1j, int, Broken(), Config()),
]


def random_config(rng: random.Random) -> Config:
    """Returns TINY with some fields, and rarely a section, set to any values."""
    c = TINY
    for name in rng.sample([*TYPES], rng.choice([1, 2, 3, 8, 40])):
        value = rng.choice(VALUES)
        if rng.random() < 0.5:  # of the right type
            value = rng.choice([v for v in VALUES if accepts(TYPES[name], v)] or VALUES)
        c = change(c, name, value)
    if rng.random() < 0.03:
        section = rng.choice(["corpus", "model", "train", "attack"])
        c = dataclasses.replace(c, **{section: rng.choice(VALUES)})
    return c


def test_random_configs_are_valid_or_have_one_line_per_mistake():
    rng, valid = random.Random(0), 0
    for _ in range(250):
        c = random_config(rng)
        lines = problems(c)
        assert all("\n" not in line and ": " in line for line in lines)
        assert all(line.partition("=")[0] in {*TYPES, *vars(c)} for line in lines)
        found = fields.mistakes(c)
        assert {*found} <= {line.partition("=")[0] for line in lines}
        if not lines:
            valid += 1
            assert resolve(resolve(c)) == resolve(c)
    assert valid > 5


def test_random_flags_and_sweeps_raise_nothing_but_user_errors(tmp_path):
    rng, file = random.Random(1), tmp_path / "sweep.py"
    file.write_text(FILE)
    for _ in range(120):
        names = rng.sample([*TYPES], 3)
        flags = [f"--config.{name}={fields.shown(rng.choice(VALUES))}" for name in names]
        with contextlib.suppress(UserError):
            load.load_config(str(file), flags)
    for _ in range(80):
        entry = {name: rng.choice(VALUES) for name in rng.sample([*TYPES], 3)}
        changed, _, doubtful = load._set_fields(TINY, entry)
        assert all("\n" not in line for line in check(changed, doubtful)[1])


def test_flags_go_through_the_same_check(tmp_path):
    file = tmp_path / "tiny.py"
    file.write_text(FILE)
    flags = ["--config.train.epochs=0", "--config.attack.alpha=nan", "--config.model.layers=0"]
    broken = load.load_config(str(file))
    for name, value in (("train.epochs", 0), ("attack.alpha", math.nan), ("model.layers", 0)):
        broken = change(broken, name, value)
    assert error_lines(str(file), *flags) == problems(broken)
