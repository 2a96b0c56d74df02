"""Statistics of the scores of one model for an audit: intervals, epsilon estimates, bounds, curves and notes.

Legend: N units (samples or users), U users.
"""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import pandas as pd

from lm_mia import stats
from lm_mia.attacks import privacy_bounds
from lm_mia.audits import causal as audit_causal
from lm_mia.audits import curves as audit_curves
from lm_mia.data.covariates import Covariates
from lm_mia.data.scores import Columns, ModelScores
from lm_mia.errors import UserError
from lm_mia.printing import plural
from lm_mia.stats.user_groups import GroupScore

MembershipDesign = Literal["given", "coins", "half", "independent"]
Frames = dict[str, pd.DataFrame]
"""The rows of one model in the data frames of an audit, by their names."""

_MAX_DRAWS = 2e8  # scores that the bootstrap draws for each model, by default
_MIN_REPLICATES, _MAX_REPLICATES = 200, 1000
_ENOUGH_FOR_INTERVALS = 10


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a source is read and audited: the flags of `lm-mia audit`, and the arguments of `lm_mia.audit`."""

    score: str = ""
    """Scores: name of the column or array, by default score, or score_MxN."""
    member: str = ""
    """Scores: name of the column or array of membership, by default member, or member_MxN."""
    model: str = ""
    """Scores: name of the column of models, by default model if there is one; each model is audited by itself."""
    lower_is_member: bool = False
    """Scores are smaller for members, as losses and distances are."""
    target: tuple[str, ...] = ()
    """Losses: names of the attacked models, unless the file says the role of each; other models are references."""
    base: str = ""
    """Losses: name of the model that the targets were fine-tuned from, which was trained on none of the texts."""
    losses_are_nats: bool = False
    """Losses: accept them even if their values look like sums, perplexities, bits or accuracies."""
    user: str = ""
    """Audit users instead of samples: name of the column that says the user of each sample."""
    aggregate: GroupScore = "mean"
    """How the scores of a user become one: mean, max, min, logsumexp, gmean or abs_max."""
    membership: MembershipDesign = "given"
    """How the members were drawn: given (in an unknown way, so that no bound is valid), coins (each by its own fair
    coin), half (a random subset of fixed size, such as one half), or independent (each row is a training run of its
    own)."""
    covariates: tuple[str, ...] = ()
    """Members and non-members from different sources: names of columns in which they differ, such as
    date,length,source; adds estimates that are adjusted for them."""
    text: str = ""
    """Members and non-members from different sources: name of the column of texts, whose words, lengths and
    compressibility are covariates, too."""
    delta: float = 1e-5
    """Delta of (epsilon, delta)-differential privacy."""
    confidence: float = 0.95
    """Confidence level of intervals and bounds."""
    fprs: tuple[float, ...] = (0.001, 0.01, 0.1)
    """False positive rates; by default also 0.05 with 200 to 999 non-members, whose results are named by it."""
    replicates: int = 0
    """Bootstrap draws, by default 1,000, or fewer for more than 200,000 scores, but at least 200."""
    prefix: str = dataclasses.field(default="", metadata={"is_flag": False})
    """Precedes the names of settings in messages: "--" on the command line, where settings are flags."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Settings":
        """Returns settings of arguments in which a list may be a single value, and a name an integer or None."""
        kinds, values = get_type_hints(cls), {}
        for name, value in given.items():
            kind = kinds.get(name)
            if kind == tuple[str, ...]:
                if value is None or isinstance(value, str) or not isinstance(value, Iterable):
                    value = [] if value in (None, "") else [value]
                value = tuple(map(str, value))
            elif kind == tuple[float, ...]:
                value = tuple(value)
            elif kind is str:
                value = "" if value is None else str(value)
            values[name] = value
        try:
            return cls(**values)
        except TypeError as error:
            unknown = [name for name in given if name not in kinds]
            near = difflib.get_close_matches(unknown[0], kinds, 1) if unknown else []
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(kinds)}"
            raise UserError(f"{', '.join(unknown)}: there is no such setting; {hint}") from error

    @property
    def steps(self) -> int:
        """Number of steps of `audit_model` that are reported."""
        return 8 if self.covariates or self.text else 4

    @property
    def columns(self) -> Columns:
        """The names of columns or arrays."""
        covariates = tuple(filter(None, self.covariates))
        return Columns(
            self.score,
            self.member,
            self.model,
            self.user,
            covariates,
            self.text,
            self.lower_is_member,
            self.prefix,
        )

    def problems(self) -> Iterator[str]:
        """Yields a line for each value that is out of range."""
        p = self.prefix
        if self.aggregate not in get_args(GroupScore):
            yield self._wrong_choice("aggregate", self.aggregate, get_args(GroupScore))
        elif self.aggregate != "mean" and not self.user:
            yield f"{p}aggregate={self.aggregate}: is for scores of users; name their column by {p}user="
        if self.membership not in get_args(MembershipDesign):
            yield self._wrong_choice("membership", self.membership, get_args(MembershipDesign))
        if self.membership == "independent" and self.user:
            yield f"{p}user={self.user}: trials have no users; leave it out with {p}membership=independent"
        if (self.covariates or self.text) and self.membership != "given":
            named = [f"{p}covariates={','.join(self.covariates)}"] if self.covariates else []
            named += [f"{p}text={self.text}"] if self.text else []
            yield (
                f"{', '.join(named)}: must be left out with {p}membership={self.membership}: members that were drawn "
                "at random do not differ from non-members, so there is nothing to adjust"
            )
        if not all(self.covariates):
            yield f"{p}covariates={','.join(self.covariates)}: has an empty name; separate names by single commas"
        if not 0 <= self.delta < 1:
            yield f"{p}delta={self.delta:g}: must be at least 0 and below 1; try {p}delta=1e-5"
        if not 0 < self.confidence < 1:
            yield f"{p}confidence={self.confidence:g}: must be between 0 and 1; try {p}confidence=0.95"
        if not self.fprs or not all(0 < fpr <= 1 for fpr in self.fprs):
            fprs = ",".join(f"{fpr:g}" for fpr in self.fprs)
            yield f"{p}fprs={fprs}: must be rates above 0 and up to 1; try {p}fprs=0.001,0.01,0.1"
        if self.replicates < 0 or self.replicates == 1:
            yield f"{p}replicates={self.replicates}: must be 0, or at least 2; try {p}replicates=1000"

    def _wrong_choice(self, name: str, value: str, choices: Sequence[str]) -> str:
        similar = difflib.get_close_matches(value, choices, 1)
        remedy = f"did you mean {similar[0]}?" if similar else "choose one"
        return f"{self.prefix}{name}={value}: must be one of {', '.join(choices)}; {remedy}"


