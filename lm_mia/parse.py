"""A config from a Python file and command-line overrides, checked, every problem told at once.

A config file defines ``get_config()``; ``FILE.py:ARG`` calls ``get_config("ARG")``. Every field can be overridden as
``--config.section.field=value``.
"""

import contextlib
import dataclasses
import difflib
import importlib.util
import inspect
import io
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import tyro

from lm_mia.config import Config
from lm_mia.errors import UserError
from lm_mia.rules import problems


def parse(config_arg: str, overrides: Sequence[str] = ()) -> Config:
    """Config of a file with overrides such as ``--config.model.layers=4`` applied, checked.

    Args:
      config_arg: ``FILE.py`` or ``FILE.py:ARG``.
      overrides: ``--config.path.to.field=value``, or the flag and its value(s) as separate items.

    Raises:
      UserError: with one line for every unknown field, value of a wrong type or broken rule.
    """
    config = load(config_arg)
    kinds = dict(_fields(Config))
    bad: list[str] = []
    unsure: set[str] = set()  # fields whose value is not the one that was meant
    for name, values in _flags(overrides):
        section, _, leaf_name = name.rpartition(".")
        positive = f"{section}.{leaf_name.removeprefix('no_')}"
        if kinds.get(positive) is bool and not values:  # --config.attack.[no-]leave-one-out
            config = _set(config, positive.split("."), positive == name)
            continue
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=1, cutoff=0.4)
            leaf = [k for k in kinds if k.rsplit(".")[-1] == name.rsplit(".")[-1]]
            hint = f"; did you mean --config.{(leaf or near)[0]}?" if leaf or near else ""
            unsure |= {*(leaf or near)[:1]}
            bad.append(f"--config.{name}: no such field{hint}")
            continue
        said = " ".join(values)
        if kinds[name] is bool:
            values = [value.capitalize() for value in values]
        if typing.get_origin(kinds[name]) is tuple:
            values = [part.strip() for value in values for part in value.split(",")]
        try:
            with (
                contextlib.redirect_stderr(io.StringIO()),
                contextlib.redirect_stdout(io.StringIO()),
            ):
                value = tyro.cli(kinds[name], args=values)
        except SystemExit:
            bad.append(f"{name}={said!r}: must be {_describe(kinds[name])}")
            unsure.add(name)
            continue
        config = _set(config, name.split("."), value)
    bad += [line for line in problems(config) if not any(name in line for name in unsure)]
    if bad:
        raise UserError("\n".join(bad))
    return config


def load(config_arg: str) -> Config:
    """What ``get_config`` of ``FILE.py[:ARG]`` returns; UserError if there is no such file, function or argument."""
    name, _, arg = config_arg.partition(":")
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"--config={config_arg}: no such Python file; try configs/quickstart.py")
    spec = importlib.util.spec_from_file_location(f"lm_mia_config_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        get_config = getattr(module, "get_config", None)
        if get_config is None:
            raise UserError(f"--config={config_arg}: the file defines no get_config()")
        takes_arg = bool(inspect.signature(get_config).parameters)
        if arg and not takes_arg:
            raise UserError(f"--config={config_arg}: get_config() takes no argument; drop ':{arg}'")
        config = get_config(arg) if arg else get_config()
    except UserError:
        raise
    except SystemExit as error:
        raise UserError(f"--config={config_arg}: the file called exit({error.code})") from error
    except Exception as error:
        said = " ".join(str(error).split())
        raise UserError(f"--config={config_arg}: {type(error).__name__}: {said}") from error
    if not isinstance(config, Config):
        raise UserError(
            f"--config={config_arg}: get_config() returned {type(config).__name__}, not a Config"
        )
    wrong: list[str] = []
    for name, kind in _fields(Config):
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part, None)
        if kind is float and type(value) is int:  # 0 and 0.0 are one value, and one recipe
            config = _set(config, name.split("."), float(value))
        elif not _fits(value, kind):
            wrong.append(f"--config={config_arg}: {name}={value!r}: must be {_describe(kind)}")
    if wrong:
        raise UserError("\n".join(wrong))
    return config


def _fields(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, kind in get_type_hints(cls).items():
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            yield from _fields(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, kind


def _flags(overrides: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """(field, values) of each flag; a word before any flag is a mistake."""
    flags: list[tuple[str, list[str]]] = []
    for word in overrides:
        if word.startswith("--config."):
            name, equals, value = word.removeprefix("--config.").partition("=")
            flags.append((name.replace("-", "_"), [value] if equals else []))
        elif flags and not word.startswith("--"):
            flags[-1][1].append(word)
        else:
            raise UserError(
                f"{word}: unknown argument; overrides look like --config.model.layers=4"
            )
    return iter(flags)


def _fits(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        of, *rest = typing.get_args(kind)
        if not isinstance(value, tuple) or (rest != [...] and len(value) != 1 + len(rest)):
            return False
        return all(_fits(part, of) or (of is float and type(part) is int) for part in value)
    return type(value) is kind


def _describe(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        of, *rest = typing.get_args(kind)
        if typing.get_origin(of) is typing.Literal:
            return "some of " + ", ".join(map(str, typing.get_args(of)))
        return (
            "a list of numbers such as 0.01,0.05"
            if rest == [...]
            else "two numbers such as 0.01,0.05"
        )
    names = {
        int: "a whole number",
        float: "a number",
        str: "a text",
        bool: "True or False",
    }
    return names[kind]


def _set(node: Any, path: list[str], value: Any) -> Any:
    new = value if len(path) == 1 else _set(getattr(node, path[0]), path[1:], value)
    return dataclasses.replace(node, **{path[0]: new})
