"""The first sentences of a report: what an attacker finds, and whether it would be found again after retraining.

The page, the last line of a command and `lm-mia status` say the same sentences with the same numbers.
"""

import dataclasses
import math

from markupsafe import Markup

from analysis.formatting import MIN_HEADLINE_REPLICAS, lower_bound
from analysis.report import charts, numbers
from analysis.report.numbers import FRACTION, PER_100, Estimate, Unit
from lm_mia import stats
from lm_mia.config import AUTOMATIC_FOCUS_FPRS, automatic_focus_fpr
from lm_mia.printing import plural

QUESTION = "Can an attacker tell which texts were in the training data?"
FEWEST_NONMEMBERS = 100
"""With fewer non-members, even a rate of 10 per 100 allows fewer than 10 false alarms."""
FEWEST_HITS = 10


@dataclasses.dataclass(frozen=True)
class Findings:
    """The numbers of the headline attack, of a recipe or of an audited file."""

    fpr: float
    found: Estimate
    """The share of members that is found at this rate."""
    auc: Estimate
    missed: Estimate
    """The share of the members found that another training would miss; not known without replicas."""
    members: int
    nonmembers: int
    trainings: int
    """The number of attacked models."""
    has_replicas: bool
    """Whether the models differ in batch order only."""


@dataclasses.dataclass(frozen=True)
class Epsilon:
    """A lower bound on epsilon, of a model whose members were drawn by fair coins."""

    bound: float
    delta: float
    confidence: float = 0.95


@dataclasses.dataclass(frozen=True)
class Answer:
    """The sentences, and what follows from them for the rest of the page."""

    lead: tuple[Markup, ...]
    has_hits: bool
    """Whether there are decisions whose survival can be judged."""
    has_number: bool = True
    """Whether they say how many members are found."""
    is_reversed: bool = False

    @property
    def text(self) -> str:
        """The sentences in plain text."""
        return " ".join(str(Markup(sentence).striptags()) for sentence in self.lead)


def answer(
    found: Findings,
    *,
    epsilon: Epsilon | None = None,
    so_far: bool = False,
    rate_flag: str = "--config.attack.focus_fpr",
    has_references: bool = True,
) -> Answer:
    """Returns the sentences.

    Args:
      found: the numbers.
      epsilon: the bound on epsilon of a model with canaries.
      so_far: whether models are still being made, so that the numbers will change.
      rate_flag: the flag that sets the false positive rate.
      has_references: whether the attack uses references.
    """
    auc, rate = found.auc, found.fpr
    if found.nonmembers < FEWEST_NONMEMBERS or not found.found.is_known:
        return Answer((_too_few(found, so_far),), has_hits=False, has_number=False)
    the = "So far, the" if so_far else "The"
    if auc.has_interval and auc.high < 0.5:
        sentence = Markup(
            "<b>{} scores look reversed:</b> non-members have higher scores than members, AUC {}."
        ).format(the, _number(auc, FRACTION))
        return Answer((sentence,), has_hits=False, has_number=False, is_reversed=True)
    at = _at(rate)
    is_better_elsewhere = auc.has_interval and auc.low > 0.5
    if is_guessing(found.found, rate, found.nonmembers):
        first = Markup(
            "<b>{} attack cannot be told from guessing{}.</b> Of 100 members it finds {} {}; guessing finds {}."
        ).format(
            the,
            " at this rate" if is_better_elsewhere else "",
            _number(found.found),
            at,
            numbers.rate(rate),
        )
        if is_better_elsewhere:
            first += Markup(" Over all rates it is better than guessing: AUC {}.").format(
                _number(auc, FRACTION)
            )
        more = ", or one with more references," if has_references else ""
        second = Markup(
            '<span class="muted">So there are no decisions whose survival could be judged. A stronger attack{} may '
            "find more.</span>"
        ).format(more)
        return Answer((_with_epsilon(first, epsilon), second), has_hits=False)
    if found.found.value * found.members < FEWEST_HITS:
        return Answer((_too_few(found, so_far),), has_hits=False, has_number=False)
    start = "So far, of" if so_far else "Of"
    first = Markup("<b>{} 100 members, an attacker finds {}</b> {} {}. Guessing finds {}.").format(
        start,
        numbers.value(found.found),
        _interval(found.found, PER_100),
        at,
        numbers.rate(rate),
    )
    lead = [_with_epsilon(first, epsilon)]
    if not found.found.has_interval:
        lead.append(_without_interval(found, rate_flag))
    lead.append(_after_retraining(found))
    # A higher rate than that of the rule was asked for, and needs no reason.
    if AUTOMATIC_FOCUS_FPRS[0] < rate <= automatic_focus_fpr(found.nonmembers):
        lower = max(fpr for fpr in AUTOMATIC_FOCUS_FPRS if fpr < rate)
        needed = stats.nonmembers_needed(lower) * 10
        lead.append(
            Markup(
                '<span class="muted">By default, a rate must allow 10 false alarms: {} per 100 needs {}, and there are '
                "{}. <code>{}={:g}</code> asks for it.</span>"
            ).format(
                numbers.rate(lower),
                plural(needed, "non-member"),
                numbers.count(found.nonmembers),
                rate_flag,
                lower,
            )
        )
    return Answer(tuple(lead), has_hits=True)


