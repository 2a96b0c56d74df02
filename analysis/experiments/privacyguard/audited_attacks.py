"""PrivacyGuard Figures 3 to 6, Tables 1 to 3: LiRA and offline RMIA, with several values of a and few references.

The paper attacks with 7 references (LiRA) and 3 (RMIA). Here they are 8 and 4, since some designs have references in
pairs. With 64 references or more, numbers for claims and tables are means over eight disjoint sets of them.

N: samples with a score, S: those of a class, K: bins, T: targets, H1: all samples, and then each half of them.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import attacks, io, plotting
from analysis.attacks import JackknifedAttack
from analysis.claims.compare import Claim, Estimate, claim_all, claim_equivalent, claim_greater
from analysis.claims.jackknife import Jackknife
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.formatting import percent
from analysis.io import RecipeResults, SweepResults
from lm_mia import stats
from lm_mia.attacks import evaluations
from lm_mia.attacks.requests import reference_parts
from lm_mia.attacks.spec import EPSILON_TPRS, JACKKNIFE_GROUPS, Need, Request, RmiaA, Variant
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import Unavailable

BOUNDS = ("bound_epsilon", "bound_epsilon_if_gaussian")


@dataclasses.dataclass(frozen=True)
class AttackEpsilons:
    """The epsilons of one attack on the targets of a recipe."""

    whole: pd.DataFrame
    """The rows of the attack with the first references."""
    parts_P: Sequence[pd.DataFrame]
    """Those with each part of the references; none if there are no parts."""
    over: str
    """As in `Jackknife`."""
    not_covered: tuple[str, ...]

    def jackknife(self, column: str) -> Jackknife:
        """Returns the mean over targets of an estimate, such as balanced_accuracy, with what its interval needs."""
        whole_TxH1, *parts_PxTxH1 = (
            rows.pivot(index="target", columns="half", values=column).to_numpy(float)
            for rows in (self.whole, *self.parts_P)
        )
        return Jackknife.from_attacks(whole_TxH1, parts_PxTxH1, self.over, self.not_covered)

    def bound(self, column: str) -> np.ndarray:
        """Returns bound_T, one of `BOUNDS` for each target, with the first references."""
        return self.whole.loc[self.whole["half"] == 0, column].to_numpy(float)


def read_epsilons(recipe: RecipeResults, variant: Variant) -> AttackEpsilons:
    """Reads the epsilons of an attack on every target of a recipe.

    Raises:
      Unavailable: there are too few models, or the attack was not made.
    """
    attack, parts = (
        attacks.find_attack(recipe, variant),
        reference_parts(recipe.attackable, variant),
    )
    for used in (parts, ()):
        table = attacks.find_piece(recipe, Request(attack, evaluations.epsilons, used))
        if table is not None:
            table = table if used else table.assign(part=0)
            return _to_epsilons(table, variant.references, len(used))
    raise Unavailable(
        f"{recipe.name}: there are no epsilons of {variant.attack} with {variant.references} references; run lm-mia "
        "attack with this figure in figures (its needs must have epsilons=True)"
    )


def _to_epsilons(table: pd.DataFrame, references: int, parts: int) -> AttackEpsilons:
    whole, *parts_P = (rows for _, rows in table.groupby("part"))
    sets = f"{parts} sets of " if parts == JACKKNIFE_GROUPS else ""
    return AttackEpsilons(
        whole,
        parts_P,
        f"{whole['target'].nunique()} targets"
        + (f", {sets}{references} references" if parts else "")
        + " and the samples",
        () if parts else ("the references",),
    )


RECIPE = "epochs-140M"
DEFAULT_A = 0.3
"""The parameter a of offline RMIA that is the default of PrivacyGuard."""


@dataclasses.dataclass(frozen=True)
class FewReferences:
    """An attack with few references."""

    name: str
    most_references: int | None
    """None: all."""
    rmia_a: RmiaA | None = None
    """As in `spec.AttackSpec`."""

    def read(self, recipe: RecipeResults) -> JackknifedAttack:
        """Reads the attack on every target, with what its interval needs; raises as `attacks.read_jackknife`."""
        return attacks.read_jackknife(recipe, self.variant(recipe))

    def epsilons(self, recipe: RecipeResults) -> AttackEpsilons:
        """Reads the epsilons of the attack on every target; raises as `read_epsilons`."""
        return read_epsilons(recipe, self.variant(recipe))

    def sample_scores(
        self, recipe: RecipeResults
    ) -> Iterator[tuple[ModelSeeds, np.ndarray, np.ndarray]]:
        """Yields (target, member_N2, score_N2), as `attacks.read_sample_scores`."""
        return attacks.read_sample_scores(recipe, self.variant(recipe))

    def variant(self, recipe: RecipeResults) -> Variant:
        """Returns the attack with the references of a recipe."""
        return Variant(self.name, self.count(recipe), rmia_a=self.rmia_a)

    def count(self, recipe: RecipeResults) -> int:
        """Returns the number of references."""
        present = len(recipe.references)
        return present if self.most_references is None else min(self.most_references, present)


LIRA = {
    "Online": FewReferences("lira_online", 8),
    "Offline": FewReferences("lira_offline", 8),
}
"""Label -> attack."""
LIRA_WITH_ALL = {
    label: dataclasses.replace(attack, most_references=None) for label, attack in LIRA.items()
}
"""The same with all references of the recipe."""
RMIA = {
    f"a = {DEFAULT_A:g}": FewReferences("rmia_offline", 4, DEFAULT_A),
    "tuned a": FewReferences("rmia_offline", 4, "tuned"),
}
"""Label -> attack."""
LIRA_NEED = Need((RECIPE,), ("lira_online", "lira_offline"), most_references=8, jackknife=True)
LIRA_WITH_ALL_NEED = dataclasses.replace(LIRA_NEED, most_references=None)
RMIA_NEED = Need(
    (RECIPE,),
    ("rmia_offline",),
    most_references=4,
    rmia_as=(DEFAULT_A, "tuned"),
    jackknife=True,
)
"""What figures need to read these attacks; they add what else they need."""


def read_attacks(
    recipe: RecipeResults, by_label: Mapping[str, FewReferences]
) -> dict[str, JackknifedAttack]:
    """Reads several attacks: label -> attack."""
    return {label: attack.read(recipe) for label, attack in by_label.items()}


_BINS = 40
_TAIL = 0.005
"""The share of the scores beyond each end of a histogram."""
_MARGIN = 0.01
_FNR = 0.05

FIG03_STATEMENTS = ("Online and offline, members have higher scores than non-members.",)
FIG04_STATEMENTS = (
    "With 8 references, online LiRA has a higher AUC than offline LiRA.",
    "With all references, online LiRA has a higher AUC than offline LiRA.",
)


def draw_fig03(recipes: SweepResults) -> Drawing:
    """Draws histograms of the scores of online and of offline LiRA under one target."""
    recipe = recipes[RECIPE]
    panels = {
        f"{label} LiRA": _first_target_scores(recipe, attack) for label, attack in LIRA.items()
    }
    figure, data, outside = _draw_histograms(panels, "Membership score of LiRA")
    shifts = [
        claim_greater("", f"AUC of {label.lower()} LiRA", attack.auc.estimate(), 0.5)
        for label, attack in read_attacks(recipe, LIRA).items()
    ]
    claims = (claim_all(FIG03_STATEMENTS[0], shifts),)
    count = LIRA["Online"].count(recipe)
    notes = (
        f"Scores under the first target, with the first {count} references. The online score is the log likelihood "
        "ratio. The offline score is minus the log of the probability of an even lower loss under the references that "
        "were not trained on the sample.",
        outside,
        unsupported_note(claims),
    )
    return Drawing(data, figure, claims=claims, notes=notes)


def draw_fig04(recipes: SweepResults) -> Drawing:
    """Draws the ROC curves of online and of offline LiRA."""
    recipe = recipes[RECIPE]
    lira = read_attacks(recipe, LIRA)
    curves = [
        plotting.RocCurve("Online LiRA", lira["Online"].result, plotting.BLUE),
        plotting.RocCurve("Offline LiRA", lira["Offline"].result, plotting.VERMILLION, "--"),
    ]
    by_count = lira, read_attacks(recipe, LIRA_WITH_ALL)
    claims = tuple(
        claim_greater(
            statement,
            f"AUC of online minus offline LiRA with {attacks['Online'].result.references} references",
            (attacks["Online"].auc - attacks["Offline"].auc).estimate(),
        )
        for statement, attacks in zip(FIG04_STATEMENTS, by_count, strict=True)
    )
    return Drawing(
        plotting.panels_frame([("", curves)]),
        _draw_roc(curves),
        claims=claims,
        ours={
            f"{label.lower()}_auc": plotting.auc_mean_std(attack.result)
            for label, attack in lira.items()
        },
        notes=(
            f"With the first {lira['Online'].result.references} references. Left: both axes are logarithmic, to show "
            "low false positive rates; right: both are linear.",
            plotting.curves_note(curves),
            unsupported_note(claims),
        ),
    )


FIG05_STATEMENTS = ("With a = 0.3 and with a tuned a, offline RMIA has the same AUC.",)
FIG06_STATEMENTS = ("With a tuned a, the lowest scores separate non-members from members better.",)


def draw_fig05(recipes: SweepResults) -> Drawing:
    """Draws the ROC curves of offline RMIA, with the default a and with a tuned one."""
    recipe = recipes[RECIPE]
    rmia = read_attacks(recipe, RMIA)
    (default, at_default), (tuned, at_tuned) = rmia.items()
    curves = [
        plotting.RocCurve(f"RMIA, {default}", at_default.result, plotting.GREEN),
        plotting.RocCurve(f"RMIA, {tuned}", at_tuned.result, plotting.ORANGE, "--"),
    ]
    difference = (at_tuned.auc - at_default.auc).estimate()
    what = f"AUC with a tuned a minus with a = {DEFAULT_A:g}"
    claims = (claim_equivalent(FIG05_STATEMENTS[0], what, difference, _MARGIN),)
    return Drawing(
        plotting.panels_frame([("", curves)]),
        _draw_roc(curves),
        claims=claims,
        ours={
            "default_auc": plotting.auc_mean_std(at_default.result),
            "tuned_auc": plotting.auc_mean_std(at_tuned.result),
        },
        notes=(
            f"With the first {at_default.result.references} references, of which only those that were not trained on a "
            f"sample are used, and {attacks.default_rmia_samples(recipe):,} samples to compare with. Left: both axes "
            "are logarithmic, to show low false positive rates; right: both are linear.",
            f"With these references, the tuned a is {at_tuned.result.rmia_a:g}.",
            plotting.curves_note(curves),
            unsupported_note(claims),
        ),
    )


def draw_fig06(recipes: SweepResults) -> Drawing:
    """Draws histograms of the scores of offline RMIA under one target, with the default a and with a tuned one."""
    recipe = recipes[RECIPE]
    panels = {
        f"RMIA, {label}": _first_target_scores(recipe, attack) for label, attack in RMIA.items()
    }
    figure, data, outside = _draw_histograms(panels, "Membership score of RMIA")
    default, tuned = (_tnr(recipe, attack) for attack in RMIA.values())
    what = f"TNR at an FNR of {percent(_FNR)}, with a tuned a minus with a = {DEFAULT_A:g}"
    claims = (claim_greater(FIG06_STATEMENTS[0], what, (tuned - default).estimate()),)
    count = next(iter(RMIA.values())).count(recipe)
    notes = (
        f"Scores under the first target, with the first {count} references. The score of a sample is the share of "
        "samples whose ratio of the probability under the target to the mean probability under the references is at "
        "most that of the sample.",
        outside,
        unsupported_note(claims),
    )
    return Drawing(data, figure, claims=claims, notes=notes)


def _tnr(recipe: RecipeResults, attack: FewReferences) -> Jackknife:
    """Returns the mean over targets of the TNR at an FNR of `_FNR`, with its values on halves of the samples."""
    group_N2 = stats.sample_groups(recipe.attacked.document_N)
    rows = []
    for _, member_N2, score_N2 in attack.sample_scores(recipe):
        # With the signs reversed, non-members take the place of members.
        whole = stats.tpr_at_fpr(-score_N2, ~member_N2, [_FNR]).tpr_TxF
        halves = stats.rates_of_halves(-score_N2, ~member_N2, group_N2, [_FNR])[1]
        rows.append(np.concatenate([whole[0], halves[0, :, 0]]))
    value_Tx1xH1 = np.array(rows)[:, None]
    over = f"{len(rows)} targets and the samples"
    return Jackknife.from_targets(value_Tx1xH1, over, ("the references",))


def _first_target_scores(
    recipe: RecipeResults, attack: FewReferences
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (member_N, score_N) of an attack on the first target, without samples that have no score."""
    _, member_N2, score_N2 = next(attack.sample_scores(recipe))
    has_score_N2 = ~np.isnan(score_N2)
    return member_N2[has_score_N2], score_N2[has_score_N2]


