"""Code of users: attacks, evaluations and studies in their own files, and what stands for code in keys of results."""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from lm_mia.errors import UserError, disk_problem, file_problem

_SUFFIX = ".py:"
_OWN_PACKAGES = ("lm_mia", "analysis")


class UserCodeError(UserError):
    """An evaluation or a study of the user is wrong or fails. All other results are computed before it is reported."""


def is_in_file(name: str) -> bool:
    """Returns whether a name is that of something in a Python file, ``FILE.py:NAME``."""
    return _SUFFIX in name


def absolute(name: str) -> str:
    """Returns ``FILE.py:NAME`` with the absolute path of the file; other names are returned as they are."""
    file, suffix, inside = name.rpartition(_SUFFIX)
    return f"{os.path.abspath(file + '.py')}:{inside}" if suffix else name


def short(name: str) -> str:
    """Returns the name in tables: that inside the file."""
    return name.rpartition(_SUFFIX)[2]


def load(name: str) -> Any:
    """Returns what ``FILE.py:NAME`` names.

    Raises:
      UserError: the file is missing or fails, or defines nothing of this name.
    """
    file, _, inside = absolute(name).rpartition(_SUFFIX)
    module = _load_module(Path(file + ".py"))
    if not hasattr(module, inside):
        raise UserError(
            f"{name}: the file does not define {inside}; correct the name, or add the function"
        )
    return getattr(module, inside)


@functools.cache
def _load_module(path: Path) -> ModuleType:
    remedy = "or leave the attack out of --config.attack.attacks"
    if not path.is_file():
        raise UserError(
            f"{path}: there is no such file; correct the path before .py:NAME, {remedy}"
        )
    try:
        return import_file(path)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{path}: the file fails with {describe(error)}; correct it, {remedy}"
        ) from error


def import_file(path: Path) -> ModuleType:
    """Runs a Python file as a module, which may import others in its folder; raises what the file raises."""
    spec = importlib.util.spec_from_file_location(
        f"lm_mia_user_{path.stem}_{_digest(str(path))}", path
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # needed by dataclasses in the file
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def is_of_user(function: Callable[..., Any]) -> bool:
    """Returns whether a function is not one of ours, whose errors are bugs that need a traceback."""
    return function.__module__.partition(".")[0] not in _OWN_PACKAGES


@contextlib.contextmanager
def blamed(function: Callable[..., Any], what: str) -> Iterator[None]:
    """Context manager in which a function is called; raises `UserCodeError` if it is the user's and fails.

    Args:
      function: an evaluation, or the function of a study.
      what: what the message calls it, such as "study compressed_size".
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # A full disk and a file that cannot be read have remedies of their own.
        if not is_of_user(function) or disk_problem(error) or file_problem(error):
            raise
        raise UserCodeError(
            f"{what}: fails with {describe(error, inspect.getsourcefile(function))}; correct it"
        ) from error


def describe(error: BaseException, file: str | None = None) -> str:
    """Returns the type and the message of an error in one line, with a place.

    Args:
      error: the error, which was raised.
      file: the place is the innermost one in this file; without one, it is where the error was raised.
    """
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"  # which names the place in the file
    places = traceback.extract_tb(error.__traceback__)
    at = next((place for place in reversed(places) if place.filename == file), places[-1])
    message = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{message} ({at.filename}, line {at.lineno})"


@functools.cache  # The first call is when the file is loaded, before it may be edited.
def code_digest(name: str) -> str:
    """Returns what stands for the code of ``FILE.py:NAME`` in a key.

    It is a digest of the definition of NAME and of all definitions of the file that it names, directly or through
    others. Comments, the docstring of the file and layout do not matter. Other files that this one imports are not
    followed.
    """
    file, _, inside = absolute(name).rpartition(_SUFFIX)
    statements = _statements(file + ".py")
    # Statements that define nothing, such as np.seterr(...), may affect everything.
    needed = [s for s in statements if not s.defined and not _is_docstring(s.node)]
    needed += [s for s in statements if inside in s.defined]
    for statement in needed:  # grows while it is read
        needed += [s for s in statements if s not in needed and statement.named & s.defined]
    return _digest("\n".join(sorted(statement.text for statement in needed)))


@dataclasses.dataclass(frozen=True, eq=False)
class _Statement:
    """A statement of a module."""

    node: ast.stmt
    defined: set[str]
    """The names that it binds."""

    @functools.cached_property
    def named(self) -> set[str]:
        """The names that occur in it."""
        return {n.id for n in ast.walk(self.node) if isinstance(n, ast.Name)}

    @functools.cached_property
    def text(self) -> str:
        """Its code, without comments and layout."""
        return ast.unparse(self.node)


@functools.cache  # A module has several functions whose code is asked for.
def _statements(file: str) -> list[_Statement]:
    body = ast.parse(Path(file).read_text(encoding="utf-8")).body
    return [_Statement(node, _defined_names(node)) for node in body]


@functools.cache  # as `code_digest`
def code_of(function: Callable[..., Any]) -> str:
    """Returns what stands for the code of a function in a key; empty in lm_mia, where RESULTS_FORMAT does."""
    if function.__module__.startswith("lm_mia."):
        return ""
    return code_digest(f"{inspect.getsourcefile(function)}:{function.__name__}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _defined_names(node: ast.stmt) -> set[str]:
    """Returns the names that a statement of a module binds."""
    match node:
        case ast.FunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Import() | ast.ImportFrom():
            return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        case ast.Assign() | ast.AnnAssign():
            return {
                n.id
                for n in ast.walk(node)
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
    return set()


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