def is_guessing(found: Estimate, fpr: float, nonmembers: int) -> bool:
    """Returns whether the members found at a false positive rate may be as many as guessing finds.

    Without an interval, what is certain is how many of the non-members are false alarms. On others, the rate of the
    threshold may be as high as the upper end of its 95 % interval (Clopper and Pearson), and guessing finds as many
    members.
    """
    if found.has_interval:
        return found.low <= fpr
    _, high = stats.clopper_pearson(_false_alarms(fpr, nonmembers), nonmembers)
    return not found.value > float(high)


def _false_alarms(fpr: float, nonmembers: int) -> int:
    # The factor keeps 0.01 of 100, which floats miss slightly, at one.
    return math.floor(fpr * nonmembers * (1 + 1e-9))


def icons(found: Findings, result: Answer) -> charts.Drawing | None:
    """Returns the picture of the first sentence; None if it has no number of members found."""
    if not result.has_number:
        return None
    missed = found.missed if result.has_hits and found.has_replicas else None
    return charts.icons(found.found, missed, fpr=found.fpr, key="answer")


def _after_retraining(found: Findings) -> Markup:
    """Returns the second sentence: how many of the members found would be missed by another training."""
    if not found.has_replicas or not found.missed.is_known:
        what = "one training" if found.trainings == 1 else "models of different data"
        return Markup(
            '<span class="muted">Whether these decisions would survive retraining cannot be said from {}.</span>'
        ).format(what)
    share = Markup("Of these {}, <b>{} %</b> {} would be missed ").format(
        numbers.value(found.found), numbers.value(found.missed), _interval(found.missed, PER_100)
    )
    if found.trainings >= MIN_HEADLINE_REPLICAS:
        return share + (
            "if the model were trained again on the same data in another batch order, and as many others found "
            "instead."
        )
    return share + Markup(
        'by another training. <span class="muted">Which ones cannot be said: {} cannot rule out a coin flip {}; {} '
        "or more can.</span>"
    ).format(
        plural(found.trainings, "training"), _undecided(found.trainings), MIN_HEADLINE_REPLICAS
    )


def _without_interval(found: Findings, rate_flag: str) -> Markup:
    """Returns why the share of members found has no interval: too few non-members set the threshold."""
    false_alarms = _false_alarms(found.fpr, found.nonmembers)
    return Markup(
        '<span class="muted">How sure this is cannot be said: at this rate, {} allow {}, too few for an interval. '
        "<code>{}</code> sets a higher rate.</span>"
    ).format(plural(found.nonmembers, "non-member"), plural(false_alarms, "false alarm"), rate_flag)


def _undecided(trainings: int) -> str:
    """Returns for which texts the coin-flip test cannot decide with few trainings."""
    k_low, _ = stats.coin_flip_cutoff(trainings)
    if not k_low:
        return "for any text"
    return "except for unanimous ones" if k_low == 1 else "for most texts"


def _too_few(found: Findings, so_far: bool) -> Markup:
    sentence = Markup(
        "<b>{}{} and {} are too few</b> to say how many members an attacker finds."
    ).format(
        "So far, " if so_far else "",
        plural(found.members, "member"),
        plural(found.nonmembers, "non-member"),
    )
    if found.auc.is_known:
        sentence += Markup(" AUC {}; guessing has 0.5.").format(_number(found.auc, FRACTION))
    return sentence


def _with_epsilon(sentence: Markup, epsilon: Epsilon | None) -> Markup:
    if epsilon is None:
        return sentence
    if not epsilon.bound > 0:
        return (
            Markup("<b>No leak of the canaries could be shown</b> ({:g} %, δ {:g}). ").format(
                100 * epsilon.confidence, epsilon.delta
            )
            + sentence
        )
    return (
        Markup("<b>The model reveals at least ε {}</b> ({:g} %, δ {:g}). ").format(
            lower_bound(epsilon.bound), 100 * epsilon.confidence, epsilon.delta
        )
        + sentence
    )


def _at(fpr: float) -> str:
    return (
        "at one false alarm per 100 non-members"
        if numbers.rate(fpr) == "1"
        else (f"at {numbers.rate(fpr)} false alarms per 100 non-members")
    )


def _number(estimate: Estimate, unit: Unit = PER_100) -> Markup:
    return Markup("{} {}").format(numbers.value(estimate, unit), _interval(estimate, unit))


def _interval(estimate: Estimate, unit: Unit) -> Markup:
    text = numbers.interval(estimate, unit)
    return Markup("<small>({})</small>").format(text) if text else Markup()
