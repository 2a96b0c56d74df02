"""Signals: Ctrl-C is confirmed at once, and does not reach the processes that a command starts; none is lost."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType


def _confirm(number: int, frame: FrameType | None) -> None:
    """Says that the command stops, and raises KeyboardInterrupt, as Python's own handler does."""
    # A line of a progress bar is replaced. print could not be called here: the signal may have interrupted another one.
    line = b"\r\x1b[2Kstopping\n" if os.isatty(2) else b"stopping\n"
    with contextlib.suppress(OSError):
        os.write(2, line)
    signal.default_int_handler(number, frame)


@contextlib.contextmanager
def confirmed() -> Iterator[None]:
    """Confirms Ctrl-C on standard error during the block, unless the process ignores it."""
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not is_main or before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _confirm)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Calls `raise_ignored_again`, and ends its effect at the end of the block."""
    show, before = sys.unraisablehook, signal.getsignal(signal.SIGALRM)
    raise_ignored_again()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = show


def raise_ignored_again(is_allowed: Callable[[], bool] = lambda: True) -> None:
    """From now on, raises an exception of a signal handler again if Python has ignored it.

    Python only prints an exception that is raised in a callback of the garbage collector, such as JAX's, or in a
    destructor. The process would continue as if there had been no signal.

    Args:
      is_allowed: says whether the exception may be raised again when the callback has ended.
    """
    show = sys.unraisablehook

    def raise_later(failure: "sys.UnraisableHookArgs") -> None:
        ignored = failure.exc_value
        is_main = threading.current_thread() is threading.main_thread()
        if not (is_main and isinstance(ignored, KeyboardInterrupt | SystemExit)):
            show(failure)
            return
        error = ignored

        def raise_again(*_: object) -> None:
            if is_allowed():
                raise error

        # Raised now, it would be ignored again.
        signal.signal(signal.SIGALRM, raise_again)
        signal.setitimer(signal.ITIMER_REAL, 0.01)

    sys.unraisablehook = raise_later


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Blocks SIGINT in this thread while it starts a process, which inherits this.

    Otherwise, Ctrl-C, which a terminal sends to all processes of a command, would end a process with a traceback if it
    comes before the process can ignore it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
