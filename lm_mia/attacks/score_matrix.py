"""Computes the membership scores of many attacks and targets, and keeps them on disk to bound the memory.

T: targets, C: samples of a block, N2: samples of the population (2N), G: points of the ROC curve.
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

_MAX_PENDING = 8  # number of items that wait for a thread
_CURVE_POINTS = 100
# Membership scores that exist at a time. Larger files would be written to disk before they are deleted.
_MAX_SCORE_BYTES = 2**30
_MAX_ATTACKS_PER_PASS = 16

In = TypeVar("In")
Out = TypeVar("Out")


class MembershipScoreFile:
    """score_TxN2, float64 by default, in an unnamed temporary file: written in blocks, read by target or by block."""

    def __init__(
        self,
        folder: Path,
        num_targets: int,
        num_samples: int,
        dtype: np.dtype = np.dtype(np.float64),  # noqa: B008, immutable
    ) -> None:
        self.num_targets, self.num_samples, self._dtype = num_targets, num_samples, dtype
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115, closed by __exit__
        self._file.truncate(dtype.itemsize * num_targets * num_samples)

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
        """Writes the scores of samples under consecutive targets, beginning with `first_target`."""
        for t, score_C in enumerate(np.ascontiguousarray(score_TxC, self._dtype), first_target):
            data, offset = score_C.data.cast("B"), self._offset(t, sample_slice)
            while data:  # A nearly full disk accepts a part; the next call raises the error.
                written = os.pwrite(self._file.fileno(), data, offset)
                data, offset = data[written:], offset + written

    def read_target(self, t: int) -> np.ndarray:
        """Returns score_N2 of one target."""
        return self._read(t, slice(0, self.num_samples))

    def as_array(self) -> np.ndarray:
        """Returns score_TxN2 as a read-only array that is mapped to the file, so that it needs no memory."""
        return np.memmap(self._file, self._dtype, "r", shape=(self.num_targets, self.num_samples))

    def read_samples(self, sample_slice: slice) -> np.ndarray:
        """Returns score_TxC of all targets."""
        return np.stack([self._read(t, sample_slice) for t in range(self.num_targets)])

    def _read(self, t: int, samples: slice) -> np.ndarray:
        score_C = np.empty(samples.stop - samples.start, self._dtype)
        buffer, done = score_C.data.cast("B"), 0
        offset = self._offset(t, samples)
        while done < len(buffer):  # one call reads 2 GiB at most
            count = os.preadv(self._file.fileno(), [buffer[done:]], offset + done)
            assert count, "the file of scores is too short"
            done += count
        return score_C

    def _offset(self, t: int, samples: slice) -> int:
        return self._dtype.itemsize * (t * self.num_samples + samples.start)


def map_in_order(
    pool: ThreadPoolExecutor, function: Callable[[In], Out], items: Iterable[In]
) -> Iterator[Out]:
    """Yields the results in the order of the items; only a few items are taken in advance, so memory is bounded.

    An error of a call or of the caller is raised after all running calls have ended.
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
    progress: Callable[[float], None] = lambda fraction: None,
    drawn_blocks: Sequence[dict[int, SampleBlock]] = (),
) -> Iterator[list[tuple[AttackFit, dict[AttackName, MembershipScoreFile]]]]:
    """Context manager that computes the membership scores of all samples for every target and attack.

    Takes one pass over the store, in addition to those of `signals.fit_attacks`, for each part of
    `AttackInputs.by_target`.

    Args:
      groups: the attacks.
      inputs: the models.
      folder: folder for the temporary files of scores.
      pool: threads that compute parts of the samples.
      progress: called with the completed fraction.
      drawn_blocks: as in `signals.fit_attacks`, for each part; by default, samples are drawn here.

    Yields:
      For each group, its `AttackFit` for the first part, and {attack: file of scores}; the files are deleted when the
      context ends.
    """
    by_target = [*inputs.by_target()]
    drawn_blocks = drawn_blocks or [{} for _ in by_target]
    fits_by_part = [
        signals.fit_attacks(part, groups, drawn)
        for (_, part), drawn in zip(by_target, drawn_blocks, strict=True)
    ]
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

        for p, (first, subset) in enumerate(by_target):

            def score_block(
                block: SampleBlock, first: int = first, fits: list[AttackFit] = fits_by_part[p]
            ) -> int:
                for group, attack_fit, group_files in zip(groups, fits, files, strict=True):
                    scores = signals.membership_scores(group, block, attack_fit)
                    for name, score_TxC in scores.items():
                        group_files[name].write(first, block.sample_slice, score_TxC)
                return block.sample_slice.stop

            blocks = (part for block in subset.blocks() for part in block.split())
            for done in map_in_order(pool, score_block, blocks):
                progress((p + done / inputs.num_samples) / len(by_target))
        yield list(zip(fits_by_part[0], files, strict=True))