@dataclasses.dataclass(frozen=True)
class Units:
    """What is audited in one model: samples, or users."""

    model: str
    score_N: np.ndarray
    member_N: np.ndarray
    groups: pd.DataFrame
    noun: str
    covariates: Covariates | None
    id_N: np.ndarray | None
    """Ids by which ties are broken; None: the positions."""
    document_N: np.ndarray | None
    """The documents of samples that are pieces of documents, otherwise None."""


def make_units(scores: ModelScores, source: str, settings: Settings) -> Units:
    """Returns the samples of a model, or its users; raises UserError if they cannot be audited."""
    score_N, member_N, noun = scores.score_N, scores.member_N, "sample"
    where = source + (f", model {scores.model}" if scores.model else "")
    covariates, id_N, document_N = scores.covariates, scores.id_N, scores.document_N
    groups = pd.DataFrame()
    if scores.user_N is not None:
        noun = "user"
        _check_users(scores, scores.user_N, where, settings)
        by_user = stats.aggregate_by_group(score_N, scores.user_N, settings.aggregate)
        member_N = stats.member_by_group(member_N, scores.user_N)
        score_N = by_user.score_G
        if settings.aggregate == "gmean" and (
            lost := int((by_user.count_G > 0)[np.isnan(score_N)].sum())
        ):
            raise UserError(
                f"{settings.prefix}aggregate=gmean: {plural(lost, 'user')} of {where} have a score of 0 or less, "
                f"which has no geometric mean; choose another one, such as {settings.prefix}aggregate=mean"
            )
        names = [scores.users[index] for index in by_user.group_G.tolist()]
        # Their order does not depend on that of the samples.
        id_N, document_N = np.argsort(np.argsort(np.array(names, dtype=str))), None
        groups = pd.DataFrame({"model": scores.model, "user": names, "member": member_N})
        groups = groups.assign(scores=by_user.count_G, score=score_N)
        if covariates is not None:
            covariates = audit_causal.by_user(covariates, scores.user_N, by_user.group_G)
    present_N = ~np.isnan(score_N)
    for is_member, name in ((True, "member"), (False, "non-member")):
        if not (present_N & (member_N == is_member)).any():
            raise UserError(
                f"{where}: there is no {name} with a score among {plural(member_N.size, noun)}; an audit compares "
                "members with non-members, so add some"
            )
    if settings.membership == "coins" and stats.unlike_fair_coins(member_N):
        raise UserError(
            f"{settings.prefix}membership=coins: {int(member_N.sum()):,} of {plural(member_N.size, noun)} of {where} "
            "are members, which fair coins practically never give; if a random subset was drawn, use "
            f"{settings.prefix}membership=half"
        )
    if (
        settings.membership in ("coins", "half")
        and document_N is not None
        and stats.drawn_by_cluster(member_N, document_N)
    ):
        raise UserError(
            f"{settings.prefix}membership={settings.membership}: so many documents of {where} have only members or "
            "only non-members that their samples were not drawn one by one, and the membership of one reveals that of "
            "others; keep one sample of each document, or audit documents as users"
        )
    if covariates is not None:
        audit_causal.check(score_N, member_N, covariates, where)
    return Units(scores.model, score_N, member_N, groups, noun, covariates, id_N, document_N)


