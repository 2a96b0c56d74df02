"""Types shared by the code that reads corpora and the code that builds populations."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

ProgressCallback = Callable[[str, int, int], None]
"""``progress(label, done, total)``, which is called often enough for a progress bar."""

Log = Callable[[str], None]
"""``log(line)``, which is called with lines for the user."""

Document = tuple[str, str, str]
"""A text, its name and its source: the columns `name` and `source` of the sample table."""


class Documents(Protocol):
    """A corpus in a fixed order; a list of documents satisfies this protocol."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> Document: ...


@runtime_checkable
class SupportsSelect(Documents, Protocol):
    """A corpus that other processes can read directly, so that texts are not sent between processes."""

    def select(self, index_K: np.ndarray, /) -> Sequence[Document]:
        """Returns these documents, in this order; texts are read when iterated over and are not pickled."""
        ...


def select(documents: Documents, index_K: np.ndarray) -> Sequence[Document]:
    """Returns the documents with these indices, in this order, in a form that can be sent to another process."""
    if isinstance(documents, SupportsSelect):
        return documents.select(index_K)
    return [documents[i] for i in index_K.tolist()]


def no_progress(label: str, done: int, total: int) -> None:
    """Ignores progress."""


def no_log(line: str) -> None:
    """Discards log lines."""
