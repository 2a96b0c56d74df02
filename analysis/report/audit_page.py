"""The page of `lm-mia audit`, audit.html: the answer first; its numbers are those of the tables that were written."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from analysis import provenance
from analysis.formatting import lower_bound, needs_nonmembers, percent
from analysis.report import answer, audit_causal, charts, document, numbers
from analysis.report.numbers import FRACTION, Estimate
from analysis.report.strength import first_of_families
from lm_mia.atomic import write_atomically
from lm_mia.attacks.headline import headline_fpr
from lm_mia.attacks.privacy_bounds import is_capped, is_of_pairs
from lm_mia.attacks.registry import ATTACKS, attack_name
from lm_mia.printing import plural

PAGE = "audit.html"
METHODS = {
    "estimate_tpr": "Estimate at 1% TPR",
    "estimate_max": "Largest estimate",
    "one_run": "Lower bound, one run",
    "independent_trials": "Lower bound, independent trials",
    "one_run_gaussian": "One run, if the mechanism is Gaussian",
}
_DESIGNS = {
    "given": "given, in an unknown way",
    "coins": "each by its own fair coin, all in one training run",
    "half": "a random subset of fixed size, all in one training run",
    "independent": "each row is a training run of its own",
}
_MAX_ROWS = 5
_MAX_USERS = 8
_EPSILON = numbers.Unit(1, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Audited:
    """The tables of an audit."""

    tables: Mapping[str, pd.DataFrame]
    membership: str
    """How the members were drawn: a key of `_DESIGNS`."""

    @property
    def attacks(self) -> list[str]:
        """The attacks, in the order of the tables; that of a file of scores is called score."""
        return [*dict.fromkeys(self.tables["summary"]["attack"])]

    @property
    def headline(self) -> str:
        """The attack of the first sentence, which was chosen before the results: the first one."""
        return self.attacks[0]

    @property
    def has_references(self) -> bool:
        """Whether some attack uses references; what made the scores of a file is not known."""
        return any(name in ATTACKS and ATTACKS[name].uses_references for name in self.attacks)

    @property
    def models(self) -> list[str]:
        """The names of the audited models; that of a single one is usually empty."""
        return [*dict.fromkeys(self.tables["summary"]["model"])]

    @property
    def is_of_users(self) -> bool:
        """Whether users are audited instead of samples."""
        return self.tables["summary"]["unit"].iloc[0] == "user"

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of members and of non-members, of the model with the fewest non-members."""
        summary = self.tables["summary"]
        row = summary[summary["attack"] == self.headline].sort_values("nonmembers").iloc[0]
        return int(row["members"]), int(row["nonmembers"])

    @functools.cached_property
    def rates(self) -> list[float]:
        """The false positive rates of the tables, ascending."""
        return sorted(map(float, self.tables["tpr_at_fpr"]["fpr"].unique()))

    @functools.cached_property
    def fpr(self) -> float:
        """The rate of the first sentence."""
        return headline_fpr(self.rates, self.counts[1])

    def estimate(self, attack: str, model: str, metric: str) -> Estimate:
        """Returns a number of summary.csv, such as "auc", with its interval."""
        summary = self.tables["summary"]
        row = summary[(summary["attack"] == attack) & (summary["model"] == model)]
        return _estimate(row, metric, f"{metric}_low", f"{metric}_high")

    def tpr(self, attack: str, model: str, fpr: float) -> Estimate:
        """Returns a number of tpr_at_fpr.csv with its interval."""
        points = self.tables["tpr_at_fpr"]
        is_row = (points["attack"] == attack) & (points["model"] == model) & (points["fpr"] == fpr)
        return _estimate(points[is_row], "tpr", "low", "high")

    def found(self, attack: str, fpr: float) -> Estimate:
        """Returns the TPR of an attack; the mean over several models has no interval."""
        return _mean([self.tpr(attack, model, fpr) for model in self.models])

    def auc(self, attack: str) -> Estimate:
        """Returns the AUC of an attack; the mean over several models has no interval."""
        return _mean([self.estimate(attack, model, "auc") for model in self.models])