def _draw_histograms(
    panels: Mapping[str, tuple[np.ndarray, np.ndarray]], label: str
) -> tuple[Figure, pd.DataFrame, str]:
    """Draws the shares of members and of non-members by score, a panel per attack.

    Args:
      panels: title -> (member_N, score_N).
      label: the label of the horizontal axes.

    Returns:
      The figure, rows (panel, class, low, high, share) of the bins, and a note on scores outside the panels.
    """
    figure = plotting.new_figure(10.4, 4.2)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    frames, outside = [], []
    for axes, (title, (member_N, score_N)) in zip(grid, panels.items(), strict=True):
        low, high = np.quantile(score_N, [_TAIL, 1 - _TAIL])
        edges_K1 = np.linspace(low, high, _BINS + 1)
        outside.append(np.mean((score_N < low) | (score_N > high)))
        for name, is_member, color, dash in plotting.CLASSES:
            class_S = score_N[member_N == is_member]
            share_K = np.histogram(class_S, edges_K1)[0] / max(len(class_S), 1)
            axes.stairs(share_K, edges_K1, color=color, linestyle=dash, label=name, linewidth=1.6)
            frames.append(
                pd.DataFrame({"low": edges_K1[:-1], "high": edges_K1[1:], "share": share_K}).assign(
                    panel=title, **{"class": name}
                )
            )
        axes.set(title=title, xlabel=label, xlim=(low, high), ylim=(0, None))
        plotting.use_percent_axis(axes)
    grid[0].set_ylabel("Share of the class in each bin")
    grid[0].legend(frameon=False)
    note = f"At most {percent(max(outside))} of the scores are outside a panel."
    return figure, pd.concat(frames, ignore_index=True), note


