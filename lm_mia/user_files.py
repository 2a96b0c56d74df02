"""Definitions in Python files of users, ``FILE.py:NAME``: a digest of their source, and running the file."""

import ast
import dataclasses
import functools
import hashlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from lm_mia.errors import UserError

_SUFFIX = ".py:"


def is_in_file(name: str) -> bool:
    """Returns whether a name is that of something in a Python file, ``FILE.py:NAME``."""
    return _SUFFIX in name


def absolute(name: str) -> str:
    """Returns ``FILE.py:NAME`` with the absolute path of the file; other names are returned as they are."""
    file, suffix, inside = name.rpartition(_SUFFIX)
    return f"{os.path.abspath(file + '.py')}:{inside}" if suffix else name


def file_of(name: str) -> Path:
    """Returns the absolute path of the file of ``FILE.py:NAME``."""
    return Path(absolute(name).rpartition(_SUFFIX)[0] + ".py")


def short(name: str) -> str:
    """Returns the name in tables: that inside the file."""
    return name.rpartition(_SUFFIX)[2]


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


def source_digest(name: str) -> str:
    """Returns a digest of the source of ``FILE.py:NAME``.

    It is that of the definition of NAME and of all definitions of the file that it names, directly or through others.
    Comments, the docstring of the file and layout do not matter. Other files that this one imports are not followed.
    """
    inside = short(name)
    statements = _statements(file_of(name).read_text(encoding="utf-8"))
    # Statements that define nothing, such as np.seterr(...), may affect everything.
    needed = [s for s in statements if not s.defined and not _is_docstring(s.node)]
    needed += [s for s in statements if inside in s.defined]
    for statement in needed:  # grows while it is read
        needed += [s for s in statements if s not in needed and statement.named & s.defined]
    return _digest("\n".join(sorted(statement.text for statement in needed)))


def problem(name: str) -> str:
    """Returns why ``FILE.py:NAME`` cannot be used, in words that follow the name; "" if the file defines NAME."""
    path, inside = file_of(name), short(name)
    if not path.is_file():
        return f"there is no file {path}; correct the path before .py:NAME"
    try:
        statements = _statements(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError) as error:
        return f"the file cannot be read: {' '.join(str(error).split())}; correct it"
    if not any(inside in statement.defined for statement in statements):
        return f"the file does not define {inside!r}; correct the name, or add it to the file"
    return ""


def load(field: str, name: str, source: str | None) -> Any:
    """Returns what ``FILE.py:NAME`` names.

    Args:
      field: the setting that names it, for messages.
      name: ``FILE.py:NAME``.
      source: the digest that its source must have; None: any.

    Raises:
      UserError: if the file is missing or fails, does not define NAME, or was changed.
    """
    if reason := problem(name):
        raise UserError(f"{field}={name}: {reason}")
    if source is not None and source_digest(name) != source:
        raise UserError(
            f"{field}={name}: the file was changed after models were made with it; "
            "restore it, or choose another --workdir or --config.name"
        )
    try:
        return getattr(import_file(file_of(name)), short(name))
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{field}={name}: the file fails with {describe(error)}; correct it"
        ) from error


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
def _statements(text: str) -> list[_Statement]:
    return [_Statement(node, _defined_names(node)) for node in ast.parse(text).body]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _defined_names(node: ast.stmt) -> set[str]:
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
