"""The exceptions that mean "the user can mend this": printed as they are, exit code 2, no traceback."""

import errno
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

_NO_PLACE = (NotADirectoryError, FileExistsError)


class UserError(Exception):
    """Bad input, told as ``field=value: the rule; the way out``, one line for each problem."""


STOPPED = 143
"""The exit code of a command or process that SIGTERM stopped, once it has saved what it was at."""

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)

DISK_REMEDY = (
    "make room, or make it writable, and run the same command again: what is finished is kept"
)


class DiskError(UserError):
    """A disk that is full or may not be written, at no fault of what was being made."""


class RendezvousError(UserError):
    """Processes of a job that did not find each other: they may, when they are started again."""


class WorkersKilledError(UserError):
    """All workers were killed, or out of memory, with rows left to make."""


def disk_problem(error: BaseException) -> str:
    """What the system says of a disk that is full or may not be written, if that is behind an error; else ""."""
    chain: list[BaseException] = [error]
    while following := chain[-1].__cause__ or chain[-1].__context__:
        if following in chain:
            break
        chain.append(following)
    for number in _DISK:
        said = os.strerror(number)  # tensorstore and orbax pass it on in errors of their own
        if any(getattr(e, "errno", None) == number or said in str(e) for e in chain):
            return said
    return ""


def collect(wrong: list[str], read: Callable[[], Any]) -> Any:
    """Calls ``read`` and returns its result; if it raises a UserError, adds its lines to ``wrong`` and returns None."""
    try:
        return read()
    except UserError as error:
        wrong.append(str(error))
        return None


def exit_code(act: Callable[[], int]) -> int:
    """What an action returns; 2 for a user's mistake or a full disk, told in a line; 130 or 143 if it was stopped."""
    # A SIGTERM unwinds like an exception, so that workers save what they are at.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
    try:
        return act()
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    except SystemExit as error:
        if error.code == STOPPED:
            print("stopped; the same command goes on from here", file=sys.stderr)
        raise
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if isinstance(error, _NO_PLACE) or error.errno == errno.ENAMETOOLONG:
            print(f"{error.filename}: {error.strerror}; choose another path", file=sys.stderr)
            return 2
        return _full(error, error.filename)
    except Exception as error:
        return _full(error, "disk")


def _full(error: Exception, where: str) -> int:
    """2 for a disk that is full or may not be written, told in a line; else it is raised again."""
    if not (problem := disk_problem(error)):
        raise error
    print(f"{where}: {problem}; {DISK_REMEDY}", file=sys.stderr)
    return 2
