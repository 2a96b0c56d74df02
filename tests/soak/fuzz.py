"""Run by hand (5 minutes of CPU time): fuzzes the config loader and the functions of `lm_mia.stats`.

    PYTHONPATH=tests/shared python tests/soak/fuzz.py [--configs 10000] [--arrays 2000] [--seed 0]

A config trial reads random flags with the parser and loader of `lm-mia plan`: values of wrong types, huge and negative
numbers, NaN, text in other scripts, repeated flags, and misspelled names. The result must be a valid config or a
UserError with lines of at most 500 characters that name the field, and no other exception. An array trial calls a
function of `lm_mia.stats` with arrays of random types, shapes and memory layouts, with NaN and infinities, or, if its
arguments are numbers, with one random number. The result must be a ValueError with a message, or a value. Warnings and
all other exceptions are wrong, and so are probabilities outside [0, 1], and values for complex, text, object or masked
arrays. Prints the outcomes as tables; exits with 1 if an outcome is wrong, or if a public function is not called.
"""

import argparse
import collections
import contextlib
import dataclasses
import io
import math
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rich.progress
import stats_calls

from lm_mia import cli, stats
from lm_mia.config import Config
from lm_mia.errors import UserError

_SECONDS = 30  # a trial that takes longer counts as hanging
_VALUES = [
    *(
        "",
        " ",
        "0",
        "1",
        "-1",
        "2",
        "3",
        "0.5",
        "1e-9",
        "1e9",
        "1e400",
        "-1e400",
        "nan",
        "inf",
        "-inf",
        "None",
        "True",
    ),
    *(
        "false",
        "yes",
        "[]",
        "{}",
        "()",
        "1,2",
        "2,1",
        "1,1",
        "0.1,0.1",
        ",",
        "1,",
        "a,b",
        "lira_online",
        "loss,loss",
    ),
    *(
        "99999999999999999999",
        "-99999999999999999999",
        "0x10",
        "1_000",
        "١٢",
        "½",
        "é",
        "名前",
        "\u202e",
        "\x00",
        "\n",
    ),
    *(
        "../..",
        "/",
        "/dev/null",
        "~",
        "a" * 5000,
        "balanced",
        "exact",
        "--config",
        "-",
        "'",
        '"',
        "\\",
        "%s",
        "{0}",
        "$HOME",
    ),
]
_FLOATS = [
    *(math.nan, math.inf, -math.inf, -1.0, -0.0, 0.0, 5e-324, 1e-9, 0.05, 0.5, 0.95),
    *(1 - 2**-53, 1.0, 2.0, 1e9, 1e308, np.float16(0.5), np.float32(0.05), np.float64(0.5)),
]
# The functions limit neither memory nor time, so larger numbers of samples are left out.
_INTEGERS = [-(2**63), -1, 0, 1, 2, 3, 7, 20, 100, 1000, np.int8(100), np.uint8(20), np.int64(7)]
_PROBABILITIES = {
    *(
        "auc",
        "clopper_pearson",
        "coin_flip_probability",
        "extraction_probability",
        "flip_rate",
        "p_value",
        "posterior",
    ),
    "tpr_at_fpr",
}


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in the block after a number of seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def field_names() -> list[str]:
    """Returns the names of all fields, such as train.epochs."""
    names = []
    for field in dataclasses.fields(Config):
        value = getattr(Config(), field.name)
        inner = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        names += [f"{field.name}.{f.name}" for f in inner] or [field.name]
    return names


def random_flags(draw: random.Random, names: list[str]) -> list[str]:
    """Returns one to four flags, some of which are repeated or have a misspelled name."""
    flags = []
    for _ in range(draw.randint(1, 4)):
        name = draw.choice(names)
        if draw.random() < 0.15:  # a character is left out, repeated or replaced
            at = draw.randrange(len(name))
            name = name[:at] + draw.choice(["", name[at] * 2, "-", "_", ".", "é"]) + name[at + 1 :]
        value = draw.choice(_VALUES)
        flags += [f"--config.{name}={value}"] * (2 if draw.random() < 0.1 else 1)
        if draw.random() < 0.05:
            flags[-1] = f"--config.{name}"  # without a value
    if draw.random() < 0.1:
        flags.append(
            draw.choice(
                ["--config=quickstart:x", "--workdir=", "--unknown", "value", "--device=tpu"]
            )
        )
    return flags