def _estimate(row: pd.DataFrame, *columns: str) -> Estimate:
    if row.empty:
        return Estimate(math.nan)
    return Estimate(*(float(row[name].iloc[0]) for name in columns))


def _mean(values: Sequence[Estimate]) -> Estimate:
    if len(values) == 1:
        return values[0]
    return Estimate(sum(value.value for value in values) / len(values))


# --- The first sentences ----------------------------------------------------------------------------------------------


def sentences(tables: Mapping[str, pd.DataFrame], membership: str) -> str:
    """Returns the first sentences in plain text, which the command prints; the arguments are as of `write`."""
    return _answer(Audited(tables, membership)).text


def _answer(audited: Audited) -> answer.Answer:
    if "causal" in audited.tables:
        return audit_causal.answer_of(audited.tables["causal"], audited.fpr)
    if len(audited.models) > 1:
        return _answer_of_models(audited)
    return answer.answer(
        _findings(audited),
        epsilon=_epsilon(audited),
        rate_flag="--fprs",
        has_references=audited.has_references,
    )


def _findings(audited: Audited) -> answer.Findings:
    members, nonmembers = audited.counts
    return answer.Findings(
        fpr=audited.fpr,
        found=audited.found(audited.headline, audited.fpr),
        auc=audited.auc(audited.headline),
        missed=Estimate(math.nan),
        members=members,
        nonmembers=nonmembers,
        # Independent trials are a training each, of the same data with and without one sample.
        trainings=2 if audited.membership == "independent" else len(audited.models),
        has_replicas=False,
    )


def _epsilon(audited: Audited) -> answer.Epsilon | None:
    """Returns the bound of the headline attack, if one is valid."""
    table = audited.tables["audit"]
    rows = table[(table["attack"] == audited.headline) & table["is_bound"].astype(bool)]
    if rows.empty:
        return None
    row = rows.iloc[0]
    return answer.Epsilon(*(float(row[name]) for name in ("epsilon", "delta", "confidence")))


def _answer_of_models(audited: Audited) -> answer.Answer:
    """Returns the sentences about several models, each of which has an interval of its own."""
    found_T = [audited.tpr(audited.headline, model, audited.fpr) for model in audited.models]
    mean, count = _mean(found_T), plural(len(found_T), "model")
    if not mean.is_known or audited.counts[1] < answer.FEWEST_NONMEMBERS:
        auc = numbers.value(audited.auc(audited.headline), FRACTION)
        text = Markup(
            "<b>Too few non-members</b> to say how many members an attacker finds in each of {}. AUC {} on average; "
            "guessing has 0.5."
        ).format(count, auc)
        return answer.Answer((text,), has_hits=False, has_number=False)
    low, high = (numbers.value(Estimate(end(e.value for e in found_T))) for end in (min, max))
    if all(answer.is_guessing(e, audited.fpr, audited.counts[1]) for e in found_T):
        start = Markup("<b>The attack cannot be told from guessing in any of {}.</b> ").format(
            count
        )
        start += "Of 100 members it finds"
    else:
        start = Markup("<b>Of 100 members, an attacker finds</b>")
    first = Markup("{} <b>{}</b> on average over {} ({} to {}) at {} non-members. Guessing finds {}.").format(
        start, numbers.value(mean), count, low, high, numbers.false_alarms(audited.fpr), numbers.rate(audited.fpr)
    )  # fmt: skip
    second = Markup(
        '<span class="muted">Whether these decisions would survive retraining cannot be said from models of different '
        "data; of replicas, <code>lm-mia import</code> says it.</span>"
    )
    return answer.Answer((first, second), has_hits=True)


# --- The page ---------------------------------------------------------------------------------------------------------


