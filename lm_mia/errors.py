"""Errors that the user can correct: they are printed without a traceback, and the exit code is 2."""

import errno
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from lm_mia import interrupts

_INVALID_PATH_ERRORS = (NotADirectoryError, FileExistsError)


_COMMAND = re.compile(r"`(lm-mia (?:run|corpus|train|score|attack|extract|report)\b[^`]*)`")
"""A command in an error message that takes --config, --workdir and overrides."""


class UserError(Exception):
    """Invalid input. The message has one line ``field=value: the rule; the remedy`` per problem.

    A remedy names a command without the flags of the user, such as "run `lm-mia corpus` first"; `with_flags` adds them.
    """


class Unavailable(UserError):
    """A recipe has no such result; the message says why, such as too few models, and which command would make it."""


SIGTERM_EXIT_CODE = 143
"""Exit code of a command or process that was stopped by SIGTERM and has saved its state."""

_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_DISK_ERRNOS = (*_FULL_ERRNOS, errno.EACCES)
_MISSING_ERRNOS = (errno.ENOENT, errno.ENOTDIR)
_SYSTEM_ERROR_OF_TENSORSTORE = re.compile(r"\[os_error_code='(\d+)'")

DISK_REMEDY = "free some space or make the disk writable, and run the same command again; finished work is kept"


FILE_REMEDY = "check the disk and the permissions of the file, and run the same command again; nothing was deleted"


class DiskError(UserError):
    """The disk is full or not writable; the model that was being written is not to blame."""


class RendezvousError(UserError):
    """The processes of a job could not connect to each other; starting them again may help."""


class WorkersKilledError(UserError):
    """All workers were killed or ran out of memory before all models were finished."""


def disk_problem(error: BaseException) -> str:
    """Returns the system's message if an error was caused by a disk that is full or not writable; otherwise ""."""
    chain = _causes(error)
    for number in _DISK_ERRNOS:
        # TensorStore and Orbax include this text in the messages of their own errors.
        message = os.strerror(number)
        if any(getattr(e, "errno", None) == number or message in str(e) for e in chain):
            return message
    return ""


def raise_failed_read(error: BaseException, path: str | os.PathLike[str]) -> None:
    """Raises OSError if the system failed to read a file, which says nothing about the file's content.

    Does nothing if the file is missing or its content is invalid: only then may a caller replace the file, or say that
    it is damaged.

    Args:
      error: what reading the file raised.
      path: the file, or the folder of several ones. The error that is raised names it, unless the system named another.
    """
    for cause in _causes(error):
        number = getattr(cause, "errno", None)
        if match := _SYSTEM_ERROR_OF_TENSORSTORE.search(str(cause)):
            number = int(match[1])
        # An OSError without a number is PyArrow's, for a damaged file.
        if number is not None and number not in _MISSING_ERRNOS:
            name = getattr(cause, "filename", None) or os.fspath(path)
            raise OSError(number, os.strerror(number), name) from error


def file_problem(error: BaseException) -> str:
    """Returns "FILE: the system's message; the remedy" if the system failed to read or write a file; otherwise "".

    A file that is missing is a mistake of the program, and a full disk is a `disk_problem`.
    """
    if not isinstance(error, OSError) or error.errno in (None, *_MISSING_ERRNOS, *_FULL_ERRNOS):
        return ""
    # Errors of connections have no name of a file.
    return f"{error.filename}: {error.strerror}; {FILE_REMEDY}" if error.filename else ""


def _causes(error: BaseException) -> list[BaseException]:
    """Returns an error, its cause, the cause of that, and so on."""
    chain: list[BaseException] = [error]
    while next_error := chain[-1].__cause__ or chain[-1].__context__:
        if next_error in chain:
            break
        chain.append(next_error)
    return chain


def collect_errors(messages: list[str], read: Callable[[], Any]) -> Any:
    """Returns the result of ``read()``; if it raises UserError, appends the message to ``messages`` instead."""
    try:
        return read()
    except UserError as error:
        messages.append(str(error))
        return None


def with_flags(message: str, argv: Sequence[str]) -> str:
    """Returns an error message whose commands have the flags of the failed command, so that they can be pasted.

    Args:
      message: in which a command such as `lm-mia corpus` stands between backticks.
      argv: the arguments of the failed command. Its --workdir is added to each command, and its --config and overrides
        to each command that names no config itself.
    """
    workdir, settings, kept = list[str](), list[str](), list[str]()
    for word in argv:
        if word.startswith("--"):  # otherwise it is a value of the flag before it
            name = word.partition("=")[0]
            kept = workdir if name == "--workdir" else []
            if name == "--config" or name.startswith("--config."):
                kept = settings
        kept.append(word)
        if word.startswith("--workdir="):
            kept = []  # a file, as of `lm-mia import`, may follow

    def complete(match: re.Match[str]) -> str:
        flags = workdir if "--config=" in match[1] else [*settings, *workdir]
        return f"`{' '.join([match[1], *map(shlex.quote, flags)])}`"

    return _COMMAND.sub(complete, message)


def run_action(action: Callable[[], int], argv: Sequence[str] = ()) -> int:
    """Runs the action of a command, whose arguments are `argv`, and returns its exit code.

    The exit code is that of the action; 2 for a `UserError`, a full disk or a file that cannot be read, with a message
    instead of a traceback; 130 after Ctrl-C, which is confirmed at once by a line; and 143 after SIGTERM.
    """
    # SIGTERM raises an exception, so that workers save their state.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(SIGTERM_EXIT_CODE))
    try:
        with interrupts.kept(), interrupts.confirmed():
            return action()
    except UserError as error:
        print(with_flags(str(error), argv), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; run the same command again to continue", file=sys.stderr)
        return 130
    except SystemExit as error:
        if error.code == SIGTERM_EXIT_CODE:
            print("stopped; run the same command again to continue", file=sys.stderr)
        raise
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if isinstance(error, _INVALID_PATH_ERRORS) or error.errno == errno.ENAMETOOLONG:
            print(_invalid_path(error), file=sys.stderr)
            return 2
        if problem := file_problem(error):
            print(problem, file=sys.stderr)
            return 2
        # If a write to an open file fails, the error does not name the file.
        return _disk_exit_code(error, error.filename or "disk")
    except Exception as error:
        return _disk_exit_code(error, "disk")


def _invalid_path(error: OSError) -> str:
    """Returns "FILE: what is wrong; the remedy" for a path at which no file or folder can be made."""
    path = str(error.filename)
    if os.path.islink(path) and not os.path.exists(path):
        return broken_link(path)
    return f"{path}: {error.strerror}; choose another path"


def broken_link(link: str | os.PathLike[str]) -> str:
    """Returns the message about a symbolic link to a file or folder that does not exist."""
    target = os.readlink(link)
    return f"{link}: is a symbolic link to {target}, which does not exist; create that, or replace the link"


def _disk_exit_code(error: Exception, location: str) -> int:
    """Prints a message and returns 2 if the disk is full or not writable; otherwise raises the error again."""
    if not (problem := disk_problem(error)):
        raise error
    print(f"{location}: {problem}; {DISK_REMEDY}", file=sys.stderr)
    return 2
