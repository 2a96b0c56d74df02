"""An attack of your own against those of lm_mia: equal references, paired intervals, a noise check and the cost.

A user's file makes the experiment, and may define the attack, too (docs/how-to/compare-attack.md):

    EXPERIMENT = attack_comparison.against(f"{__file__}:my_attack")

All attacks are made on the same targets of every recipe, with the same references and on the same samples, so that the
differences are paired. Intervals cover targets, references and samples.

    attack_check.csv   AUC of each attack of the config with shuffled labels, and its processor time

R: references, N: the samples that are used.
"""

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import attacks, plotting
from analysis.claims.compare import Estimate, claim_greater
from analysis.experiment import Drawing, Experiment, unsupported_note
from analysis.io import RecipeResults, SweepResults
from lm_mia import stats, user_files
from lm_mia.attacks import registry, user_code
from lm_mia.attacks.declarations import Column, Table, common
from lm_mia.attacks.designs import model_design
from lm_mia.attacks.inputs import FitInputs, open_inputs
from lm_mia.attacks.registry import attack_name
from lm_mia.attacks.spec import Need, Study, StudyNeed, Variant
from lm_mia.attacks.studies import StudyView
from lm_mia.attacks.table_sets import Write
from lm_mia.data import subsets
from lm_mia.errors import Unavailable
from lm_mia.printing import plural

BUILT_IN = ("lira_online", "shrunk", "stacked", "rmia", "reference_calibrated", "loss")
CHECK = "attack_check.csv"
_SHUFFLES = 20
_FEWEST_REFERENCES = 4
_SCORES_OF_COST = 1e6


def compute(view: StudyView, write: Write, *, attack_settings: Mapping[str, Any]) -> None:
    """Computes the AUC with shuffled labels, and the processor time, of each attack of the config on one model.

    Labels of the first block of samples, and of the references with them, are shuffled, so that nothing but chance
    tells members from non-members.

    Raises:
      Unavailable: there are too few models.
    """
    roles = view.roles
    targets = [*map(subsets.reference, roles.targets[:1])] or view.replicas[:1]
    references = [*map(subsets.reference, roles.references)]
    if not targets or len(references) < _FEWEST_REFERENCES:
        raise Unavailable(
            f"{len(targets)} models to attack and {len(references)} references are present, but at least 1 and "
            f"{_FEWEST_REFERENCES} are needed; run lm-mia run with larger --config.attack.targets and "
            "--config.attack.references"
        )
    names = attack_settings["attacks"]
    statistics = registry.statistics_of(names)
    design = model_design(view.store, view.present)
    store = view.with_statistics(statistics)
    inputs = open_inputs(store, view.attacked, targets, references, statistics, design=design)
    rows = []
    for name in names:
        auc_S, seconds, scores = [], 0.0, 0
        for shuffle in range(_SHUFFLES):
            noise = inputs.with_shuffled_labels(shuffle)
            began = time.thread_time()
            fitted = registry.fit_attack(name, FitInputs(noise), attack_settings)
            score_1xN = fitted(next(noise.blocks()))
            seconds += time.thread_time() - began
            scores += score_1xN.size
            member_1xN = noise.target_member_TxN2[:, : score_1xN.shape[1]]
            auc_S.append(float(stats.auc(score_1xN, member_1xN).auc_T[0]))
        rows.append(
            {"attack": user_code.short(name), "shuffles": _SHUFFLES}
            | {"auc_mean": np.mean(auc_S), "auc_se": np.std(auc_S, ddof=1) / np.sqrt(_SHUFFLES)}
            | {"seconds_per_million_scores": seconds / scores * _SCORES_OF_COST}
        )
    write(CHECK, pd.DataFrame(rows))


STUDY = Study(
    "attack_check",
    compute,
    tables=(
        Table(
            CHECK,
            "Written by `lm-mia attack` for experiments that compare an attack of yours with those of lm_mia. Each row "
            "is an attack of `attack.attacks`, with all references, on the first target (or replica) and the first "
            "block of samples.",
            {
                **common("attack"),
                "shuffles": Column("count", "number of times that membership labels were shuffled"),
                "auc_mean": Column("fraction", "mean AUC with shuffled labels: 0.5 up to chance"),
                "auc_se": Column("fraction", "standard error of this mean, over the shuffles"),
                "seconds_per_million_scores": Column(
                    "none",
                    "processor time in seconds to fit the attack and to compute a million scores, on the machine that "
                    "computed the table",
                ),
            },
            key=("attack",),
        ),
    ),
)


