"""Code of users: attacks, evaluations and studies in their own files, and what stands for code in keys of results."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from lm_mia import user_files
from lm_mia.errors import UserError, disk_problem, file_problem
from lm_mia.user_files import describe, file_of, import_file, short

_OWN_PACKAGES = ("lm_mia", "analysis")


class UserCodeError(UserError):
    """An evaluation or a study of the user is wrong or fails. All other results are computed before it is reported."""


def load(name: str) -> Any:
    """Returns what ``FILE.py:NAME`` names.

    Raises:
      UserError: the file is missing or fails, or defines nothing of this name.
    """
    inside, module = short(name), _load_module(file_of(name))
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


@functools.cache  # The first call is when the file is loaded, before it may be edited.
def code_digest(name: str) -> str:
    """Returns what stands for the code of ``FILE.py:NAME`` in a key; see `user_files.source_digest`."""
    return user_files.source_digest(name)


@functools.cache  # as `code_digest`
def code_of(function: Callable[..., Any]) -> str:
    """Returns what stands for the code of a function in a key; empty in lm_mia, where RESULTS_FORMAT does."""
    if function.__module__.startswith("lm_mia."):
        return ""
    return code_digest(f"{inspect.getsourcefile(function)}:{function.__name__}")
