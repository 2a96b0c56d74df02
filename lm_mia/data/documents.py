"""What a population is drawn from, in the words that its readers and its writer share."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

ProgressCallback = Callable[[str, int, int], None]
"""``progress(label, done, total)``, called often enough for a progress bar."""

Pairs = Sequence[tuple[str, str]]
"""(text, source record) of some documents; only iterated over."""


class Documents(Protocol):
    """A corpus in a fixed order; item i is (text, source record)."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> tuple[str, str]: ...


@runtime_checkable
class SupportsSelect(Documents, Protocol):
    """A corpus that other processes can read themselves, so that no text goes through this one."""

    def select(self, index_K: np.ndarray, /) -> Pairs:
        """These documents in this order, read when iterated over, in whichever process it is pickled to."""
        ...


def select(documents: Documents, index_K: np.ndarray) -> Pairs:
    """The documents of these indices, in this order, to be given to another process."""
    if isinstance(documents, SupportsSelect):
        return documents.select(index_K)
    return [documents[i] for i in index_K.tolist()]


def no_progress(label: str, done: int, total: int) -> None:
    """Progress that nobody watches."""
