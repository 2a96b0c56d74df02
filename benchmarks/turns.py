"""Runs our workloads and those of peers in turn on the same arrays: seconds, peak memory, ratios and agreement."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fresh
import numpy as np
import ours
import peers
import synthetic
from fresh import Measured, Results, Work
from scipy import stats

HEADER = ("workload", "theirs", "theirs s", "ours s", "ratio", "theirs GB", "ours GB", "agreement")


@dataclasses.dataclass(frozen=True)
class Pair:
    """A workload of a peer and ours."""

    name: str
    peer: str
    theirs: Work
    ours: Work
    agreement: Callable[[Results, Results], str]
    """Describes how far their results and ours agree."""
    both: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of both workloads."""
    population: int = 0


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of the inputs and limits of the workloads."""

    samples: int
    references: int
    targets: int
    populations: tuple[int, ...]
    replicates: int
    repeats: int
    limit_bytes: int
    """Memory limit of the peers' processes."""


def table(
    scratch: Path, size: Size, privacyguard: Path | None, privacy_meter: Path | None
) -> Iterator[tuple[str, ...]]:
    """Yields one row per pair whose checkout is given, as soon as it is measured."""
    written = None
    for pair, path in _pairs(size, privacyguard, privacy_meter):
        if written != pair.population:
            synthetic.write(scratch, size.samples, size.references, size.targets, pair.population)
            fresh.measure(ours.save_scores, scratch)
            written = pair.population
        yield _row(pair, path, scratch, size)


def _pairs(
    size: Size, privacyguard: Path | None, privacy_meter: Path | None
) -> Iterator[tuple[Pair, Path]]:
    if privacyguard:
        comparisons = (("LiRA from losses", peers.lira_privacyguard, ours.fit_and_score, _lira),)
        comparisons += (
            ("LiRA, Gaussians given", peers.lira_scores_privacyguard, ours.score, _same),
        )
        for name, theirs, own, agreement in comparisons:
            yield Pair(name, "PrivacyGuard", theirs, own, agreement), privacyguard
    if privacy_meter:
        name = f"AUC, TPR at {len(ours.METER_FPRS)} FPRs"
        yield (
            Pair(name, "ml_privacy_meter", peers.rates_privacy_meter, ours.rates, _rates),
            privacy_meter,
        )
    if privacyguard:
        name, both = f"{size.replicates} bootstraps", {"replicates": size.replicates, "targets": 1}
        theirs, own = peers.bootstrap_privacyguard, ours.intervals
        yield Pair(name, "PrivacyGuard", theirs, own, _intervals, both), privacyguard
    for population in size.populations:
        shares = _shares(population)
        online, offline = (f"RMIA {kind}, Z = {population:,}" for kind in ("online", "offline"))
        if privacyguard:
            theirs, own = peers.rmia_privacyguard, ours.rmia_online
            pair = Pair(online, "PrivacyGuard", theirs, own, shares, population=population)
            yield pair, privacyguard
        if privacy_meter:
            theirs, own, both = peers.rmia_privacy_meter, ours.rmia_offline, {"a": 1.0}
            pair = Pair(offline, "ml_privacy_meter", theirs, own, shares, both, population)
            yield pair, privacy_meter


def _row(pair: Pair, path: Path, scratch: Path, size: Size) -> tuple[str, ...]:
    theirs: list[Measured] = []
    own: list[Measured] = []
    for _ in range(size.repeats):
        own.append(fresh.measure(pair.ours, scratch, **pair.both))
        theirs.append(fresh.measure(pair.theirs, scratch, size.limit_bytes, path=path, **pair.both))
        if theirs[-1].results is None:
            break
    seconds, peak = fresh.median(own), max(run.peak_bytes for run in own) / 2**30
    last = theirs[-1]
    if last.results is None or own[-1].results is None:
        cells = ("out of memory", f"{seconds:.3g}", "-", f"> {size.limit_bytes / 2**30:.3g}")
        return (pair.name, pair.peer, *cells, f"{peak:.2f}", "-")
    their_seconds = fresh.median(theirs)
    return (
        pair.name,
        pair.peer,
        f"{their_seconds:.3g}",
        f"{seconds:.3g}",
        f"{their_seconds / seconds:.3g}",
        f"{max(run.peak_bytes for run in theirs) / 2**30:.2f}",
        f"{peak:.2f}",
        pair.agreement(last.results, own[-1].results),
    )


def _lira(theirs: Results, own: Results) -> str:
    same = _max_difference(theirs["score"], own["as_theirs"])
    correlation = np.corrcoef(theirs["score"].ravel(), own["score"].ravel())[0, 1]
    return f"{same} under their ddof 0; correlation {correlation:.6f} with ours (ddof 1)"


def _same(theirs: Results, own: Results) -> str:
    return _max_difference(theirs["score"], own["score"])


def _shares(population: int) -> Callable[[Results, Results], str]:
    """Compares RMIA scores, which differ by float32 rounding and, offline, by the references used for population
    samples."""

    def agreement(theirs: Results, own: Results) -> str:
        same = own.get("as_theirs", own["score"])
        steps = np.abs(theirs["score"] - same) * population
        text = f"{(steps > 0.5).mean():.2g} of the scores differ, by at most {steps.max():.0f} of Z"
        if "as_theirs" in own:
            ranks = stats.rankdata(theirs["score"][0]), stats.rankdata(own["score"][0])
            rho = np.corrcoef(*ranks)[0, 1]
            text += f", under their definition; rank correlation {rho:.4f} with ours"
        return text

    return agreement


def _rates(theirs: Results, own: Results) -> str:
    auc_tpr = np.abs(theirs["auc_tpr"] - own["auc_tpr"]).max(axis=0)
    shown = ", ".join(f"{x:.1g}" for x in auc_tpr[1:])
    return f"AUC {_max_difference(theirs['auc_tpr'][:, 0], own['auc_tpr'][:, 0])}, TPR {shown}"


def _intervals(theirs: Results, own: Results) -> str:
    """Compares interval ends, relative to the interval's length; both sides draw at random."""
    ends, own_ends = theirs["auc_low_high"][:, 1:], own["auc_low_high"][:, 1:]
    length_Tx1 = own_ends[:, 1:] - own_ends[:, :1]
    return f"ends within {np.abs((ends - own_ends) / length_Tx1).max():.2g} interval lengths"


def _max_difference(a: np.ndarray, b: np.ndarray) -> str:
    return f"max difference {np.abs(a - b).max():.1g}"
