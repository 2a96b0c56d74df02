"""Handles SIGTERM in a worker, which stops at the end of a step if it is training, and otherwise at once."""

import contextlib
import dataclasses
import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import jax
from jax.experimental import multihost_utils

from lm_mia import interrupts
from lm_mia.errors import SIGTERM_EXIT_CODE


@dataclasses.dataclass
class Stop:
    """Records whether this worker was asked to stop."""

    is_requested: bool = False
    is_deferred: bool = False

    def install(self) -> None:
        """Installs the signal handlers.

        In a job of several processes, JAX's preemption service handles SIGTERM: the processes agree on the step at
        which they stop. SIGINT (Ctrl-C) is ignored: the command that started the worker handles it, and sends
        SIGTERM.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if jax.process_count() == 1:
            signal.signal(signal.SIGTERM, self._on_signal)
            interrupts.raise_ignored_again(lambda: not self.is_deferred)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A second signal (one from the scheduler, one from the command) must not interrupt the cleanup.
        is_repeated, self.is_requested = self.is_requested, True
        if not (is_repeated or self.is_deferred):
            sys.exit(SIGTERM_EXIT_CODE)

    @contextlib.contextmanager
    def defer_sigterm(self) -> Iterator[Callable[[int], bool]]:
        """Defers SIGTERM during the block; yields a function of the step that returns whether to stop."""
        self.is_deferred = True
        try:
            yield lambda step: self.should_stop()
        finally:
            self.is_deferred = False

    def should_stop(self) -> bool:
        """Returns whether to stop now.

        All processes of a job must call it at the same points, and all get the same result.
        """
        if jax.process_count() > 1:
            # The service needs numbers that only increase, over all models, and returns True at only one of them.
            self.is_requested |= multihost_utils.reached_preemption_sync_point(next(_SYNC_POINTS))
        return self.is_requested


_SYNC_POINTS = itertools.count(1)
