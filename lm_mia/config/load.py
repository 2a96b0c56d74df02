"""Loads a config from a Python file and command-line overrides, and reports all errors together.

A config file defines ``get_config()``; ``FILE.py:ARG`` calls ``get_config("ARG")``. A name without a path, such as
``quickstart`` or ``strongmia:fig05,cpu``, selects a config that is included in lm_mia. Every field can be
overridden as ``--config.section.field=value``. A file may also define ``sweep()``, which yields dicts of overrides.
"""

import argparse
import ast
import contextlib
import dataclasses
import difflib
import importlib.util
import inspect
import io
import re
import sys
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, get_type_hints

import tyro

from lm_mia.config.schema import Config, resolve
from lm_mia.config.validate import problems
from lm_mia.errors import UserError


def load_config(config_arg: str, overrides: Sequence[str] = ()) -> Config:
    """Config of a file with overrides such as ``--config.model.layers=4`` applied, checked.

    Args:
      config_arg: ``FILE.py``, or the name of an included config; either may be followed by ``:ARG``.
      overrides: ``--config.path.to.field=value``, or the flag and its value(s) as separate items.

    Raises:
      UserError: with one line for every unknown field, value of a wrong type or broken rule.
    """
    module, arg = _module(config_arg)
    found = _override(_of_module(config_arg, module, arg), overrides)
    return _checked(*found, _written_at(module, overrides))


def apply_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """Returns a config with overrides applied, checked; UserError with one line per mistake."""
    return _checked(*_override(config, overrides))


def default_name(config_arg: str) -> str:
    """Returns the name of a config that has none: ``quickstart`` for ``quickstart.py``, ``c4-140M`` for ``c4:140M``."""
    file, _, arg = config_arg.partition(":")
    return f"{Path(file).stem}-{arg}" if arg else Path(file).stem


def load_sweep(
    config_arg: str, overrides: Sequence[str] = ()
) -> list[tuple[dict[str, Any], Config]]:
    """The config, and that of every entry of the file's ``sweep()``, if it has one.

    An entry is a dict of fields and their values, such as ``{"model.size": "10M", "train.epochs": 2}`` (or nested,
    ``{"model": {"size": "10M"}}``), set after the overrides of the command line.

    Returns:
      (what the entry sets, the config), first the config itself, for which nothing is set.

    Raises:
      UserError: as of ``parse``, and with one line, that names the entry, for every mistake in any of them.
    """
    module, arg = _module(config_arg)
    config, bad, unsure = _override(_of_module(config_arg, module, arg), overrides)
    line_of = _written_at(module, overrides)
    found: list[tuple[dict[str, Any], Config]] = [({}, _checked(config, bad, unsure, line_of))]
    if not hasattr(module, "sweep"):
        return found
    wrong: list[str] = []
    for number, entry in enumerate(_call(config_arg, module, "sweep", arg), 1):
        label = f"--config={config_arg}: sweep() entry {number}: "
        if not isinstance(entry, Mapping):
            wrong.append(f"{label}{entry!r}: must be a dict of fields and values")
            continue
        flat = dict(_flat(entry))
        changed, mistakes = _entry(config, flat)
        if not mistakes:
            changed = resolve(changed)
            mistakes = problems(changed)
        wrong += [label + line for line in mistakes]
        found.append((flat, changed))
    if wrong:
        raise UserError("\n".join(wrong))
    return found


def load(config_arg: str) -> Config:
    """What ``get_config`` of ``FILE.py[:ARG]`` returns; UserError if there is no such file, function or argument."""
    return _of_module(config_arg, *_module(config_arg))


def _checked(
    config: Config,
    bad: list[str],
    unsure: set[str],
    line_of: Callable[[str], str] = lambda field: "",
) -> Config:
    """Returns the resolved config; raises UserError with the mistakes so far and the rules that the config breaks."""
    config = resolve(config)
    broken = [line for line in problems(config) if not any(name in line for name in unsure)]
    bad = bad + [line + line_of(line.partition("=")[0]) for line in broken]
    if bad:
        raise UserError("\n".join(bad))
    return config