def _draw_roc(curves: Sequence[plotting.RocCurve]) -> Figure:
    figure = plotting.new_figure(10.4, 4.6)
    low, whole = figure.subplots(1, 2)
    plotting.draw_roc(low, curves, "Low false positive rates")
    plotting.draw_roc(whole, curves, "All false positive rates")
    whole.set(xscale="linear", yscale="linear", xlim=(0, 1), ylim=(0, 1))
    for axis in (whole.xaxis, whole.yaxis):  # linear scales have formatters of their own
        axis.set_major_formatter(lambda share, _: percent(share))
    return figure


_HEADINGS = (
    *(f"Epsilon, {percent(tpr)} TPR" for tpr in EPSILON_TPRS),
    "AUC",
    "Accuracy",
    "Bound",
    "If Gaussian",
)
_LOSSES = {"member_loss_nats": "Training loss", "nonmember_loss_nats": "Held-out loss"}


def draw_tab01(recipes: SweepResults) -> Drawing:
    """Draws a table with the training and the held-out loss of the target and of each reference."""
    recipe = recipes[RECIPE]
    count = LIRA["Online"].count(recipe)
    names = [str(recipe.targets[0]), *map(str, recipe.references[:count])]
    labels = ["Target", *(f"Reference {k}" for k in range(1, count + 1))]
    losses = io.read_mean_losses(recipe)
    data = pd.DataFrame({"label": labels, "model": names}).join(losses, on="model")
    table = pd.DataFrame(
        {heading: [f"{loss:.3f}" for loss in data[column]] for column, heading in _LOSSES.items()},
        index=pd.Index(labels, name="nats per token"),
    )
    ours = {
        f"{part}_{k}": (float(loss), math.nan)
        for part, column in zip(("train", "test"), _LOSSES, strict=True)
        for k, loss in enumerate(data[column])
    }
    gap = data["nonmember_loss_nats"] - data["member_loss_nats"]
    notes = (
        f"Losses are means over samples at the end of training. The held-out loss is that of the {recipe.samples:,} "
        "samples of the population that a model was not trained on.",
        f"It exceeds the training loss by {gap.min():.3f} to {gap.max():.3f}.",
    )
    return Drawing(data, table=table, ours=ours, not_comparable=frozenset(ours), notes=notes)


