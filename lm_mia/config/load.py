"""Loads a config from a Python file, applies overrides from the command line, and reports all errors together.

A config file defines ``get_config()``; ``FILE.py:ARG`` calls ``get_config("ARG")``. A name without a path, such as
``quickstart`` or ``strongmia:fig05,cpu``, selects a config that is included in lm_mia. Every field can be overridden
as ``--config.section.field=value``. A file may also define ``sweep()``, which yields dicts of overrides.
"""

import argparse
import ast
import contextlib
import dataclasses
import difflib
import functools
import hashlib
import importlib.util
import inspect
import io
import itertools
import re
import sys
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, get_type_hints

import tyro

from lm_mia.config import fields, hf_checkpoint, listed_figures
from lm_mia.config.schema import MODEL_SIZES, SOURCES, Config, Model, Tokenizer
from lm_mia.config.validate import check
from lm_mia.errors import UserError


def load_config(config_arg: str, overrides: Sequence[str] = ()) -> Config:
    """Returns the config of a file with overrides applied, checked and resolved.

    Args:
      config_arg: ``FILE.py``, or the name of an included config; either may be followed by ``:ARG``.
      overrides: ``--config.path.to.field=value``, or the flag and its values as separate items.

    Raises:
      UserError: with one line for each unknown field, value of a wrong type or broken rule.
    """
    module, arg = _load_module(config_arg)
    config = _call_get_config(config_arg, module, arg)
    return _checked(_override(config, overrides), _line_finder(module, overrides))


def load_sweep(
    config_arg: str, overrides: Sequence[str] = ()
) -> list[tuple[dict[str, Any], Config]]:
    """Returns the config of a file, and that of each entry of the file's ``sweep()`` if it has one.

    An entry is a dict of fields and values, such as ``{"model.size": "10M", "train.epochs": 2}`` (or nested,
    ``{"model": {"size": "10M"}}``), which are set after the overrides of the command line. An entry is a recipe even if
    ``has_recipe`` leaves out the config itself.

    Returns:
      (overrides of the entry, config) for the config itself, which has no overrides, and for each entry.

    Raises:
      UserError: as `load_config`, and with one line, which names the entry, for each mistake in any of them.
    """
    module, arg = _load_module(config_arg)
    overridden = _override(_call_get_config(config_arg, module, arg), overrides)
    config = overridden.config
    sweep: list[tuple[dict[str, Any], Config]] = [
        ({}, _checked(overridden, _line_finder(module, overrides)))
    ]
    if not hasattr(module, "sweep"):
        return sweep
    mistakes: list[str] = []
    for number, entry in enumerate(_call_sweep(config_arg, module, arg), 1):
        label = f"--config={config_arg}: sweep() entry {number}: "
        if not isinstance(entry, Mapping):
            mistakes.append(f"{label}{entry!r}: must be a dict of fields and values")
            continue
        values = dict(_flatten(entry))
        changed, errors, doubtful = _set_fields(config, values)
        if "has_recipe" not in values:  # that of the config is about the config alone
            changed = dataclasses.replace(changed, has_recipe=True)
        changed, broken = check(changed, doubtful)
        mistakes += [label + error for error in (*errors, *broken)]
        sweep.append((values, changed))
    if mistakes:
        raise UserError("\n".join(mistakes))
    return sweep


def apply_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """Returns a config with overrides applied, checked and resolved; raises UserError with one line per mistake."""
    return _checked(_override(config, overrides))


@dataclasses.dataclass(frozen=True)
class FigureChanges:
    """What ``--config.figures=NAME,-OTHER`` requests."""

    shown: tuple[str, ...] | None
    """The figures to show; None if the flag is not given, or only removes figures."""
    removed: tuple[str, ...]
    """The names after a minus, which are removed from those that the config or the workdir lists."""


def figure_changes(overrides: Sequence[str]) -> FigureChanges:
    """Returns the figures that a command shows and removes by its flag ``--config.figures``."""
    for name, values in _split_flags(overrides):
        if name == "figures":
            names = [part.strip() for value in values for part in value.split(",")]
            shown = tuple(name for name in names if not name.startswith("-") and names != [""])
            removed = tuple(name.removeprefix("-") for name in names if name.startswith("-"))
            return FigureChanges(shown if shown or not removed else None, removed)
    return FigureChanges(None, ())


