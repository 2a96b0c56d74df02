"""Errors that the user can correct: they are printed without a traceback, and the exit code is 2."""

import errno
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

_INVALID_PATH_ERRORS = (NotADirectoryError, FileExistsError)


_COMMAND = re.compile(r"`(lm-mia (?:run|corpus|train|score|attack|extract|report)\b[^`]*)`")
"""A command in an error message that takes --config, --workdir and overrides."""


class UserError(Exception):
    """Invalid input. The message has one line ``field=value: the rule; the remedy`` per problem.

    A remedy names a command without the flags of the user, such as "run `lm-mia corpus` first"; `with_flags` adds them.
    """


SIGTERM_EXIT_CODE = 143
"""Exit code of a command or process that was stopped by SIGTERM and has saved its state."""

_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)

DISK_REMEDY = "free some space or make the disk writable, and run the same command again; finished work is kept"


class DiskError(UserError):
    """The disk is full or not writable; the model that was being written is not to blame."""


class RendezvousError(UserError):
    """The processes of a job could not connect to each other; starting them again may help."""


class WorkersKilledError(UserError):
    """All workers were killed or ran out of memory before all models were finished."""


def disk_problem(error: BaseException) -> str:
    """Returns the system's message if an error was caused by a disk that is full or not writable; otherwise ""."""
    chain: list[BaseException] = [error]
    while next_error := chain[-1].__cause__ or chain[-1].__context__:
        if next_error in chain:
            break
        chain.append(next_error)
    for number in _DISK_ERRNOS:
        # TensorStore and Orbax include this text in the messages of their own errors.
        message = os.strerror(number)
        if any(getattr(e, "errno", None) == number or message in str(e) for e in chain):
            return message
    return ""


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

    The exit code is that of the action; 2 for a `UserError` or a full disk, with a message instead of a traceback; 130
    after Ctrl-C; and 143 after SIGTERM.
    """
    # SIGTERM raises an exception, so that workers save their state.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(SIGTERM_EXIT_CODE))
    try:
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
            print(f"{error.filename}: {error.strerror}; choose another path", file=sys.stderr)
            return 2
        # If a write to an open file fails, the error does not name the file.
        return _disk_exit_code(error, error.filename or "disk")
    except Exception as error:
        return _disk_exit_code(error, "disk")


def _disk_exit_code(error: Exception, location: str) -> int:
    """Prints a message and returns 2 if the disk is full or not writable; otherwise raises the error again."""
    if not (problem := disk_problem(error)):
        raise error
    print(f"{location}: {problem}; {DISK_REMEDY}", file=sys.stderr)
    return 2