def write(
    folder: Path,
    source: str,
    membership: str,
    tables: Mapping[str, pd.DataFrame],
    warnings: Sequence[str],
    notes: Sequence[str],
) -> Path:
    """Writes the page.

    Args:
      folder: where to write audit.html.
      source: name of the audited file.
      membership: how the members were drawn.
      tables: data frames by the names of their files: summary, tpr_at_fpr, audit, audit_curve, roc and histogram; and
        those of users, and of an adjustment for covariates, if there are any.
      warnings: sentences that a reader must know before any number.
      notes: further sentences for the reader.

    Returns:
      The path of the page.
    """
    html = document.render(page(Path(source).name, Audited(tables, membership), warnings, notes))
    write_atomically(folder / PAGE, html)
    return folder / PAGE


def page(
    name: str, audited: Audited, warnings: Sequence[str], notes: Sequence[str]
) -> document.Page:
    """Returns the page; the arguments are as of `write`."""
    result = _answer(audited)
    sections = [_attacks(audited)]
    if "groups" in audited.tables:
        sections.append(_users(audited))
    if "causal" in audited.tables:
        sections.insert(0, audit_causal.section(audited.tables, audited.fpr))
    else:
        sections += _conditions(audited)
    details = [*_all_numbers(audited), _privacy(audited)]
    if "causal" in audited.tables:
        details += audit_causal.details(audited.tables)
    what = "scores" if audited.headline == "score" else "losses"
    of = f" of {plural(len(audited.models), 'model')}" if len(audited.models) > 1 else ""
    return document.Page(
        title=f"Audit of {name}",
        name=name,
        kind=f"audit of {what}{of}",
        written=document.today(),
        question=_question(audited),
        lead=result.lead,
        icons=_icons(audited, result),
        facts=tuple(_facts(audited, {section.id for section in sections})),
        banners=tuple(_banners(audited, warnings, notes)),
        sections=document.numbered(sections),
        details=tuple(details),
        made=tuple(_made(name, audited)),
    )


def _question(audited: Audited) -> str:
    if audited.membership == "independent":
        return "Can an attacker tell whether the text was in the training data?"
    if audited.is_of_users:
        return "Can an attacker tell whose texts were in the training data?"
    return answer.QUESTION


def _icons(audited: Audited, result: answer.Answer) -> charts.Drawing | None:
    if not result.has_number:
        return None
    found = audited.found(audited.headline, audited.fpr)
    if "causal" in audited.tables:
        found = audit_causal.adjusted_tpr(audited.tables["causal"], audited.fpr)
    return charts.icons(found, None, fpr=audited.fpr, key="answer")


def _facts(audited: Audited, sections: set[str]) -> Iterator[document.Fact]:
    auc = numbers.plain(audited.auc(audited.headline), FRACTION)
    is_score = audited.headline == "score"
    name = "The scores of the file" if is_score else attack_name(audited.headline)
    chosen = "" if is_score else ", chosen by what the file contains before the results were seen"
    mean = " on average" if len(audited.models) > 1 else ""
    yield document.Fact("Attack", Markup("<b>{}</b>{}. AUC {}{}.").format(name, chosen, auc, mean))
    if "lira_online" in audited.attacks and audited.headline != "lira_online":
        lira = audited.found("lira_online", audited.fpr), audited.auc("lira_online")
        texts = numbers.plain(lira[0]), numbers.plain(lira[1], FRACTION)
        yield document.Fact("For papers", Markup("<b>LiRA</b> finds {}; AUC {}.").format(*texts))
    members, nonmembers = audited.counts
    noun = " (users)" if audited.is_of_users else ""
    of = " in each of the models, or more" if len(audited.models) > 1 else ""
    counts = f"{plural(members, 'member')} and {plural(nonmembers, 'non-member')}{noun}{of}."
    yield document.Fact("Tried on", counts)
    unit = "users" if audited.is_of_users else "texts"
    intervals = Markup("{} intervals, over the choice of {}; not over retraining or other data").format(
        _confidence(audited), unit
    )  # fmt: skip
    if "change" in sections:
        intervals += Markup(' (<a href="#change">what would change the answer</a>)')
    yield document.Fact("In brackets", intervals + ".")