def default_name(config_arg: str) -> str:
    """Returns the name of a config that has none: ``quickstart`` for ``quickstart.py``, ``c4-140M`` for ``c4:140M``."""
    file, _, arg = config_arg.partition(":")
    return f"{Path(file).stem}-{arg}" if arg else Path(file).stem


def included_configs() -> Path:
    """Returns the folder of the included configs: ``lm_mia/configs`` in an installation, ``configs`` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def namesake(config_arg: str) -> str:
    """Returns a line about which config is taken if an included one and a file of the current folder have its name.

    A name without .py is that of the included config, and NAME.py is the file. Otherwise, the line is empty.
    """
    name, colon, arg = config_arg.partition(":")
    file = Path(f"{name.removesuffix('.py')}.py")
    included = included_configs() / file
    if file.name != str(file) or "/" in name or not (file.is_file() and included.is_file()):
        return ""
    if file.samefile(included):
        return ""
    if name == file.name:
        other = f"that which lm_mia includes is --config={file.stem}{colon}{arg}"
        return f"--config={config_arg}: takes the file of this folder; {other}"
    other = f"the file {file} of this folder is --config=./{file}{colon}{arg}"
    return f"--config={config_arg}: takes the config that lm_mia includes; {other}"


def is_config_name(name: str) -> bool:
    """Returns whether a value of ``--config`` is a name such as ``quickstart`` rather than a path.

    A config of that name need not exist.
    """
    return re.fullmatch(r"\w+", name) is not None


def field_types() -> Mapping[str, Any]:
    """Returns the annotations of all fields of a config, by names such as ``model.layers``, in their order."""
    return fields.types_of(Config)


def field_docs(section: type) -> dict[str, str]:
    """Returns the docstring of each field of a section of the config as one line: name -> docstring.

    Args:
      section: a dataclass, such as `lm_mia.config.Model`.
    """
    [definition] = ast.parse(inspect.getsource(section)).body
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for node, following in itertools.pairwise(definition.body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            match following:
                case ast.Expr(ast.Constant(str() as text)):
                    docs[node.target.id] = " ".join(text.split())
    return docs


@dataclasses.dataclass(frozen=True)
class _Overridden:
    """A config with overrides applied."""

    config: Config
    mistakes: list[str]
    """One line per override that could not be applied."""
    doubtful: set[str]
    """Fields that these overrides were probably meant to set; rules about them are not checked."""
    given: set[str]
    """The fields that the overrides set."""


def _checked(overridden: _Overridden, line_of: Callable[[str], str] = lambda field: "") -> Config:
    """Returns the resolved config; raises UserError with all mistakes and broken rules.

    Args:
      overridden: the config.
      line_of: returns the place of a field in the config file, which is appended to a message about it.
    """
    config, broken = check(overridden.config, overridden.doubtful, overridden.given)
    messages = [
        *overridden.mistakes,
        *(message + line_of(message.partition("=")[0]) for message in broken),
    ]
    if messages:
        raise UserError("\n".join(messages))
    return config


def _line_finder(module: ModuleType, overrides: Sequence[str]) -> Callable[[str], str]:
    """Returns a function that gives `` (line 12 of FILE.py)`` for a field that exactly one line sets, else ""."""
    assert module.__file__ is not None
    path = Path(module.__file__)
    overridden = {name for name, _ in _split_flags(overrides)}

    @functools.cache  # read only if there is a mistake
    def lines_of_file() -> dict[tuple[str, str], list[int]]:
        lines: dict[tuple[str, str], list[int]] = {}
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call):
                # the name of the called function, such as Train or replace
                function = getattr(node.func, "attr", getattr(node.func, "id", ""))
                for keyword in node.keywords:
                    key = function.lower(), keyword.arg or ""
                    lines.setdefault(key, []).append(keyword.value.lineno)
        return lines

    def line_of(field: str) -> str:
        lines = lines_of_file()
        section, _, leaf = field.rpartition(".")
        candidates = lines.get((section or "config", leaf)) or lines.get(("replace", leaf), [])
        is_known = len(candidates) == 1 and field not in overridden
        return f" (line {candidates[0]} of {path.name})" if is_known else ""

    return line_of


def _override(config: Config, overrides: Sequence[str]) -> _Overridden:
    types = field_types()
    mistakes: list[str] = []
    doubtful: set[str] = set()
    figures = figure_changes(overrides)
    if figures.removed:
        shown = config.figures if figures.shown is None else figures.shown
        shown = tuple(listed_figures.without(shown, figures.removed))
        config = dataclasses.replace(config, figures=shown)
    for name, values in sorted(_split_flags(overrides), key=lambda flag: flag[0] not in _FIRST):
        section, _, leaf = name.rpartition(".")
        positive = f"{section}.{leaf.removeprefix('no_')}".removeprefix(".")
        if (
            fields.without_marks(types.get(positive)) is bool and not values
        ):  # --config.attack.[no-]leave-one-out
            config = fields.replaced(config, positive, positive == name)
            continue
        if name == "figures" and figures.removed:
            continue
        if name not in types:
            similar = _similar_field(name)
            hint = (
                f"did you mean --config.{similar}?"
                if similar
                else "`lm-mia fields` lists all fields"
            )
            doubtful |= {similar} if similar else set()
            mistakes.append(f"--config.{name}: no such field; {hint}")
            continue
        try:
            value = _parse(values, types[name])
        except ValueError:
            text = fields.shown(" ".join(values))
            remedy = fields.remedy(fields.get(Config(), name))
            mistakes.append(f"{name}={text}: must be {fields.describe(types[name])}{remedy}")
            doubtful.add(name)
            continue
        config = _set_field(config, name, value)
    given = {name for name, _ in _split_flags(overrides)} - doubtful
    return _Overridden(config, mistakes, doubtful, given)


def _parse(values: Sequence[str], kind: Any) -> Any:
    """Returns the value of a field from the words of a flag; raises ValueError if they are of another type."""
    if fields.without_marks(kind) is bool:
        values = [value.capitalize() for value in values]
    if typing.get_origin(fields.without_marks(kind)) is tuple:
        values = [part.strip() for value in values for part in value.split(",")]
        values = [] if values == [""] else values  # --config.score.at_steps= empties it
    try:
        with (
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            return tyro.cli(kind, args=values)
    except SystemExit:
        raise ValueError from None


_SECTIONS = {name.partition(".")[0] for name in fields.types_of(Config) if "." in name}

_FIRST = ("model.size", "model.init")
"""Fields that are set before all others: layers and width that are set together with a size, in any order, replace
those of the size."""


def _set_fields(config: Config, values: Mapping[str, Any]) -> tuple[Config, list[str], set[str]]:
    """Returns (the config with the values of a sweep entry, its unknown fields, the fields that they probably mean)."""
    types, mistakes, doubtful = field_types(), [], set()
    for name, value in sorted(values.items(), key=lambda item: item[0] not in _FIRST):
        if name not in types:
            similar = _similar_field(name)
            doubtful |= {similar} if similar else set()
            hint = f"; did you mean {similar}?" if similar else "; `lm-mia fields` lists all fields"
            mistakes.append(f"{name}: no such field{hint}")
            continue
        value = fields.converted(types[name], tuple(value) if isinstance(value, list) else value)
        config = _set_field(config, name, value)
    return config, mistakes, doubtful


def _set_field(config: Config, name: str, value: Any) -> Config:
    """Returns the config with a field set; what `resolve` filled in for another value is reset."""
    if name == "model.size" and str(value) in MODEL_SIZES:
        model = dataclasses.replace(
            config.model, size=value, layers="auto", width="auto", heads="auto"
        )
        return dataclasses.replace(config, model=model)
    if name == "model.init" and hf_checkpoint.is_checkpoint(str(value)):
        # What the config file says about another model and vocabulary would contradict the checkpoint.
        model = Model(dtype=config.model.dtype, init=value)
        return dataclasses.replace(config, model=model, tokenizer=Tokenizer())
    if name in SOURCES:
        config = fields.replaced(config, SOURCES[name], "")
    return fields.replaced(config, name, value)


def _similar_field(name: str) -> str | None:
    """Returns the field that was probably meant: one whose last part is equal or else spelled similarly."""
    by_leaf: dict[str, list[str]] = {}
    for field in field_types():
        by_leaf.setdefault(field.rpartition(".")[2], []).append(field)
    section, _, leaf = name.rpartition(".")
    leaves = [leaf] if leaf in by_leaf else difflib.get_close_matches(leaf, by_leaf, 1, cutoff=0.65)
    candidates = [field for leaf in leaves for field in by_leaf[leaf]]
    return min(candidates, key=lambda field: not field.startswith(f"{section}."), default=None)


def _flatten(entry: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in entry.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@contextlib.contextmanager
def _one_line_errors(config_arg: str, path: Path) -> Iterator[None]:
    """Turns any error that a config file raises in the block into a one-line UserError with its line number.

    In the block, the file can import the files of its folder, and the included configs.
    """
    try:
        with _import_folders(path.parent.absolute(), included_configs()):
            yield
    except UserError:
        raise
    except SystemExit as error:
        message = f"the file called exit({error.code})"
        raise UserError(f"--config={config_arg}: {_location(error, path)}{message}") from error
    except dataclasses.FrozenInstanceError as error:
        # The message of Python is "cannot assign to field 'layers'".
        field = str(error).rpartition(" ")[2].strip("'")
        raise UserError(
            f"--config={config_arg}: {_location(error, path)}{field}: a config cannot be changed; return a changed "
            "copy, such as dataclasses.replace(config, model=dataclasses.replace(config.model, layers=3))"
        ) from error
    except Exception as error:
        reason = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
        message = _unknown_keyword(error) or f"{type(error).__name__}: {reason}"
        raise UserError(f"--config={config_arg}: {_location(error, path)}{message}") from error


@contextlib.contextmanager
def _import_folders(own: Path, included: Path) -> Iterator[None]:
    """Lets imports in the block search a folder first, then that of the included configs, then the usual ones.

    A name such as strongmia means the included config in one block, and a file of the user in another.
    """
    path_before, before = list(sys.path), dict[str, ModuleType]()
    sys.path[:0] = [str(own), str(included)]
    files = {file.stem: file for file in included.glob("*.py")}
    for name, file in files.items():
        if name in sys.modules:
            before[name] = sys.modules.pop(name)
        path = own / file.name if (own / file.name).is_file() else file
        if str(path) in _imported:
            sys.modules[name] = _imported[str(path)]
    try:
        yield
    finally:
        sys.path[:] = path_before
        for name in files:
            module = sys.modules.pop(name, None)
            if module is not None and module.__file__:
                _imported[module.__file__] = module
        sys.modules.update(before)


_imported: dict[str, ModuleType] = {}
"""The included configs, and files of their names, that configs have imported, by path."""


def _unknown_keyword(error: Exception) -> str:
    """Returns a message about a keyword that a class of the config does not have, or "" for other errors."""
    sections = {kind.__name__: kind for kind in (Config, *get_type_hints(Config).values())}
    match = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    if not match or not dataclasses.is_dataclass(section := sections.get(match[1])):
        return ""
    names = [field.name for field in dataclasses.fields(section)]
    similar = difflib.get_close_matches(match[2], names, 1)
    hint = f"did you mean {similar[0]}?" if similar else "`lm-mia fields` lists all fields"
    return f"{match[1]}({match[2]}=...): no such field; {hint}"


def _location(error: BaseException, path: Path) -> str:
    """Returns ``line 12: `` for an error in the config file, ``FILE.py, line 12: `` for another file of its folder."""
    if isinstance(error, SyntaxError) and error.filename:
        frames = [(error.filename, error.lineno)]
    else:
        frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    # Python generates the methods of dataclasses from a text, whose file name is <string>.
    frames = [(file, line) for file, line in frames if not file.startswith("<")]
    folder = path.absolute().parent
    for file, line in reversed(frames):
        if Path(file).absolute().parent == folder:
            name = "" if Path(file).name == path.name else f"{Path(file).name}, "
            return f"{name}line {line}: "
    return ""


def _load_module(config_arg: str) -> tuple[ModuleType, str]:
    """Returns (the config file, imported as a module, ARG)."""
    name, _, arg = config_arg.partition(":")
    included = {path.stem: path for path in included_configs().glob("*.py")}
    path = included.get(name, Path(name))
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"--config={config_arg}: {_no_such_config(name, included)}")
    # Files of one name in several folders are different modules.
    digest = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(f"lm_mia_config_{path.stem}_{digest}", path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and type hints of the file look their module up here.
    sys.modules[spec.name] = module
    with _one_line_errors(config_arg, path):
        # The loader of the module would use stale bytecode of a file that was edited twice within a second.
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    return module, arg


def _no_such_config(name: str, included: Mapping[str, Path]) -> str:
    """Returns the rule and the remedy for a value of ``--config`` that is neither a file nor an included config."""
    if not is_config_name(name):
        first, comma, arg = name.partition(",")
        if comma and first in included:
            if _takes_arg(included[first]):
                return f"an argument follows a colon; use --config={first}:{arg}"
            return f"{first} takes no argument; use --config={first}"
        path = Path(name)
        if path.is_dir():
            return "is a folder; add the name of a Python file in it"
        if path.is_file():
            return "the name of a config file must end in .py; rename it"
        if path.suffix == ".py" and path.stem in included and path.name == name:
            return f"no such Python file in this folder; did you mean {path.stem}, which lm_mia includes?"
        return "no such Python file (a path ends at the first colon); try --config=quickstart, which lm_mia includes"
    if Path(f"{name}.py").is_file():
        return f"lm_mia includes no config of this name; did you mean {name}.py?"
    completions = sorted(other for other in included if other.startswith(name))
    similar = completions or difflib.get_close_matches(name, included, 1, cutoff=0.7)
    hint = "try --config=quickstart, or a path such as my_config.py"
    if similar:
        hint = f"did you mean {similar[0]}?"
    return f"lm_mia includes no config of this name; {hint}"


def _takes_arg(path: Path) -> bool:
    """Returns whether the ``get_config`` of a config file takes an argument, without running the file."""
    return any(
        bool(node.args.args)
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.FunctionDef) and node.name == "get_config"
    )


def _call_get_config(config_arg: str, module: ModuleType, arg: str) -> Config:
    """Returns the Config that the file's ``get_config`` returns; raises UserError if a section is no section."""
    if not hasattr(module, "get_config"):
        raise UserError(f"--config={config_arg}: the file defines no get_config()")
    assert module.__file__ is not None
    with _one_line_errors(config_arg, Path(module.__file__)):
        takes_arg = bool(inspect.signature(module.get_config).parameters)
        if arg and not takes_arg:
            raise UserError(
                f"--config={config_arg}: get_config() takes no argument; remove ':{arg}'"
            )
        config = module.get_config(arg) if arg else module.get_config()
    if type(config) is not Config:
        raise UserError(
            f"--config={config_arg}: get_config() returned {type(config).__name__}, not a Config"
        )
    wrong = fields.mistakes(config).items()
    if sections := [(name, line) for name, line in wrong if name in _SECTIONS]:
        line_of = _line_finder(module, ())
        lines = [f"--config={config_arg}: {line}{line_of(name)}" for name, line in sections]
        raise UserError("\n".join(lines))
    for name, kind in field_types().items():
        value = fields.get(config, name)
        if value is not (changed := fields.converted(kind, value)):
            config = fields.replaced(config, name, changed)
    return config