def score_attacks(
    attacks: Sequence[TargetAttack],
    inputs: AttackInputs,
    c: config.Attack,
    folder: Path,
    pool: ThreadPoolExecutor,
    progress: Callable[[float], None] = lambda done: None,
) -> Iterator[tuple[TargetAttack, AttackFit, MembershipScoreFile]]:
    """Yields (attack, attack_fit, file of scores) for each attack, those with the most references first.

    The file holds the scores of all targets and is valid until the next attack is requested. Several attacks are
    computed at a time, so that they share passes over the store.

    Args:
      attacks: attacks on the targets of the inputs, with some of its references.
      inputs: the models.
      c: settings of the recipe.
      folder, pool: as in `score_all`.
      progress: called with the number of completed attacks, which may be fractional.
    """
    max_attacks = _MAX_SCORE_BYTES // (8 * len(inputs.targets) * inputs.num_samples)
    max_attacks = int(np.clip(max_attacks, 1, _MAX_ATTACKS_PER_PASS))
    attacks = sorted(attacks, key=lambda attack: -len(attack.references))
    # Under all references, since the first attacks do not always use the reference with the largest index.
    numbers = (signals.num_drawn_samples([a.attack], a.rmia_samples) for a in attacks)
    drawn_numbers = set[int]().union(*numbers)
    drawn_blocks = [
        {n: signals.draw_samples(part, n) for n in drawn_numbers} for _, part in inputs.by_target()
    ]
    index = {model.subset_seed: i for i, model in enumerate(inputs.references)}
    for low in range(0, len(attacks), max_attacks):
        batch = attacks[low : low + max_attacks]
        grouped = _group_by_settings(batch)
        groups = [
            AttackGroup(
                tuple(attack.attack for attack in same),
                dataclasses.replace(
                    c,
                    rmia_samples=same[0].rmia_samples or c.rmia_samples,
                    rmia_gamma=same[0].rmia_gamma or c.rmia_gamma,
                    variance="pooled" if same[0].pools_variances else c.variance,
                ),
                _reference_index([index[number] for number in same[0].references]),
                same[0].rmia_a,
                tuple(index[number] for number in same[0].in_and_out_among),
            )
            for same in grouped
        ]

        def show(fraction: float, low: int = low, size: int = len(batch)) -> None:
            progress(low + fraction * size)

        # References after the last used one are not read; the indices of the others do not change.
        numbers = (n for attack in batch for n in (*attack.references, *attack.in_and_out_among))
        last = max((index[n] for n in numbers), default=-1)
        used = inputs.with_references(range(last + 1))
        with score_all(groups, used, folder, pool, show, drawn_blocks) as results:
            for same, (attack_fit, files) in zip(grouped, results, strict=True):
                for attack in same:
                    yield attack, attack_fit, files[attack.attack]


def _group_by_settings(attacks: Sequence[TargetAttack]) -> list[list[TargetAttack]]:
    """Returns lists of attacks with equal references, equal samples and equal settings of RMIA."""
    groups: dict[tuple[object, ...], list[TargetAttack]] = {}
    for attack in attacks:
        rmia = attack.rmia_samples, attack.rmia_gamma, attack.rmia_a
        groups.setdefault((attack.references, attack.in_and_out_among, *rmia), []).append(attack)
    return [*groups.values()]


def _reference_index(indices: Sequence[int]) -> ReferenceIndex:
    """Returns a slice if the indices are 0, 1, ..., which avoids copies, and otherwise an array."""
    return slice(len(indices)) if [*indices] == [*range(len(indices))] else np.array(indices)


def curve_fprs(c: config.Attack, member_N2: np.ndarray) -> list[float]:
    """Returns the FPRs of the points of ROC curves.

    They are 0, the ends of attack.band, and 100 rates from 1 / (number of non-members) to 1 in equal ratios. Attacks
    that leave out samples have no TPR at the first points (`operating_points`).
    """
    grid_G = np.geomspace(1 / max(int((~member_N2).sum()), 1), 1, _CURVE_POINTS)
    return [*np.unique([0.0, *c.band, *grid_G])]


def operating_points(
    file: MembershipScoreFile,
    members: Iterable[np.ndarray],
    fprs: Sequence[float],
    pool: ThreadPoolExecutor,
    curve: Sequence[float] = (),
) -> stats.OperatingPoints:
    """Returns the operating points and the AUC of every target, each evaluated with its own membership.

    Thresholds at the rates are those of the paper, and points of the ROC curve are vertices (`stats.tpr_at_fpr`). A TPR
    is NaN at an FPR that the non-members with a score cannot show: above 0, but less than one of them.

    Args:
      file: the membership scores.
      members: member_N2 of each target: membership of the samples in its training subset.
      fprs: requested false positive rates.
      pool: threads, one target at a time each.
      curve: false positive rates of the points of the ROC curve, which follow the others.
    """
    at = ["paper"] * len(fprs) + ["vertex"] * len(curve)

    def evaluate_target(target: tuple[int, np.ndarray]) -> stats.OperatingPoints:
        t, member_N2 = target
        return stats.tpr_at_fpr(file.read_target(t), member_N2, [*fprs, *curve], at=at)

    points = stats.concatenate_operating_points(
        list(map_in_order(pool, evaluate_target, enumerate(members)))
    )
    too_low_TxF = (points.fpr_F > 0) & (
        points.fpr_F < 1 / np.maximum(points.nonmembers_T, 1)[:, None]
    )
    return dataclasses.replace(points, tpr_TxF=np.where(too_low_TxF, np.nan, points.tpr_TxF))


def rates_of_halves(
    file: MembershipScoreFile,
    members: Iterable[np.ndarray],
    group_N2: np.ndarray,
    fprs: Sequence[float],
    pool: ThreadPoolExecutor,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the AUC and the TPRs of every target on halves of the samples, as `stats.rates_of_halves`.

    Args:
      file, members, pool: as in `operating_points`.
      group_N2: the result of `stats.sample_groups`.
      fprs: requested false positive rates.
    """

    def evaluate_target(target: tuple[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        t, member_N2 = target
        return stats.rates_of_halves(file.read_target(t), member_N2, group_N2, fprs)

    results = map_in_order(pool, evaluate_target, enumerate(members))
    auc, tpr = zip(*results, strict=True)
    return np.concatenate(auc), np.concatenate(tpr)