def config_trial(draw: random.Random, names: list[str]) -> tuple[str, str]:
    """Returns (outcome, description) of one trial; an outcome that starts with WRONG is a failure."""
    argv = ["--config=quickstart", *random_flags(draw, names)]
    shown = " ".join(repr(word)[:80] for word in argv)
    try:
        with (
            time_limit(_SECONDS),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("error")
            cli._read("plan", argv)  # pyright: ignore[reportPrivateUsage]
    except UserError as error:
        lines = str(error).splitlines()
        # A message repeats the value.
        lines = [line.replace("a" * 5000, "a") for line in lines]
        if not lines or any(len(line) > 500 or ": " not in line for line in lines):
            return "WRONG: message not of the usual form", f"{shown}: {str(error)[:600]!r}"
        return "refused with one line per problem", ""
    except BaseException as error:  # every other exception is a failure
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"WRONG: {type(error).__name__}", f"{shown}\n{traceback.format_exc(limit=-3)}"
    return "valid config", ""


def random_array(draw: random.Random, rng: np.random.Generator, per_model: bool) -> Any:
    """Returns an array or a list with values of about four samples, or of about eight models and four samples."""
    samples = draw.choice([4, 4, 4, 4, 4, 4, 0, 1, 3, 5])
    shape: tuple[int, ...] = (
        (draw.choice([8, 8, 8, 8, 0, 1, 2, 7]), samples) if per_model else (samples,)
    )
    if draw.random() < 0.05:
        shape = draw.choice([(), (1, *shape), shape[::-1], (0,), (2, 2, 2)])
    kind = draw.choice(["normal", "uniform", "count", "bool", "huge", "tiny", "equal", "sorted"])
    values = {
        "normal": lambda: rng.normal(0, 3, shape),
        "uniform": lambda: rng.uniform(0, 1, shape),
        "count": lambda: rng.integers(0, 7, shape).astype(float),
        "bool": lambda: rng.integers(0, 2, shape).astype(float),
        "huge": lambda: rng.uniform(-1, 1, shape) * 10.0 ** draw.randint(10, 308),
        "tiny": lambda: rng.normal(0, 1, shape) * 10.0 ** -draw.randint(10, 320),
        "equal": lambda: np.full(shape, float(draw.choice([0, 1, -1, 0.5, 3]))),
        "sorted": lambda: np.sort(rng.uniform(0, 1, shape), axis=-1) if shape else np.array(0.5),
    }[kind]()
    values = np.array(values)
    if draw.random() < 0.3 and values.size:
        flat = values.reshape(-1)
        for _ in range(draw.randint(1, 3)):
            flat[rng.integers(len(flat))] = draw.choice(
                [np.nan, np.inf, -np.inf, -0.0, 5e-324, 1e308]
            )
    dtype = draw.choice(
        [
            *["float64"] * 8,
            "float32",
            "float16",
            "int64",
            "int8",
            "uint8",
            "bool",
            ">f8",
            "longdouble",
            "object",
            "complex128",
            "str",
        ]
    )
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = values.astype(dtype)
    layout = draw.choice(
        ["plain", "plain", "plain", "list", "Fortran", "strided", "read-only", "masked"]
    )
    if layout == "list":
        return values.tolist()
    if layout == "Fortran":
        return np.asfortranarray(values)
    if layout == "strided" and values.ndim:
        return np.repeat(values, 2, axis=-1)[..., ::2]
    if layout == "read-only":
        values.flags.writeable = False
    if layout == "masked" and dtype not in ("object", "str"):
        return np.ma.masked_array(values, rng.integers(0, 2, values.shape).astype(bool))
    return values


def is_raised_in_stats(error: BaseException) -> bool:
    """Returns whether an error was raised within lm_mia.stats, and not by the call in the test."""
    folder = str(Path(stats.__file__).parent)
    return any(
        frame.filename.startswith(folder) for frame in traceback.extract_tb(error.__traceback__)
    )


def call_outcome(call: Callable[[], Any], shown: str) -> tuple[str, str, list[np.ndarray]]:
    """Returns (outcome, description, parts of the result) of a call; failures as in `config_trial`."""
    values: list[np.ndarray] = []
    try:
        with time_limit(_SECONDS), warnings.catch_warnings():
            warnings.simplefilter("error")
            values = [np.asarray(part) for part in stats_calls.as_list(call())]
    except (ValueError, UserError) as error:
        if not is_raised_in_stats(error):
            return "the call in the script does not fit the array", shown, values
        outcome = "refused with a message" if str(error) else "WRONG: no message"
        return outcome, shown, values
    except BaseException as error:  # every other exception is a failure, and so is a warning
        if isinstance(error, KeyboardInterrupt):
            raise
        if not (is_raised_in_stats(error) or isinstance(error, TimeoutError)):
            return "the call in the script does not fit the array", shown, values
        return (
            f"WRONG: {type(error).__name__}",
            f"{shown}\n{traceback.format_exc(limit=-3)}",
            values,
        )
    has_nan = any(v.dtype.kind == "f" and np.isnan(v).any() for v in values)
    return ("a result with NaN" if has_nan else "a result without NaN"), shown, values


def array_trial(
    name: str,
    function: Callable[[Any], Any],
    per_model: bool,
    draw: random.Random,
    rng: np.random.Generator,
) -> tuple[str, str]:
    """Returns (outcome, description) of one call with a random array."""
    array = random_array(draw, rng, per_model)
    shown = f"{name}: {type(array).__name__} {getattr(array, 'dtype', '')} {str(array)[:200]}"
    outcome, shown, values = call_outcome(lambda: function(array), shown)
    if not outcome.startswith("a result"):
        return outcome, shown
    if name.split()[0] in _PROBABILITIES:
        numbers = [v.astype(float) for v in values if v.dtype.kind in "fiu"]
        fractions = numbers[:1] if name.startswith(("auc", "tpr")) else numbers
        if any(((v < 0) | (v > 1)).any() for v in fractions):
            return "WRONG: a probability outside [0, 1]", f"{shown} -> {values}"
    if name not in stats_calls.LABEL_CALLS and not is_real(array):
        return "WRONG: a result of values that are not real numbers", f"{shown} -> {values}"
    return outcome, shown


def is_real(array: Any) -> bool:
    """Returns whether the values are real numbers, none of which is masked; true if there are no values."""
    values = np.asarray(array)
    return not values.size or not (values.dtype.kind in "cOU" or np.ma.is_masked(array))


def number_trial(name: str, draw: random.Random) -> tuple[str, str]:
    """Returns (outcome, description) of one call with a random number."""
    function, arguments = stats_calls.NUMBER_CALLS[name]
    tested = draw.choice([*arguments])
    value = draw.choice(_FLOATS if isinstance(arguments[tested], float) else _INTEGERS)
    shown = f"{name}: {tested}={value!r}"
    return call_outcome(lambda: function(**arguments | {tested: value}), shown)[:2]


def report(title: str, outcomes: collections.Counter[str]) -> bool:
    """Prints a table of outcomes; returns whether one of them is wrong."""
    print(f"\n| {title} | trials |\n|---|---|")
    for outcome, count in sorted(outcomes.items()):
        print(f"| {outcome} | {count:,} |")
    print(f"| all | {outcomes.total():,} |")
    return any(outcome.startswith("WRONG") for outcome in outcomes)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--configs", type=int, default=10_000)
    parser.add_argument("--arrays", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    draw, rng = random.Random(args.seed), np.random.default_rng(args.seed)
    names, calls = field_names(), stats_calls.array_calls()
    configs: collections.Counter[str] = collections.Counter()
    arrays: collections.Counter[str] = collections.Counter()
    shown: collections.Counter[str] = collections.Counter()

    def count(counter: collections.Counter[str], outcome: str, description: str) -> None:
        counter[outcome] += 1
        key = f"{outcome} {description.split(':')[0] if counter is arrays else description[-120:]}"
        shown[key] += 1
        if outcome.startswith("WRONG") and shown[key] == 1:
            bar.console.print(f"{outcome}: {description}", markup=False)

    with rich.progress.Progress() as bar:
        task = bar.add_task("configs", total=args.configs)
        for _ in range(args.configs):
            count(configs, *config_trial(draw, names))
            bar.advance(task)
        task = bar.add_task("arrays", total=args.arrays)
        order = [*calls, *stats_calls.NUMBER_CALLS]
        for i in range(args.arrays):
            name = order[i % len(order)]
            if name in calls:
                count(arrays, *array_trial(name, *calls[name], draw, rng))
            else:
                count(arrays, *number_trial(name, draw))
            bar.advance(task)
    wrong = report("configs and flags", configs)
    wrong |= report("arrays", arrays)
    functions = stats_calls.public_functions()
    called = {name.split()[0] for name in order}
    print(f"\n{len(functions & called)} of {len(functions)} public functions in {len(order)} calls")
    if missing := sorted(functions - called):
        print(f"WRONG: not called: {', '.join(missing)}; add them to tests/shared/stats_calls.py")
    print(f"seed {args.seed}")
    return wrong or bool(missing)


if __name__ == "__main__":
    sys.exit(main())