def _call_sweep(config_arg: str, module: ModuleType, arg: str) -> list[Any]:
    """Returns the entries of the file's ``sweep``, which is given ARG if it takes an argument."""
    assert module.__file__ is not None
    with _one_line_errors(config_arg, Path(module.__file__)):
        takes_arg = bool(inspect.signature(module.sweep).parameters)
        entries: Any = module.sweep(arg) if arg and takes_arg else module.sweep()
        if entries is None:
            raise UserError(f"--config={config_arg}: sweep() must yield dicts; it returned None")
        return list(entries)


def _split_flags(overrides: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Returns (field, values) of each flag.

    Raises:
      UserError: if a word precedes all flags, or a flag is repeated.
    """
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
    if repeated := sorted({f"--config.{name}" for name in names if names.count(name) > 1}):
        raise UserError(
            "\n".join(f"{flag}: given more than once; give it once" for flag in repeated)
        )
    return flags


def check_verb(prog: str, word: str, verbs: Sequence[str]) -> None:
    """Raises UserError if the first argument of a command is neither a verb nor a flag such as ``--help``.

    Args:
      prog: the command.
      word: its first argument.
      verbs: the verbs of the command.
    """
    if word in verbs or word in ("-h", "--help", "--version"):
        return
    if word.startswith("-"):
        raise UserError(f"{prog}: a verb must come first: {', '.join(verbs)}; see {prog} --help")
    similar = difflib.get_close_matches(word, verbs, 1)
    hint = f"did you mean `{prog} {similar[0]}`?" if similar else f"see {prog} --help"
    raise UserError(f"{word}: {prog} has no such verb; {hint}")


class Parser(argparse.ArgumentParser):
    """Parses the flags of a command; every mistake becomes a one-line UserError."""

    def __init__(
        self, prog: str, elsewhere: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        """Creates a parser without flags.

        Args:
          prog: the command.
          elsewhere: flags of other commands -> these commands, for error messages.
          settings: further arguments of `argparse.ArgumentParser`.
        """
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, allow_abbrev=False, formatter_class=formatter, **settings)
        self._elsewhere = elsewhere or {}

    def add_fields(self, settings: type) -> None:
        """Adds a flag for each field of a dataclass: its docstring is the help, and its default that of the flag.

        Lists are separated by commas. Choices of `Literal` are checked by whoever reads the settings.

        Args:
          settings: the dataclass; a field with ``metadata={"is_flag": False}`` has no flag.
        """
        docs, kinds = field_docs(settings), typing.get_type_hints(settings)
        for field in dataclasses.fields(settings):
            if not field.metadata.get("is_flag", True):
                continue
            flag, kind, text = (
                f"--{field.name.replace('_', '-')}",
                kinds[field.name],
                docs[field.name],
            )
            names = dict.fromkeys([flag, f"--{field.name}"])
            text = text.replace("%", "%%")
            if kind is bool:
                self.add_argument(*names, action="store_true", help=text)
                continue
            if typing.get_origin(kind) is tuple:
                [item, _] = typing.get_args(kind)
                parse, metavar = functools.partial(_parse_list, item), "A,B,..."
                shown = ",".join(str(value) for value in field.default)  # pyright: ignore
            else:
                parse = kind if kind in (int, float) else str
                metavar, shown = {int: "N", float: "NUMBER"}.get(kind, "NAME"), field.default
            text += f" (default: {shown})" if shown not in ("", 0) else ""
            self.add_argument(*names, type=parse, default=field.default, metavar=metavar, help=text)

    def parse_flags(
        self, argv: Sequence[str], mistakes: list[str]
    ) -> tuple[argparse.Namespace, list[str]]:
        """Returns (the command's own flags, the overrides ``--config.section.field=value``).

        Args:
          argv: the arguments.
          mistakes: a line is added for each flag that is repeated or unknown; the latter suggests a similar flag.

        Raises:
          UserError: if a flag lacks its value or has an empty one, or has a value that it does not take.
        """
        own: list[str] = []
        overrides: list[str] = []
        words = own
        for word in argv:
            if word.startswith("-") and not _is_number(word):
                words = overrides if word.startswith("--config.") else own
            words.append(word)
        names = [w.partition("=")[0].replace("_", "-") for w in own if w.startswith("--")]
        mistakes += [
            f"{name}: given more than once; give it once"
            for name in dict.fromkeys(names)
            if names.count(name) > 1
        ]
        empty = [
            f"{name}=: empty; give a value, or leave it out"
            for name, sign, value in (word.partition("=") for word in _joined(own))
            if sign and not value and self._takes_value(name)
        ]
        if empty:  # for example --members=$MEMBERS if MEMBERS is not set
            raise UserError("\n".join(empty))
        options, unknown = self.parse_known_args(own)
        for word in unknown:
            name = word.partition("=")[0].replace("_", "-")
            known = [*self._option_string_actions]
            # --gpus is meant to be --gpus-per-node, although few of its letters are.
            longer = [flag for flag in known if flag.startswith(f"{name}-")]
            if not word.startswith("--"):
                mistakes.append(f"{word}: unknown argument; see {self.prog} --help")
            elif name in self._elsewhere and not longer:
                mistakes.append(f"{name}: works only with {self._elsewhere[name]}; leave it out")
            else:
                similar = longer or difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {similar[0]}?" if similar else f"see {self.prog} --help"
                mistakes.append(f"{name}: unknown flag; {hint}")
        return options, overrides

    def _takes_value(self, name: str) -> bool:
        action = self._option_string_actions.get(name)
        return action is not None and action.nargs != 0

    def error(self, message: str) -> NoReturn:
        """Raises a UserError instead of printing the usage."""
        raise UserError(f"{self.prog}: {message}; see {self.prog} --help")


def _joined(words: Sequence[str]) -> list[str]:
    """Returns arguments, in which each flag that is followed by an empty argument is written as FLAG=."""
    return [
        f"{word}=" if following == "" and word.startswith("--") and "=" not in word else word
        for word, following in itertools.zip_longest(words, words[1:])
    ]


def _parse_list(item: type, text: str) -> tuple[Any, ...]:
    try:
        return tuple(item(word.strip()) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of numbers such as 0.01,0.1"
        ) from None


def _is_number(word: str) -> bool:
    """Returns whether an argument is a number, such as -3, rather than a flag."""
    try:
        float(word)
    except ValueError:
        return False
    return True