def _check_users(scores: ModelScores, user_N: np.ndarray, where: str, settings: Settings) -> None:
    """Raises UserError if a user has members and non-members."""
    count_U = np.bincount(user_N)
    members_U = np.bincount(user_N, weights=scores.member_N)
    mixed = np.flatnonzero((members_U > 0) & (members_U < count_U))
    if mixed.size:
        raise UserError(
            f"{where}: column {settings.user!r}: {plural(mixed.size, 'user')}, such as "
            f"{scores.users[mixed[0]]}, with members and non-members: all samples of a user must have the same "
            "membership; correct it, or audit samples, without user"
        )


def audit_model(
    attack: str,
    units: Units,
    settings: Settings,
    pool: ThreadPoolExecutor,
    advance: Callable[[int], None],
) -> tuple[Frames, list[str]]:
    """Returns the rows of one model and its notes."""
    score_N, member_N, confidence = units.score_N, units.member_N, settings.confidence
    draws = int(np.clip(_MAX_DRAWS / score_N.size, _MIN_REPLICATES, _MAX_REPLICATES))
    draws = settings.replicates or draws
    # Only the intervals of the adjusted estimates wait for the fit; the others are computed beside it.
    fit = units.covariates and pool.submit(
        audit_causal.fit, score_N, member_N, units.covariates, units.document_N
    )
    tasks: list[Future[Any]] = [
        pool.submit(
            stats.epsilon_intervals,
            score_N,
            member_N,
            delta=settings.delta,
            at_tpr=privacy_bounds.AT_TPR,
            confidence=confidence,
            replicates=draws,
            cluster_N=units.document_N,
        ),
        pool.submit(
            stats.bootstrap_intervals,
            score_N,
            member_N,
            settings.fprs,
            confidence=confidence,
            replicates=draws,
            cluster_N=units.document_N,
        ),
        pool.submit(_bounds, units, settings),
        pool.submit(_curves, score_N, member_N),
    ]
    adjustment = fit.result() if fit else None
    if adjustment:
        tasks += [
            pool.submit(adjustment.intervals, name, settings.fprs, confidence, draws)
            for name in audit_causal.ESTIMATORS
        ]
    for done, task in enumerate(tasks):
        advance(done)
        task.result()
    advance(len(tasks))
    estimates, intervals, (bounds, curve), (roc, histogram), *adjusted = (
        task.result() for task in tasks
    )
    causal: Frames = {name: pd.DataFrame() for name in audit_causal.TABLES}
    causal_notes: list[str] = []
    if adjustment:
        at = audit_causal.ESTIMATORS.index("unadjusted")
        adjusted[at] = audit_causal.with_intervals(adjusted[at], intervals)
        causal, causal_notes = audit_causal.tables(adjustment, adjusted, settings.fprs)
    present_N = ~np.isnan(score_N)
    scored, members = int(present_N.sum()), int((present_N & member_N).sum())
    left_out = score_N.size - scored
    summary: dict[str, Any] = {"members": members, "nonmembers": scored - members}
    summary |= {"left_out": left_out, "unit": units.noun}
    for end in ("", "_low", "_high"):
        summary[f"auc{end}"] = getattr(intervals, f"auc{end}_T")[0]
        summary[f"balanced_accuracy{end}"] = getattr(estimates, f"balanced_accuracy{end}_T")[0]
    points = stats.tpr_at_fpr(score_N, member_N, settings.fprs)
    tpr = {
        "fpr": points.fpr_F,
        "realized_fpr": points.realized_fpr_TxF[0],
        "tpr": points.tpr_TxF[0],
    }
    tpr |= {"low": intervals.tpr_low_TxF[0], "high": intervals.tpr_high_TxF[0]}
    tpr["interval"] = intervals.method_TxF[0]
    tpr["true_positives"] = pd.Series(np.rint(points.tpr_TxF[0] * members)).astype("Int64")
    estimated = privacy_bounds.estimate_rows(
        score_N, member_N, settings.delta, confidence, estimates
    )
    epsilon = privacy_bounds.as_table([*estimated, *bounds])
    named = {"attack": attack, "model": units.model}
    frames = {
        "summary": pd.DataFrame([named | summary | {"replicates": draws}]),
        "tpr_at_fpr": _prefixed(pd.DataFrame(tpr), named),
        "epsilon": _prefixed(epsilon, named),
        "curve": _prefixed(curve, named),
        "roc": _prefixed(roc, named),
        "histogram": _prefixed(histogram, named),
        "counts": pd.DataFrame([_counts(units)]),
        "groups": _prefixed(units.groups.drop(columns="model", errors="ignore"), named),
    } | {name: _prefixed(frame, named) for name, frame in causal.items()}
    return frames, [*_notes(attack, units, settings, summary), *causal_notes]