TAB02_STATEMENTS = ("Online LiRA has a higher epsilon at a TPR of 1% than offline LiRA.",)
TAB03_STATEMENTS = (
    "With a = 0.3, offline RMIA with 4 references has a higher AUC than offline LiRA with 8.",
    "With a tuned a, offline RMIA with 4 references has a higher AUC than offline LiRA with 8.",
)


def draw_tab02(recipes: SweepResults) -> Drawing:
    """Draws a table of online and of offline LiRA, with few and with all references."""
    recipe = recipes[RECIPE]
    few, every = ([*_Row.read(recipe, attacks)] for attacks in (LIRA, LIRA_WITH_ALL))
    online, offline = few
    difference = online.epsilon() - offline.epsilon()
    claims = (
        claim_greater(
            TAB02_STATEMENTS[0],
            f"Epsilon with {online.references} references, online minus offline",
            difference.estimate(),
        ),
    )
    rows = few if online.references == every[0].references else [*few, *every]
    return _result(rows, [("online", online), ("offline", offline)], claims, recipe)


def draw_tab03(recipes: SweepResults) -> Drawing:
    """Draws a table of offline RMIA, with the default a and with a tuned one."""
    recipe = recipes[RECIPE]
    lira = LIRA["Offline"]
    lira_auc = lira.read(recipe).auc
    rows = [*_Row.read(recipe, RMIA)]
    claims = tuple(
        claim_greater(
            statement,
            f"AUC of RMIA with {row.references} references minus offline LiRA with {lira.count(recipe)}",
            (row.auc - lira_auc).estimate(),
        )
        for statement, row in zip(TAB03_STATEMENTS, rows, strict=True)
    )
    keyed = [*zip(("default", "tuned"), rows, strict=True)]
    return _result(rows, keyed, claims, recipe)


