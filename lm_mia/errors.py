"""The exceptions that mean "the user can mend this": printed as they are, exit code 2, no traceback."""

import errno
import os


class UserError(Exception):
    """Bad input, told as ``field=value: the rule; the way out``, one line for each problem."""


STOPPED = 143
"""The exit code of a command or process that SIGTERM stopped, once it has saved what it was at."""

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)

DISK_WAY_OUT = (
    "make room, or make it writable, and run the same command again: what is finished is kept"
)


class DiskError(UserError):
    """A disk that is full or may not be written, at no fault of what was being made."""


class ApartError(UserError):
    """Processes of a job that did not find each other: they may, when they are started again."""


class LostError(UserError):
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