def _confidence(audited: Audited) -> str:
    return f"{100 * float(audited.tables['audit']['confidence'].iloc[0]):g} %"


def _banners(
    audited: Audited, warnings: Sequence[str], notes: Sequence[str]
) -> Iterator[document.Text]:
    if audited.membership == "given" and "causal" not in audited.tables:
        # The banner says itself how members came about.
        given = "members and non-members were given, not drawn at random; "
        texts = [_sentence(text.removeprefix(given)) for text in warnings]
        yield Markup(
            "<b>Members and non-members were given, not drawn at random.</b> If they differ in date, source or topic, "
            "an attack finds that difference too, and the number above may say nothing about training. {}"
        ).format(" ".join(texts))
    else:
        yield from map(_sentence, warnings)
    if notes:
        yield Markup("<b>Notes:</b> {}").format(" ".join(map(_sentence, notes)))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _shown(audited: Audited) -> list[tuple[str, str]]:
    """Returns the attacks and models of the chart and of the first table, the headline first."""
    first = audited.models[0]
    if len(audited.attacks) > 1:
        attacks = first_of_families(audited.attacks, audited.headline)
        return [(attack, first) for attack in attacks]
    return [(audited.headline, model) for model in audited.models[:_MAX_ROWS]]


def _label(audited: Audited, attack: str, model: str) -> str:
    name = "" if attack == "score" else attack_name(attack)
    if len(audited.models) > 1 and model:
        name = f"{name}, model {model}" if name else f"Model {model}"
    return name or "Scores"


def _attacks(audited: Audited) -> document.Section:
    """Returns the section on the strength of the attacks, or of the attack on each model."""
    shown = _shown(audited)
    curves = []
    roc = audited.tables["roc"]
    for attack, model in shown:
        points = roc[(roc["attack"] == attack) & (roc["model"] == model)]
        points = points[(points["fpr"] > 0) & (points["tpr"] > 0)].sort_values("fpr")
        role: charts.Role = "other"
        if not curves:
            role = "headline"
        elif attack == "lira_online":
            role = "lira"
        elif attack == "loss":
            role = "loss"
        elif all(curve.role != "family" for curve in curves):
            role = "family"
        curves.append(
            charts.Curve(
                _label(audited, attack, model),
                role,
                points["fpr"].to_numpy(),
                points["tpr"].to_numpy(),
                audited.tpr(attack, model, audited.fpr),
            )
        )
    chart = charts.roc(curves, fpr=audited.fpr, num_nonmembers=audited.counts[1], key="roc")
    figure = document.Figure(chart, "Higher is better for the attacker.")
    noun = "users" if audited.is_of_users else "texts"
    note = Markup(
        "<b>Members</b> are {} in the training data. A <b>false alarm</b> is a non-member that is called a member. "
        "Thresholds are set on non-members for the rate (FPR); the share of members found is the TPR."
    ).format(noun)
    higher = [fpr for fpr in audited.rates if fpr > audited.fpr][:1]
    rows = [
        document.Row(
            (
                _label(audited, attack, model),
                *(_found(audited, attack, model, fpr) for fpr in (audited.fpr, *higher)),
                numbers.markup(audited.estimate(attack, model, "auc"), FRACTION),
            ),
            is_headline=(attack, model) == shown[0],
        )
        for attack, model in shown
    ]
    columns = [document.Column("Attack" if len(audited.attacks) > 1 else "Scores")]
    for fpr in (audited.fpr, *higher):
        at = numbers.false_alarms(fpr)
        columns.append(document.Column(f"Members found per 100 at {at}", f"found per 100 at {at}"))
    columns.append(document.Column("AUC (guessing: 0.5)", "AUC"))
    caption = f"Small: {_confidence(audited)} intervals."
    if len(audited.attacks) > 1:
        caption = f"The attack that is chosen by rule is first. {caption}"
    table = document.Table(caption, tuple(columns), tuple(rows))
    several = len(audited.attacks) > 1
    title = "How strong is each attack?" if several else "How strong is the attack?"
    if "causal" in audited.tables:
        title = f"{title[:-1]}, without adjustment?"
    return document.Section(
        "attacks", "Attacks", title, (document.FigureWithNotes(figure, (note,)), table)
    )