def against(attack: str, built_in: Sequence[str] = BUILT_IN) -> Experiment:
    """Returns the experiment that compares an attack with built-in ones.

    Args:
      attack: ``FILE.py:NAME`` of your attack, as in attack.attacks.
      built_in: the names of attacks of lm_mia.
    """
    own = user_files.absolute(attack)
    statements = tuple(_statement(own, name) for name in built_in)
    return Experiment(
        title=f"{attack_name(own).capitalize()} against the attacks of lm_mia",
        draw=functools.partial(_draw, own, tuple(built_in)),
        reads=(
            Need(("*",), (own, *built_in), jackknife=True),
            StudyNeed(("*",), STUDY),
        ),
        statements=statements,
    )


def _statement(own: str, name: str) -> str:
    return f"{attack_name(own).capitalize()} has a higher AUC than {attack_name(name)}."


def _draw(own: str, built_in: Sequence[str], recipes: SweepResults) -> Drawing:
    attacked = [r for r in recipes.recipes if r.config.attack.targets]
    if not attacked:
        raise Unavailable(
            "no recipe has targets with training subsets of their own; run lm-mia run with --config.attack.targets=8"
        )
    attacked = attacks.with_equal_models(attacked)
    count = attacks.common_references(attacked)
    rows, claims, notes = [], [], []
    for recipe in attacked:
        focus = recipe.config.attack.focus
        of_own = attacks.read_jackknife(recipe, Variant(own, count))
        for name in (own, *built_in):
            of_attack = attacks.read_jackknife(recipe, Variant(name, count))
            difference = (of_own.auc - of_attack.auc).estimate() if name != own else None
            rows.append(
                {"recipe": recipe.name, "attack": attack_name(name)}
                | _columns("auc", of_attack.auc.estimate())
                | _columns("tpr", of_attack.tpr(focus).estimate())
                | {"fpr": focus}
                | _columns("own_minus_this", difference)
            )
            if difference is not None:
                where = f" on {recipe.name}" if len(attacked) > 1 else ""
                statement = _statement(own, name).removesuffix(".") + f"{where}."
                claims.append(claim_greater(statement, "Difference of the AUCs", difference))
        notes.append(_check_note(recipe, own))
    data = pd.DataFrame(rows)
    over = f"{len(attacked[0].targets)} targets of each of {plural(len(attacked), 'recipe')}"
    note = (
        f"All attacks are made on {over}, each with the same {count} references and on the same samples; intervals are "
        "of paired differences over targets, references and samples."
    )
    return Drawing(
        data,
        _figure(data),
        claims=tuple(claims),
        notes=(note, *notes, unsupported_note(claims)),
    )


def _columns(name: str, estimate: Estimate | None) -> dict[str, float]:
    if estimate is None:
        return {}
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _check_note(recipe: RecipeResults, own: str) -> str:
    """Says what the attack shows of noise, and what it costs."""
    table = recipe.view.table(CHECK).set_index("attack")
    if user_code.short(own) not in table.index:
        return (
            f"{recipe.name}: the noise check and the cost are those of attack.attacks, which lacks the attack; add it: "
            f"--config.attack.attacks={','.join((*recipe.config.attack.attacks, own))}"
        )
    at: Any = table.loc[user_code.short(own)]
    cost = ", ".join(
        f"{name} {seconds:.2g}"
        for name, seconds in table["seconds_per_million_scores"].sort_values().items()
    )
    distance = abs(at["auc_mean"] - 0.5) / at["auc_se"] if at["auc_se"] > 0 else 0.0
    verdict = (
        "as it must be"
        if distance < 4
        else "so it sees the labels, and its other numbers are wrong"
    )
    return (
        f"{recipe.name}: with shuffled labels the attack has an AUC of {at['auc_mean']:.3f} ± {at['auc_se']:.3f} "
        f"(standard error), {verdict}. Processor seconds for a million scores: {cost}."
    )


def _figure(data: pd.DataFrame) -> Figure:
    recipes = [*data["recipe"].unique()]
    names = [*data["attack"].unique()]
    figure = plotting.new_figure(10.4, 1.8 + 0.28 * len(names) * len(recipes))
    left, right = figure.subplots(1, 2, sharey=True)
    height = 0.8 / len(recipes)
    for r, recipe in enumerate(recipes):
        rows = data[data["recipe"] == recipe]
        at = np.arange(len(names))[::-1] - (r - (len(recipes) - 1) / 2) * height
        for axes, name in ((left, "auc"), (right, "own_minus_this")):
            value = rows[name].to_numpy(float)
            margin = np.abs(rows[[f"{name}_low", f"{name}_high"]].to_numpy(float).T - value)
            axes.errorbar(value, at, xerr=margin, fmt="o", capsize=2.5, label=recipe)
    left.set_yticks(np.arange(len(names))[::-1], names)
    left.set(xlabel="AUC, mean over targets")
    right.axvline(0, color=plotting.GREY, linestyle=":")
    right.set(xlabel=f"AUC of {names[0]} minus that of the attack")
    if len(recipes) > 1:
        left.legend(fontsize=9)
    return figure