def _written_at(module: ModuleType, overrides: Sequence[str]) -> Callable[[str], str]:
    """Returns a function that gives `` (line 12 of FILE.py)`` for a field that exactly one line sets, else ""."""
    assert module.__file__ is not None
    path = Path(module.__file__)
    overridden = {name for name, _ in _flags(overrides)}
    lines: dict[tuple[str, str], list[int]] = {}
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Call):
            call = getattr(
                node.func, "attr", getattr(node.func, "id", "")
            )  # such as Train, replace
            for keyword in node.keywords:
                place = call.lower(), keyword.arg or ""
                lines.setdefault(place, []).append(keyword.value.lineno)

    def line_of(field: str) -> str:
        section, _, leaf = field.rpartition(".")
        found = lines.get((section or "config", leaf)) or lines.get(("replace", leaf), [])
        is_known = len(found) == 1 and field not in overridden
        return f" (line {found[0]} of {path.name})" if is_known else ""

    return line_of


def _override(config: Config, overrides: Sequence[str]) -> tuple[Config, list[str], set[str]]:
    """(config with overrides, mistakes, fields whose value is not the one that was meant)."""
    kinds = dict(_fields(Config))
    bad: list[str] = []
    unsure: set[str] = set()
    # A size first: layers and width that are said beside it, in whatever order, are meant to differ from it.
    for name, values in sorted(_flags(overrides), key=lambda flag: flag[0] != "model.size"):
        section, _, leaf_name = name.rpartition(".")
        positive = f"{section}.{leaf_name.removeprefix('no_')}"
        if kinds.get(positive) is bool and not values:  # --config.attack.[no-]leave-one-out
            config = _set(config, positive.split("."), positive == name)
            continue
        if name not in kinds:
            near = _near(name)
            hint = (
                f"did you mean --config.{near[0]}?" if near else "`lm-mia fields` lists all fields"
            )
            unsure |= {*near}
            bad.append(f"--config.{name}: no such field; {hint}")
            continue
        said = " ".join(values)
        if kinds[name] is bool:
            values = [value.capitalize() for value in values]
        if typing.get_origin(kinds[name]) is tuple:
            values = [part.strip() for value in values for part in value.split(",")]
            values = [] if values == [""] else values  # --config.score.at_steps= empties it
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
        config = _put(config, name, value)
    return config, bad, unsure


def _entry(config: Config, entry: Mapping[str, Any]) -> tuple[Config, list[str]]:
    """(config with an entry of a sweep, mistakes in it)."""
    kinds, bad = dict(_fields(Config)), []
    for name, value in sorted(entry.items(), key=lambda item: item[0] != "model.size"):
        value = tuple(value) if isinstance(value, list) else value
        if name not in kinds:
            near = _near(name)
            bad.append(f"{name}: no such field" + (f"; did you mean {near[0]}?" if near else ""))
        elif kinds[name] is float and type(value) is int:
            config = _put(config, name, float(value))
        elif not _fits(value, kinds[name]):
            bad.append(f"{name}={value!r}: must be {_describe(kinds[name])}")
        else:
            config = _put(config, name, value)
    return config, bad


def _put(config: Config, name: str, value: Any) -> Config:
    """The config with a field set; a size that is asked for is not overruled by numbers that came before it."""
    if name == "model.size" and value != "custom":
        model = dataclasses.replace(config.model, size=value, layers=0, width=0, heads=0)
        return dataclasses.replace(config, model=model)
    return _set(config, name.split("."), value)