def _found(audited: Audited, attack: str, model: str, fpr: float) -> document.Text:
    found = audited.tpr(attack, model, fpr)
    return numbers.markup(found) if found.is_known else needs_nonmembers(fpr)


def _users(audited: Audited) -> document.Section:
    groups = audited.tables["groups"]
    first = (groups["attack"] == audited.headline) & (groups["model"] == audited.models[0])
    groups = groups[first].dropna(subset=["score"])
    outside = groups[~groups["member"]]["score"].to_numpy()
    members = groups[groups["member"]].sort_values("score", ascending=False, kind="stable")
    rows = []
    for row in members[:_MAX_USERS].to_dict("records"):
        below = float((outside < row["score"]).mean())
        above = "all" if below == 1 else f"{100 * below:.1f}"
        cells = str(row["user"]), numbers.count(int(row["scores"])), f"{row['score']:.3g}", above
        rows.append(document.Row(cells))
    columns = (
        document.Column("User"),
        document.Column("Texts", "texts"),
        document.Column("Score", "score"),
        document.Column("Higher than, % of non-members", "higher than, % of non-members"),
    )
    caption = f"The members with the highest scores, {len(rows)} of {len(members):,}; groups.csv has all users."
    return document.Section(
        "users",
        "Users",
        "Which users are most exposed?",
        (document.Table(caption, columns, tuple(rows)),),
    )


def _conditions(audited: Audited) -> Iterator[document.Section]:
    """Yields the section on what would change the answer, if the tables have anything to compare it with."""
    by_attack = [
        charts.DotRow(_attacker(attack), found, _role(attack))
        for attack in first_of_families(audited.attacks, audited.headline)[1:]
        if (found := audited.found(attack, audited.fpr)).is_known
    ]
    by_rate = [
        charts.DotRow(f"accepts {numbers.false_alarms(fpr)}", found)
        for fpr in audited.rates
        if fpr != audited.fpr and (found := audited.found(audited.headline, fpr)).is_known
    ]
    groups = [charts.DotGroup("The attacker", (*by_attack, *by_rate))]
    if len(audited.models) > 1:
        found_T = tuple(audited.tpr(audited.headline, m, audited.fpr).value for m in audited.models)
        found = audited.found(audited.headline, audited.fpr)
        row = charts.DotRow(f"each of the {len(found_T)} models", found, "headline", models=found_T)
        groups.append(charts.DotGroup("The model", (row,)))
    groups = [group for group in groups if group.rows]
    head = charts.DotRow(
        f"This audit: {_label(audited, audited.headline, '')}",
        audited.found(audited.headline, audited.fpr),
        "headline",
        "This audit",
    )
    if not (groups and head.found.is_known):
        return
    caption = f"At {numbers.false_alarms(audited.fpr)} unless stated. Lines: {_confidence(audited)} intervals."
    figure = document.Figure(charts.dot_rows(head, groups, key="change"), caption)
    text = (
        "An audit of a file cannot say which texts are exposed, or whether a decision would survive retraining; lm-mia "
        "import of the losses of the models can say more."
    )
    title = "What would change the answer?"
    yield document.Section("change", "What would change it", title, (text, figure))


def _attacker(attack: str) -> str:
    return "sees only the loss" if attack == "loss" else f"uses {attack_name(attack)}"


def _role(attack: str) -> charts.Role:
    return "lira" if attack == "lira_online" else "loss" if attack == "loss" else "family"


# --- Details ----------------------------------------------------------------------------------------------------------