@dataclasses.dataclass(frozen=True)
class _Row:
    """An attack in a table."""

    label: str
    references: int
    auc: Jackknife
    epsilons: AttackEpsilons

    @classmethod
    def read(cls, recipe: RecipeResults, by_label: Mapping[str, FewReferences]) -> Iterator["_Row"]:
        """Yields the rows of attacks."""
        for label, attack in by_label.items():
            yield cls(label, attack.count(recipe), attack.read(recipe).auc, attack.epsilons(recipe))

    def epsilon(self, tpr: float = EPSILON_TPRS[0]) -> Jackknife:
        """Returns the empirical epsilon at a TPR."""
        return self.epsilons.jackknife(f"epsilon_at_tpr_{tpr:g}")

    def estimates(self) -> dict[str, Estimate]:
        """Returns the estimates of the row: name of `_HEADINGS` -> estimate."""
        numbers = {f"epsilon_at_tpr_{tpr:g}": self.epsilon(tpr) for tpr in EPSILON_TPRS}
        numbers |= {"auc": self.auc, "accuracy": self.epsilons.jackknife("balanced_accuracy")}
        return {name: number.estimate() for name, number in numbers.items()}


def _result(
    rows: Sequence[_Row],
    published: Sequence[tuple[str, _Row]],
    claims: tuple[Claim, ...],
    recipe: RecipeResults,
) -> Drawing:
    """Draws the table; ``published`` has the first part of the keys of published numbers, and their attack."""
    data, cells = [], []
    for row in rows:
        values: dict[str, object] = {"attack": row.label, "references": row.references}
        texts = []
        for name, estimate in row.estimates().items():
            ends = {f"{name}_low": estimate.low, f"{name}_high": estimate.high}
            values |= {name: estimate.value, **ends}
            texts.append(_with_ends(estimate, digits=2 if name.startswith("epsilon") else 3))
        for name in BOUNDS:
            bound_T = row.epsilons.bound(name)
            values |= {f"{name}_target_{t}": bound for t, bound in enumerate(bound_T)}
            texts.append(f"{bound_T[0]:.2f}")
        data.append(values)
        cells.append(texts)
    ours = {}
    for key, row in published:
        estimates = row.estimates()
        epsilon = estimates[f"epsilon_at_tpr_{EPSILON_TPRS[0]:g}"]
        ours |= {f"{key}_epsilon_low": epsilon.low, f"{key}_epsilon_high": epsilon.high}
        ours |= {f"{key}_{name}": estimates[name].value for name in ("auc", "accuracy")}
    labels = [f"{row.label}, {row.references}" for row in rows]
    table = pd.DataFrame(cells, pd.Index(labels, name="attack, references"), [*_HEADINGS])
    a, members = recipe.config.attack, recipe.samples
    delta_text = np.format_float_scientific(a.delta, trim="-", exp_digits=1)
    shown = (
        f"Means over targets, with 95% intervals over {rows[0].epsilons.over}"
        f"{'; they hold the references fixed' * bool(rows[0].epsilons.not_covered)}. Epsilon at a TPR is an estimate, "
        f"not a bound: ln((TPR - delta) / FPR) with delta = {delta_text}, at most ln({members:,}) = "
        f"{math.log(members):.2f}, its value without false positives.",
        f"At a TPR of 1%, only about {0.01 * members:.0f} members and few non-members are above the threshold, so that "
        "single non-members matter; the paper has 250 members there.",
        "Accuracy is the largest balanced accuracy over all thresholds.",
        f"The bound is the one-run bound of the first target, valid with a confidence of {percent(1 - a.alpha)}: no "
        "mechanism with a smaller epsilon explains its scores, where neighbors differ by replacing a sample. The last "
        "column holds for Gaussian mechanisms only.",
        unsupported_note(claims),
    )
    return Drawing(
        pd.DataFrame(data),
        table=table,
        claims=claims,
        ours={key: (number, math.nan) for key, number in ours.items()},
        notes=shown,
    )


