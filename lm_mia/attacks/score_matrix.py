"""Computes the membership scores of many attacks and targets, and keeps them on disk to bound the memory.

T: attacked models, R: references, C: samples of a block, N2: samples of the population (2N), G: points of the ROC
curve.
"""

import collections
import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from lm_mia import config, stats
from lm_mia.attacks import registry, user_code
from lm_mia.attacks.inputs import AttackInputs, Block, FitInputs, ReferenceIndex
from lm_mia.attacks.registry import FittedAttack
from lm_mia.attacks.spec import AttackSpec
from lm_mia.errors import UserError

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


@dataclasses.dataclass(frozen=True)
class AttackTask:
    """An attack whose membership scores are to be computed."""

    attack: str
    settings: Mapping[str, Any]
    """Name of a field of `lm_mia.config.Attack` -> its value."""
    references: tuple[int, ...] | None = None
    """Positions of the references that are used; None: all."""
    in_and_out_among: tuple[int, ...] = ()
    """Positions of references: a sample has a score only if some of them are IN and others OUT; empty: any sample."""

    def select(self, block: Block) -> Block:
        """Returns what the attack reads of a block of samples under all references."""
        if self.in_and_out_among:
            member_RxC = block.reference_member_RxC[[*self.in_and_out_among]]
            has_score_C = member_RxC.any(axis=0) & ~member_RxC.all(axis=0)
            has_score_TxC = np.broadcast_to(has_score_C, block.loss_TxC.shape)
            if block.has_score_TxC is not None:
                has_score_TxC = has_score_TxC & block.has_score_TxC
            block = dataclasses.replace(block, has_score_TxC=has_score_TxC)
        return block.with_references(_reference_index(self.references))


@contextlib.contextmanager
def score_all(
    tasks: Sequence[AttackTask],
    inputs: AttackInputs,
    folder: Path,
    pool: ThreadPoolExecutor,
    progress: Callable[[float], None] = lambda fraction: None,
    whole: Sequence[FitInputs] = (),
) -> Iterator[list[tuple[FittedAttack, MembershipScoreFile]]]:
    """Context manager that computes the membership scores of all samples under every attacked model.

    Takes one pass over the store, in addition to those of `registry.fit_attacks`, for each part of
    `AttackInputs.by_target`.

    Args:
      tasks: the attacks.
      inputs: the models.
      folder: folder for the temporary files of scores.
      pool: threads that compute parts of the samples.
      progress: called with the completed fraction.
      whole: for each part, inputs whose draws are shared; by default, samples are drawn here.

    Yields:
      For each attack, its fit on the first part, and its file of scores; the files are deleted when the context ends.
    """
    by_target = [*inputs.by_target()]
    fits_by_part: list[list[FittedAttack]] = []
    for p, (_, part) in enumerate(by_target):
        every = FitInputs(part, whole=whole[p] if whole else None)
        selected = {
            task.references: every.select(_reference_index(task.references)) for task in tasks
        }
        fits_by_part.append(
            registry.fit_attacks(
                [
                    registry.Task(registry.find(t.attack), selected[t.references], t.settings)
                    for t in tasks
                ]
            )
        )
    with contextlib.ExitStack() as stack:
        shape = len(inputs.targets), inputs.num_samples
        files = [stack.enter_context(MembershipScoreFile(folder, *shape)) for _ in tasks]

        for p, (first, part) in enumerate(by_target):

            def score_block(
                block: Block, first: int = first, fits: list[FittedAttack] = fits_by_part[p]
            ) -> int:
                # Attacks with the same references share the block and what they compute from it.
                blocks: dict[object, Block] = {}
                for task, fitted, file in zip(tasks, fits, files, strict=True):
                    key = task.references, task.in_and_out_among
                    if key not in blocks:
                        blocks[key] = task.select(block)
                    is_of_user = bool(fitted.attack.code)
                    score = _checked_scores if is_of_user and not block.at.start else _scores
                    file.write(first, block.at, score(task.attack, fitted, blocks[key]))
                return block.at.stop

            parts = (piece for block in part.blocks() for piece in block.split())
            for done in map_in_order(pool, score_block, parts):
                progress((p + done / inputs.num_samples) / len(by_target))
        yield list(zip(fits_by_part[0], files, strict=True))