def _all_numbers(audited: Audited) -> Iterator[document.Detail]:
    columns = [
        document.Column("Scores"),
        document.Column("Members", "members"),
        document.Column("Non-members", "non-members"),
        document.Column("Left out", "left out"),
        document.Column("AUC", "AUC"),
        document.Column("Balanced accuracy", "balanced accuracy"),
        *(
            document.Column(f"TPR at {percent(fpr)} FPR", f"TPR at {percent(fpr)} FPR")
            for fpr in audited.rates
        ),
    ]
    points = audited.tables["tpr_at_fpr"]
    exact = {
        (row["attack"], row["model"], float(row["fpr"]))
        for row in points[points["interval"] == "exact"].to_dict("records")
    }
    rows = []
    for row in audited.tables["summary"].to_dict("records"):
        attack, model = str(row["attack"]), str(row["model"])
        cells: list[document.Text] = [_label(audited, attack, model)]
        cells += [numbers.count(int(row[name])) for name in ("members", "nonmembers", "left_out")]
        cells += [
            numbers.fraction(audited.estimate(attack, model, metric))
            for metric in ("auc", "balanced_accuracy")
        ]
        for fpr in audited.rates:
            found = audited.tpr(attack, model, fpr)
            cell = numbers.fraction(found) if found.is_known else needs_nonmembers(fpr)
            is_exact = (attack, model, fpr) in exact and found.is_known
            cells.append(Markup("{} *").format(cell) if is_exact else cell)
        rows.append(document.Row(tuple(cells)))
    caption = (
        f"AUC, largest balanced accuracy, and TPRs at FPRs. Small: {_confidence(audited)} intervals of a bootstrap or, "
        "for a rate that rests on fewer than 10 samples, exact ones (*)."
    )
    auc = audited.tables["summary"]["auc"]
    low, high = (numbers.value(Estimate(float(end)), FRACTION) for end in (auc.min(), auc.max()))
    finding = f"AUC {low}" if low == high else f"AUCs from {low} to {high}"
    many = len(rows) > 1
    finding += f", and TPRs at {plural(len(audited.rates), 'rate')}" + (
        "." if many else "; AUC and accuracy."
    )
    table = document.Table(caption, tuple(columns), tuple(rows))
    yield document.Detail("All numbers", finding, (table,), "d-numbers")


def _privacy(audited: Audited) -> document.Detail:
    table = audited.tables["audit"]
    delta = f"{float(table['delta'].iloc[0]):g}"
    bound = _epsilon(audited)
    if bound is None:
        finding = "No bound on ε: it needs members that were drawn at random before training."
    elif bound.bound > 0:
        finding = f"ε is at least {lower_bound(bound.bound)} ({_confidence(audited)} confidence, δ = {delta})."
    else:
        finding = "No leak could be shown: the result fits ε = 0."
    text = Markup(
        "An <b>estimate</b> is a log ratio of observed rates, at thresholds that were chosen after seeing the result: "
        "it can be larger than the true epsilon, and so can both ends of its interval. It is <b>capped</b> at the "
        "logarithm of the number of members, the largest that they can show. A <b>lower bound</b> is at most the true "
        "epsilon with a confidence of {}, if the members were drawn as stated: {}. The <b>ceiling</b> is this cap, or "
        "the bound that a perfect attack would give."
    ).format(_confidence(audited), _DESIGNS[audited.membership])
    names = ("canaries", "guesses", "correct")
    titles = ("Is a bound", "Ceiling", "Canaries", "Guesses", "Correct", "mu")
    columns = (
        document.Column("Scores"),
        document.Column("Method", "method", is_text=True),
        document.Column("Epsilon", "epsilon"),
        *(document.Column(title, title.lower()) for title in titles),
    )
    rows = [
        document.Row(
            (
                _label(audited, str(row["attack"]), str(row["model"])),
                METHODS[str(row["method"])],
                _epsilon_cell(row),
                "yes" if row["is_bound"] else "no",
                numbers.fraction(Estimate(float(row["ceiling"]))),
                *(_count(row, name) for name in names),
                numbers.fraction(Estimate(float(row["mu"]))),
            ),
            is_headline=bool(row["is_bound"]),
        )
        for row in table.to_dict("records")
    ]
    caption = f"Estimates and lower bounds on epsilon at δ = {delta}; audit.csv has these rows."
    blocks: list[document.Block] = [text]
    blocks += [*_guesses(audited)]
    blocks.append(document.Table(caption, columns, tuple(rows)))
    return document.Detail("Differential privacy", finding, tuple(blocks), "d-privacy")


