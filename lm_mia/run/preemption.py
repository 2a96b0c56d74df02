"""Being asked to stop (SIGTERM): at the end of a step where a row trains, at once elsewhere."""

import contextlib
import dataclasses
import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import jax
from jax.experimental import multihost_utils

from lm_mia.errors import SIGTERM_EXIT_CODE


@dataclasses.dataclass
class Stop:
    """What a worker knows of being asked to stop."""

    is_requested: bool = False
    is_deferred: bool = False

    def install(self) -> None:
        """Takes SIGTERM, unless the processes of a job agree on a step by JAX's own service, which takes it then.

        Ctrl-C is left to the command that started the worker and sends SIGTERM.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if jax.process_count() == 1:
            signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Asked twice (by a scheduler, then by the command), it is on its way out already: let it clean up.
        again, self.is_requested = self.is_requested, True
        if not (again or self.is_deferred):
            sys.exit(SIGTERM_EXIT_CODE)

    @contextlib.contextmanager
    def defer_sigterm(self) -> Iterator[Callable[[int], bool]]:
        """A block in which SIGTERM is only noted; what says so, to be asked after every step."""
        self.is_deferred = True
        try:
            yield lambda step: self.should_stop()
        finally:
            self.is_deferred = False

    def should_stop(self) -> bool:
        """Whether to stop here; all processes of a job must ask at the same places, and hear the same."""
        if jax.process_count() > 1:
            # Places are counted over rows: the service wants numbers that only grow. It says yes at one of them only.
            self.is_requested |= multihost_utils.reached_preemption_sync_point(next(_PLACES))
        return self.is_requested


_PLACES = itertools.count(1)