def _with_ends(estimate: Estimate, digits: int) -> str:
    if not estimate.has_interval:
        return f"{estimate.value:.{digits}f}"
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f}, {estimate.high:.{digits}f})"


EXPERIMENTS = {
    "privacyguard_fig03_scores": Experiment(
        statements=FIG03_STATEMENTS,
        draw=draw_fig03,
        reads=(LIRA_NEED, dataclasses.replace(LIRA_NEED, jackknife=False, sample_scores=True)),
    ),
    "privacyguard_fig04_roc": Experiment(
        statements=FIG04_STATEMENTS,
        draw=draw_fig04,
        reads=(LIRA_NEED, LIRA_WITH_ALL_NEED),
    ),
    "privacyguard_fig05_rmia_roc": Experiment(
        statements=FIG05_STATEMENTS,
        draw=draw_fig05,
        reads=(RMIA_NEED,),
    ),
    "privacyguard_fig06_rmia_scores": Experiment(
        statements=FIG06_STATEMENTS,
        draw=draw_fig06,
        reads=(dataclasses.replace(RMIA_NEED, jackknife=False, sample_scores=True),),
    ),
    "privacyguard_tab01_models": Experiment(
        statements=(),
        draw=draw_tab01,
    ),
    "privacyguard_tab02_lira": Experiment(
        statements=TAB02_STATEMENTS,
        draw=draw_tab02,
        reads=(
            dataclasses.replace(LIRA_NEED, epsilons=True),
            LIRA_WITH_ALL_NEED,
            dataclasses.replace(LIRA_WITH_ALL_NEED, jackknife=False, epsilons=True),
        ),
    ),
    "privacyguard_tab03_rmia": Experiment(
        statements=TAB03_STATEMENTS,
        draw=draw_tab03,
        reads=(dataclasses.replace(RMIA_NEED, epsilons=True), LIRA_NEED),
    ),
}