def _count(row: Mapping[Any, Any], name: str) -> str:
    """Returns the number of canaries, guesses or correct guesses; a canary may be a pair of samples."""
    if pd.isna(row[name]):
        return numbers.MISSING
    count = int(row[name])
    return plural(count, "pair") if name == "canaries" and is_of_pairs(row) else f"{count:,}"


def _epsilon_cell(row: Mapping[Any, Any]) -> Markup:
    """Returns an estimate or a bound with its interval, and whether it is as large as the members can show."""
    cell = numbers.fraction(Estimate(*(float(row[name]) for name in ("epsilon", "low", "high"))))
    return Markup("{} (capped)").format(cell) if is_capped(row) else cell


def _guesses(audited: Audited) -> Iterator[document.Figure]:
    """Yields the chart of the bound by the number of guesses, if there is one."""
    curve = audited.tables["audit_curve"]
    if curve.empty:
        return
    series = []
    for attack, model in _shown(audited):
        points = curve[(curve["attack"] == attack) & (curve["model"] == model)]
        # The attack guesses the samples that it is most certain about: of both classes, or members only.
        best = points.groupby("guesses", sort=True)["epsilon"].max()
        line = tuple(
            charts.LinePoint(float(x), Estimate(float(y)))
            for x, y in zip(best.index.to_numpy(), best.to_numpy(), strict=True)
        )
        role: charts.Role = "other" if series else "headline"
        series.append(charts.Line(_label(audited, attack, model), role, line))
    counts = sorted({point.x for line in series for point in line.points})
    step = max(1, len(counts) // 6)
    ticks = [charts.Tick(x, f"{x:.0f}") for x in counts[::step]]
    if ticks[-1].x != counts[-1]:
        ticks[-1:] = [charts.Tick(counts[-1], f"{counts[-1]:.0f}")]
    chart = charts.lines(
        series,
        ticks=ticks,
        x_title="Number of guesses",
        y_title="Lower bound on epsilon",
        title="Lower bound on epsilon by number of guesses",
        unit=_EPSILON,
        key="guesses",
    )
    table = audited.tables["audit"]
    ceiling = float(table[table["method"] == "one_run"]["ceiling"].max())
    caption = (
        "The confidence is divided among all points, so that the largest of them is a valid bound. A perfect attack "
        f"would reach {ceiling:.2f}."
    )
    yield document.Figure(chart, caption)


def _made(name: str, audited: Audited) -> Iterator[document.Fact]:
    yield document.Fact("File", Markup("<code>{}</code>").format(name))
    how = f"{_DESIGNS[audited.membership]} (--membership={audited.membership})"
    yield document.Fact("Members", how)
    nonmembers = plural(audited.counts[1], "non-member")
    rate = numbers.false_alarms(audited.fpr)
    rule = "the lowest of --fprs, from 1 per 100 on, that allows ten of them among"
    yield document.Fact("Rate", f"{rate}: {rule} {nonmembers}, or the highest")
    draws = int(audited.tables["summary"]["replicates"].max())
    parts = [f"bootstrap, {draws:,} draws"]
    if (audited.tables["tpr_at_fpr"]["interval"] == "exact").any():
        parts.append("exact where a rate rests on fewer than 10 samples")
    parts.append("the report of a workdir has others, from halves of the texts")
    yield document.Fact("Intervals", "; ".join(parts))
    yield document.Fact("Versions", f"lm_mia {provenance.version()}")
    files = Markup(", ").join(Markup("<code>{}.csv</code>").format(n) for n in audited.tables)
    yield document.Fact("Files", files)
