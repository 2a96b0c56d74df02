"""Scores of many targets on disk, so that memory does not grow with targets x samples.

T: targets, C: samples of a block, N2: samples of the population.
"""

import collections
import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import numpy as np

from lm_mia import config, stats
from lm_mia.attacks import signals
from lm_mia.attacks.signals import AttackFit, AttackGroup, AttackInputs, ReferenceIndex, SampleBlock
from lm_mia.config import AttackName
from lm_mia.config.needs import TargetAttack

_MAX_PENDING = 8  # items waiting for a thread
_CURVE_POINTS = 100
# Of scores that are kept at a time: the system would write more to disk before they are dropped.
_MAX_SCORE_BYTES = 2**30
_MAX_ATTACKS_PER_PASS = 16  # attacks

In = TypeVar("In")
Out = TypeVar("Out")


class MembershipScoreFile:
    """score_TxN2 float64 in an unnamed file, gone with the process: written by blocks, read by target or by block."""

    def __init__(self, folder: Path, num_targets: int, num_samples: int) -> None:
        self.num_targets, self.num_samples = num_targets, num_samples
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115, closed by __exit__
        self._file.truncate(8 * num_targets * num_samples)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(self, first_target: int, sample_slice: slice, score_TxC: np.ndarray) -> None:
        """Scores of some samples under consecutive targets, the first of which is given."""
        for t, score_C in enumerate(np.ascontiguousarray(score_TxC, np.float64), first_target):
            left, offset = score_C.data.cast("B"), 8 * (t * self.num_samples + sample_slice.start)
            while left:  # a disk that is nearly full takes a part, and the next call says so
                done = os.pwrite(self._file.fileno(), left, offset)
                left, offset = left[done:], offset + done

    def read_target(self, t: int) -> np.ndarray:
        """score_N2 of one target."""
        return self._read(t, slice(0, self.num_samples))

    def read_samples(self, sample_slice: slice) -> np.ndarray:
        """score_TxC of all targets."""
        return np.stack([self._read(t, sample_slice) for t in range(self.num_targets)])

    def _read(self, t: int, samples: slice) -> np.ndarray:
        score_C = np.empty(samples.stop - samples.start)
        wanted, done = score_C.data.cast("B"), 0
        offset = 8 * (t * self.num_samples + samples.start)
        while done < len(wanted):  # one call moves 2 GiB at most
            got = os.preadv(self._file.fileno(), [wanted[done:]], offset + done)
            assert got, "scores end early"
            done += got
        return score_C


def map_in_order(
    pool: ThreadPoolExecutor, function: Callable[[In], Out], items: Iterable[In]
) -> Iterator[Out]:
    """Results in the order of the items, of which only a few are taken ahead: memory stays bounded.

    An error, of a call or of the caller, comes out when no call is under way any more.
    """
    pending: collections.deque[Future[Out]] = collections.deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > _MAX_PENDING:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
        wait(pending)


@contextlib.contextmanager
def score_all(
    groups: Sequence[AttackGroup],
    inputs: AttackInputs,
    folder: Path,
    pool: ThreadPoolExecutor,
    progress: Callable[[float], None] = lambda share: None,
    comparison_blocks: dict[int, SampleBlock] | None = None,
) -> Iterator[list[tuple[AttackFit, dict[AttackName, MembershipScoreFile]]]]:
    """A context in which the scores of every target of the source under every attack exist.

    They are computed in one pass over the scores of the store, in addition to those of `fit`.

    Args:
      groups: the attacks.
      source: the models.
      folder: in which the scores are kept while they are used.
      pool: computes parts of the samples.
      progress: called with the share done.
      compared: as in `fit`.

    Yields:
      For each group, what was fitted and a file of scores per attack; the files are deleted when the context ends.
    """
    fits = signals.fit_attacks(inputs, groups, comparison_blocks)
    with contextlib.ExitStack() as stack:
        files: list[dict[AttackName, MembershipScoreFile]] = [
            {
                name: stack.enter_context(
                    MembershipScoreFile(folder, len(inputs.targets), inputs.num_samples)
                )
                for name in group.attacks
            }
            for group in groups
        ]

        def work(part: SampleBlock) -> int:
            for group, fitted, named in zip(groups, fits, files, strict=True):
                for name, score_TxC in signals.membership_scores(group, part, fitted).items():
                    named[name].write(0, part.sample_slice, score_TxC)
            return part.sample_slice.stop

        parts = (part for block in inputs.blocks() for part in block.split())
        for done in map_in_order(pool, work, parts):
            progress(done / inputs.num_samples)
        yield list(zip(fits, files, strict=True))