def _scores(name: str, fitted: FittedAttack, block: Block) -> np.ndarray:
    """Returns score_TxC; raises UserError if a user's attack fails."""
    if not fitted.attack.code:
        return fitted(block)
    try:
        score_TxC = fitted(block)
        if isinstance(score_TxC, np.ma.MaskedArray):
            score_TxC = np.ma.filled(score_TxC.astype(np.float64), np.nan)
        score_TxC = np.asarray(score_TxC)
    except Exception as error:
        raise UserError(
            f"attack.attacks={name}: fails with {user_code.describe(error)}; correct it, or leave it out of "
            "attack.attacks"
        ) from error
    if score_TxC.dtype.kind not in "biuf":
        raise UserError(
            f"attack.attacks={name}: returns values of type {score_TxC.dtype}; scores must be real numbers"
        )
    if score_TxC.shape != block.loss_TxC.shape:
        raise UserError(
            f"attack.attacks={name}: returns an array of shape {score_TxC.shape}; it must return a score for each "
            f"model and sample of the block, here of shape {block.loss_TxC.shape}, as block.loss_TxC has"
        )
    if np.isinf(score_TxC).any():
        raise UserError(
            f"attack.attacks={name}: returns infinite scores; return NaN for samples that have no score, such as those "
            "that all references were trained on"
        )
    return score_TxC.astype(np.float64)


def _checked_scores(name: str, fitted: FittedAttack, block: Block) -> np.ndarray:
    """Returns `_scores`; raises UserError if they depend on which samples are in the block."""
    score_TxC, samples = _scores(name, fitted, block), block.at.stop - block.at.start
    for at in (slice(0, samples // 2), slice(samples // 2, samples)):
        alone_TxC = _scores(name, fitted, block.part(at))
        if not np.allclose(alone_TxC, score_TxC[:, at], rtol=1e-6, atol=1e-9, equal_nan=True):
            raise UserError(
                f"attack.attacks={name}: the score of a sample is random, or depends on which other samples are in its "
                "block; compute what must be known of all samples in a function fit(inputs, *, SETTINGS), whose result "
                "is the second argument of the score, and name an Attack(score, label, fit) of lm_mia.attacks.registry"
            )
    return score_TxC


def score_attacks(
    attacks: Sequence[AttackSpec],
    inputs: AttackInputs,
    c: config.Attack,
    folder: Path,
    pool: ThreadPoolExecutor,
    progress: Callable[[float], None] = lambda done: None,
) -> Iterator[tuple[AttackSpec, FittedAttack, MembershipScoreFile]]:
    """Yields (attack, its fit, file of scores) for each attack, those with the most references first.

    The file holds the scores of all attacked models and is valid until the next attack is requested. Several attacks
    are computed at a time, so that they share passes over the store.

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
    # Draws are under all references, since the first attacks do not always use the reference with the largest index.
    whole = [FitInputs(part) for _, part in inputs.by_target()]
    index = {model.subset_seed: i for i, model in enumerate(inputs.references)}
    for low in range(0, len(attacks), max_attacks):
        batch = attacks[low : low + max_attacks]

        def show(fraction: float, low: int = low, size: int = len(batch)) -> None:
            progress(low + fraction * size)

        tasks = [_task(attack, index, c) for attack in batch]
        # References after the last used one are not read; the indices of the others do not change.
        positions = (i for t in tasks for i in (*(t.references or ()), *t.in_and_out_among))
        used = inputs.with_references(range(max(positions, default=-1) + 1))
        with score_all(tasks, used, folder, pool, show, whole) as results:
            for attack, (fitted, file) in zip(batch, results, strict=True):
                yield attack, fitted, file


def settings_of(attack: AttackSpec, c: config.Attack) -> dict[str, Any]:
    """Returns the settings that an attack may read, those of the recipe unless the attack has its own."""
    return {
        **vars(c),
        "rmia_samples": attack.rmia_samples or c.rmia_samples,
        "rmia_gamma": attack.rmia_gamma or c.rmia_gamma,
        "rmia_a": c.rmia_a if attack.rmia_a is None else attack.rmia_a,
        "variance": "pooled" if attack.pools_variances else c.variance,
    }


def _task(attack: AttackSpec, index: Mapping[int, int], c: config.Attack) -> AttackTask:
    """Returns an attack with the positions of its references in place of their numbers, and with its settings."""
    return AttackTask(
        attack.attack,
        settings_of(attack, c),
        tuple(index[number] for number in attack.references),
        tuple(index[number] for number in attack.in_and_out_among),
    )


def _reference_index(positions: Sequence[int] | None) -> ReferenceIndex:
    """Returns a slice if the positions are 0, 1, ..., which avoids copies, and otherwise an array."""
    if positions is None:
        return slice(None)
    return (
        slice(len(positions)) if [*positions] == [*range(len(positions))] else np.array(positions)
    )


def curve_fprs(band: tuple[float, float], member_N2: np.ndarray) -> list[float]:
    """Returns the FPRs of the points of ROC curves.

    They are 0, the ends of attack.band, and 100 rates from 1 / (number of non-members) to 1 in equal ratios. Attacks
    that leave out samples have no TPR at the first points (`operating_points`).
    """
    grid_G = np.geomspace(1 / max(int((~member_N2).sum()), 1), 1, _CURVE_POINTS)
    return [*np.unique([0.0, *band, *grid_G])]


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