def _counts(units: Units) -> dict[str, Any]:
    members = int(units.member_N.sum())
    counts = {"members": members, "nonmembers": units.member_N.size - members}
    return {"model": units.model, "unit": units.noun} | counts


def _prefixed(frame: pd.DataFrame, named: Mapping[str, str]) -> pd.DataFrame:
    """Returns a data frame with the attack and the model as its first columns."""
    for position, (name, value) in enumerate(named.items()):
        frame.insert(position, name, value)
    return frame


def _bounds(units: Units, settings: Settings) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """Returns the bounds that are valid for the membership design, and their curve over numbers of guesses."""
    score_N, member_N = units.score_N, units.member_N
    delta, confidence = settings.delta, settings.confidence
    no_curve = privacy_bounds.curve_table(None)
    if settings.membership == "given":
        return [], no_curve
    if settings.membership == "independent":
        trials = stats.independent_trials_bound(
            score_N, member_N, delta=delta, confidence=confidence, id_N=units.id_N
        )
        row = {"method": "independent_trials", "adjacency": "add_remove", "delta": delta}
        row |= {"confidence": confidence, "canaries": score_N.size, "epsilon": trials.epsilon}
        row |= {"ceiling": trials.ceiling, "is_bound": True, "left_out": trials.left_out}
        return [row], no_curve
    bound = stats.one_run_bound(
        score_N,
        member_N,
        membership=settings.membership,
        delta=delta,
        confidence=confidence,
        id_N=units.id_N,
        cluster_N=units.document_N,
    )
    rows = privacy_bounds.bound_rows(bound, delta, confidence, bound.left_out)
    return rows, privacy_bounds.curve_table(bound)


def _curves(score_N: np.ndarray, member_N: np.ndarray) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns points of the ROC curve, at most a few hundred, and a histogram of the scores."""
    curve = stats.roc_curve(score_N, member_N)
    present_N = ~np.isnan(score_N)
    roc = audit_curves.roc_points(
        curve.fpr_K, curve.tpr_K, curve.threshold_K, int(np.sum(~member_N))
    )
    return roc, audit_curves.histogram(score_N[present_N], member_N[present_N])


def _reversal(attack: str, settings: Settings) -> str:
    """Returns what may be wrong with scores that are lower for members, and the remedy."""
    inverted = "the flags of membership may be inverted (1 is a member)"
    if attack != "score":
        return inverted
    flag = f"{settings.prefix}lower-is-member"
    remedy = f"leave {flag} out" if settings.lower_is_member else f"use {flag}"
    return (
        f"the scores may be reversed; a larger score must mean more member-like: {remedy}, and save losses in a column "
        f"named loss; or {inverted}"
    )


def _notes(
    attack: str, units: Units, settings: Settings, summary: Mapping[str, Any]
) -> Iterator[str]:
    if summary["auc_high"] < 0.5:
        # Without the AUC, so that several attacks or models share the sentence.
        yield f"the AUC is clearly below 0.5: {_reversal(attack, settings)}"
    if summary["left_out"]:
        wrong = ", and count as errors in bounds" if settings.membership != "given" else ""
        yield f"scores are missing for {plural(summary['left_out'], units.noun)}; they are left out of rates{wrong}"
    fewest = min(summary["members"], summary["nonmembers"])
    reason = ""
    if fewest < _ENOUGH_FOR_INTERVALS:
        members, nonmembers = summary["members"], summary["nonmembers"]
        reason = f"with only {plural(members, 'member')} and {plural(nonmembers, 'non-member')}"
    elif summary["auc"] in {0, 1}:
        reason = "since no score of a member lies among those of non-members"
    if reason:
        yield f"bootstrap intervals of the AUC and the balanced accuracy are too narrow, {reason}"
    canaries = units.score_N.size
    if settings.delta * canaries > 1:
        yield (
            f"{settings.prefix}delta={settings.delta:g} is above 1 / {canaries:,}, the number of {units.noun}s: with "
            "so large a delta, a mechanism may publish some of them, so that an audit can show little"
        )
    if settings.membership == "coins" and 2 * units.member_N.sum() == canaries >= 100:
        yield (
            f"exactly half of the {units.noun}s are members: if that number was fixed, bounds for coins are not "
            f"valid; use {settings.prefix}membership=half"
        )