def _near(name: str) -> list[str]:
    """Returns the field that was probably meant, if any: one whose last part is equal or else spelt similarly."""
    fields: dict[str, list[str]] = {}
    for field, _ in _fields(Config):
        fields.setdefault(field.rpartition(".")[2], []).append(field)
    section, _, leaf = name.rpartition(".")
    near = [leaf] if leaf in fields else difflib.get_close_matches(leaf, fields, n=1, cutoff=0.65)
    found = [field for leaf in near for field in fields[leaf]]
    return sorted(found, key=lambda field: not field.startswith(f"{section}."))[:1]


def _flat(entry: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in entry.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def included_configs() -> Path:
    """Returns the folder of the included configs: ``lm_mia/configs`` in an installation, ``configs`` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def is_config_name(name: str) -> bool:
    """Whether the value of ``--config`` is a name such as ``quickstart``, not a path; no such config need exist."""
    return re.fullmatch(r"\w+", name) is not None


@contextlib.contextmanager
def _blamed(config_arg: str, path: Path) -> Iterator[None]:
    """Turns any error of a config file in the block into a one-line UserError that gives the line number."""
    try:
        yield
    except UserError:
        raise
    except SystemExit as error:
        message = f"the file called exit({error.code})"
        raise UserError(f"--config={config_arg}: {_line_of(error, path)}{message}") from error
    except Exception as error:
        reason = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
        message = f"{type(error).__name__}: {reason}"
        raise UserError(f"--config={config_arg}: {_line_of(error, path)}{message}") from error


def _line_of(error: BaseException, path: Path) -> str:
    """Returns ``line 12: ``: where the error occurred in the config file, or in another file of its folder."""
    if isinstance(error, SyntaxError) and error.filename:
        places = [(error.filename, error.lineno)]
    else:
        places = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    folder = path.absolute().parent
    for file, line in reversed(places):
        if Path(file).absolute().parent == folder:
            beside = "" if Path(file).name == path.name else f"{Path(file).name}, "
            return f"{beside}line {line}: "
    return ""


def _module(config_arg: str) -> tuple[ModuleType, str]:
    """(the file, run as a module; ARG)."""
    name, _, arg = config_arg.partition(":")
    known = {p.stem: p for p in included_configs().glob("*.py")}
    path = known.get(name, Path(name))
    if path.suffix != ".py" or not path.is_file():
        rule, hint = "no such Python file", "try --config=quickstart, which is included in lm_mia"
        if is_config_name(name):
            begun = sorted(k for k in known if k.startswith(name))
            near = begun or difflib.get_close_matches(name, known, n=1, cutoff=0.7)
            rule = "lm_mia includes no config of this name"
            hint = (
                f"did you mean {near[0]}?"
                if near
                else "try --config=quickstart, or a path such as mine.py"
            )
        raise UserError(f"--config={config_arg}: {rule}; {hint}")
    spec = importlib.util.spec_from_file_location(f"lm_mia_config_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # a config may import those beside it, and those that are included
    for folder in map(str, (path.parent.absolute(), included_configs())):
        if folder not in sys.path:
            sys.path.append(folder)
    with _blamed(config_arg, path):
        spec.loader.exec_module(module)
    return module, arg


def _call(config_arg: str, module: ModuleType, name: str, arg: str) -> Any:
    """What a function of the file returns, given ARG; as a list if it is the sweep, which need not take ARG."""
    function = getattr(module, name, None)
    if function is None:
        raise UserError(f"--config={config_arg}: the file defines no {name}()")
    assert module.__file__ is not None
    with _blamed(config_arg, Path(module.__file__)):
        takes_arg = bool(inspect.signature(function).parameters)
        if name == "sweep":
            found: Any = function(arg) if arg and takes_arg else function()
            if found is None:
                raise UserError(
                    f"--config={config_arg}: sweep() must yield dicts; it returned None"
                )
            return list(found)
        if arg and not takes_arg:
            raise UserError(f"--config={config_arg}: {name}() takes no argument; drop ':{arg}'")
        return function(arg) if arg else function()


def _of_module(config_arg: str, module: ModuleType, arg: str) -> Config:
    """The config that the file gives, its types checked."""
    config = _call(config_arg, module, "get_config", arg)
    if not isinstance(config, Config):
        raise UserError(
            f"--config={config_arg}: get_config() returned {type(config).__name__}, not a Config"
        )
    for name, kind in _fields(Config):
        if kind is float and type(value := _get(config, name)) is int:
            config = _set(config, name.split("."), float(value))  # 0 and 0.0 are one recipe
    if wrong := type_errors(config):
        line_of = _written_at(module, ())
        lines = [f"--config={config_arg}: {line}{line_of(name)}" for name, line in wrong.items()]
        raise UserError("\n".join(lines))
    return config


def type_errors(config: Config) -> dict[str, str]:
    """Returns a line for each field whose value is of a wrong type, by the names of the fields."""
    values = {name: _get(config, name) for name, _ in _fields(Config)}
    return {
        name: f"{name}={values[name]!r}: must be {_describe(kind)}"
        for name, kind in _fields(Config)
        if not _fits(values[name], kind)
    }


def _get(config: Config, name: str) -> Any:
    """The value of a field such as model.layers; None if its section is none of ours."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


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
    names = [name for name, _ in flags]
    if twice := sorted({f"--config.{name}" for name in names if names.count(name) > 1}):
        raise UserError("\n".join(f"{flag}: given more than once; give it once" for flag in twice))
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
        if of is int:
            return "a list of whole numbers such as 100,200"
        return ("a list of" if rest == [...] else "two") + " numbers such as 0.01,0.05"
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


class Parser(argparse.ArgumentParser):
    """Parses the flags of a command; every mistake is a one-line UserError."""

    def __init__(self, prog: str, elsewhere: Mapping[str, str] | None = None, **settings: Any):
        """Args: prog: the command. elsewhere: flags of other commands -> the command. settings: of `ArgumentParser`."""
        kind = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, allow_abbrev=False, formatter_class=kind, **settings)
        self._elsewhere = elsewhere or {}

    def parse_flags(
        self, argv: Sequence[str], wrong: list[str]
    ) -> tuple[argparse.Namespace, list[str]]:
        """Returns (the command's own flags, the overrides ``--config.section.field=value``).

        Args:
          argv: the arguments.
          wrong: a line is added for each flag that is repeated or unknown; the latter suggests the nearest known flag.

        Raises:
          UserError: if a flag lacks its value, or has a value that it does not take.
        """
        own: list[str] = []
        overrides: list[str] = []
        words = own
        for word in argv:
            if word.startswith("-") and not _is_number(word):
                words = overrides if word.startswith("--config.") else own
            words.append(word)
        names = [w.partition("=")[0].replace("_", "-") for w in own if w.startswith("--")]
        wrong += [
            f"{name}: given more than once; give it once"
            for name in dict.fromkeys(names)
            if names.count(name) > 1
        ]
        known, unknown = self.parse_known_args(own)
        for word in unknown:
            name = word.partition("=")[0].replace("_", "-")
            if not word.startswith("--"):
                wrong.append(f"{word}: unknown argument; see {self.prog} --help")
            elif name in self._elsewhere:
                wrong.append(f"{name}: works only with {self._elsewhere[name]}; leave it out")
            else:
                near = difflib.get_close_matches(name, self._option_string_actions, n=1)
                hint = f"did you mean {near[0]}?" if near else f"see {self.prog} --help"
                wrong.append(f"{name}: there is no such flag; {hint}")
        return known, overrides

    def error(self, message: str) -> NoReturn:
        """Raises a UserError instead of printing the usage."""
        raise UserError(f"{self.prog}: {message}; see {self.prog} --help")


def _is_number(word: str) -> bool:
    """Whether an argument is a number, such as -3, rather than a flag."""
    try:
        float(word)
    except ValueError:
        return False
    return True