def score_attacks(
    attacks: Sequence[TargetAttack],
    inputs: AttackInputs,
    c: config.Attack,
    folder: Path,
    pool: ThreadPoolExecutor,
    progress: Callable[[float], None] = lambda done: None,
) -> Iterator[tuple[TargetAttack, AttackFit, MembershipScoreFile]]:
    """Yields (attack, fitted, file) for each attack, those with the most references first.

    The file holds the scores of all targets and is valid until the next attack is taken. Attacks are computed several
    at a time, so that they share passes over the scores.

    Args:
      attacks: on the targets of the source, with some of its references.
      source: the models.
      c: settings of the recipe.
      folder, pool: as in `score`.
      progress: called with the number of attacks that are done, a fraction.
    """
    size = int(
        np.clip(
            _MAX_SCORE_BYTES // (8 * len(inputs.targets) * inputs.num_samples),
            1,
            _MAX_ATTACKS_PER_PASS,
        )
    )
    attacks = sorted(attacks, key=lambda attack: -len(attack.references))
    # Under all references, as the first attacks need not be those with the largest index.
    compared = {
        n: signals.comparison_block(inputs, n) for n in {a.rmia_samples for a in attacks} - {0}
    }
    place = {row.subset_seed: i for i, row in enumerate(inputs.references)}
    for low in range(0, len(attacks), size):
        grouped: dict[tuple[object, ...], list[TargetAttack]] = {}
        for attack in attacks[low : low + size]:
            key = attack.references, attack.rmia_samples, attack.rmia_gamma
            grouped.setdefault(key, []).append(attack)
        groups = [
            AttackGroup(
                tuple(attack.attack for attack in some),
                dataclasses.replace(
                    c,
                    rmia_samples=some[0].rmia_samples or c.rmia_samples,
                    rmia_gamma=some[0].rmia_gamma or c.rmia_gamma,
                ),
                _reference_index([place[number] for number in some[0].references]),
            )
            for some in grouped.values()
        ]

        def show(share: float, low: int = low) -> None:
            progress(low + share * min(size, len(attacks) - low))

        # References after the last one that is used are not read; the places of the others stay the same.
        used = [place[number] for some in grouped.values() for number in some[0].references]
        few = inputs.with_references(range(max(used, default=-1) + 1))
        with score_all(groups, few, folder, pool, show, compared) as found:
            for some, (fitted, files) in zip(grouped.values(), found, strict=True):
                for attack in some:
                    yield attack, fitted, files[attack.attack]


def _reference_index(places: Sequence[int]) -> ReferenceIndex:
    """Returns an index of these references: a slice if they are the first ones, so that indexing makes no copy."""
    return slice(len(places)) if [*places] == [*range(len(places))] else np.array(places)


def evaluation_fprs(c: config.Attack, member_N2: np.ndarray) -> list[float]:
    """Returns the FPRs at which every target is measured: attack.fprs, then the points of the ROC curve.

    The points go from 1 / (non-members of ``member_N2``) to 1 in equal ratios, with 0 and the ends of attack.band.
    """
    grid_G = np.geomspace(1 / max(int((~member_N2).sum()), 1), 1, _CURVE_POINTS)
    return [*c.fprs, *np.unique([0.0, *c.band, *grid_G])]


def operating_points(
    file: MembershipScoreFile,
    member_TxN2: np.ndarray,
    fprs: Sequence[float],
    pool: ThreadPoolExecutor,
) -> stats.OperatingPoints:
    """Operating points and AUC of every target of a file, each judged by its own membership."""

    def one(t: int) -> stats.OperatingPoints:
        return stats.tpr_at_fpr(file.read_target(t), member_TxN2[t], fprs)

    return stats.concatenate_operating_points(
        list(map_in_order(pool, one, range(file.num_targets)))
    )
