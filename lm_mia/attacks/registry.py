"""The attacks: how each computes membership scores from losses, and what it needs for that.

An attack is a function ``score(block, *, SETTINGS) -> score_TxC``, larger for members, NaN where there is no score. Its
keyword-only parameters are the settings of `lm_mia.config.Attack` that it reads. One that must know all samples before
it can score any has a second function, ``fit(inputs, *, SETTINGS)``, whose result is the second argument of ``score``.
What several attacks compute in the same way, they get from ``block.once`` and ``inputs.once``.

T: attacked models, R: references, C: samples of a block, K: covariates, Z: drawn samples.
"""

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import numpy as np

from lm_mia import stats, user_files
from lm_mia.attacks import user_code
from lm_mia.attacks.inputs import Block, FitInputs
from lm_mia.attacks.settings import read_settings, settings_of
from lm_mia.config import Attack as AttackSettings
from lm_mia.config import Config, has_no_references, starts_from_checkpoint
from lm_mia.config.schema import Statistic
from lm_mia.errors import UserError


@dataclasses.dataclass(frozen=True)
class Attack:
    """An entry of the registry."""

    score: Callable[..., np.ndarray]
    label: str
    """The name of the attack in figures and on pages."""
    fit: Callable[..., Any] | None = None
    sum_over_samples: Callable[..., Callable[[Block], np.ndarray] | None] | None = None
    """In place of ``fit``: returns, for the settings, a function whose sum over all blocks is the second argument of
    ``score``, or None if nothing need be summed. All attacks share one pass over the samples for such sums."""
    uses_references: bool = True
    statistics: tuple[str, ...] = ()
    """The statistics of each sample, in addition to the observed one, that the attacked models must be scored for."""
    uses_base: bool = False
    """Whether the attack needs the model that the attacked ones were fine-tuned from."""
    uses_texts: bool = False
    """Whether it needs properties of the texts, which imported losses may lack."""
    code: str = ""
    """What stands for the code of a user's attack in keys; empty for those of lm_mia."""

    @property
    def settings(self) -> tuple[str, ...]:
        """The names of the settings that the attack reads."""
        return settings_of(*(f for f in (self.score, self.fit, self.sum_over_samples) if f))


@dataclasses.dataclass(frozen=True)
class FittedAttack:
    """An attack that is ready to score blocks."""

    attack: Attack
    settings: Mapping[str, Any]
    fit: Any
    """The result of ``fit`` or of ``sum_over_samples``; None if the attack has neither."""

    def __call__(self, block: Block) -> np.ndarray:
        """Returns score_TxC, NaN where the block has no score because of the design."""
        has_fit = self.attack.fit or self.attack.sum_over_samples
        inputs = (block, self.fit) if has_fit else (block,)
        score_TxC = self.attack.score(*inputs, **read_settings(self.attack.score, self.settings))
        if block.has_score_TxC is None or not self.attack.uses_references:
            return score_TxC
        return np.where(block.has_score_TxC, score_TxC, np.nan)


class Task(NamedTuple):
    """An attack with some references and with values of settings."""

    attack: Attack
    inputs: FitInputs
    settings: Mapping[str, Any]


def fit_attacks(tasks: Sequence[Task]) -> list[FittedAttack]:
    """Fits attacks on the same samples.

    Takes one pass over the samples if some attacks need sums over them, and one for each number of drawn samples.
    """
    summed: list[Callable[[Block], np.ndarray] | None] = []
    for attack, _, settings in tasks:
        function = attack.sum_over_samples
        summed.append(function(**read_settings(function, settings)) if function else None)
    totals: list[Any] = [None] * len(tasks)
    if any(summed):
        for block in tasks[0].inputs.source.blocks():
            # Attacks with the same references share the block and what they compute from it.
            blocks = {id(t.inputs): block.with_references(t.inputs.index_R) for t in tasks}
            for i, (task, function) in enumerate(zip(tasks, summed, strict=True)):
                if function:
                    part = function(blocks[id(task.inputs)])
                    totals[i] = part if totals[i] is None else totals[i] + part
    return [
        FittedAttack(task.attack, task.settings, _fit(task) if task.attack.fit else total)
        for task, total in zip(tasks, totals, strict=True)
    ]


def _fit(task: Task) -> Any:
    """Returns the result of ``fit``; raises UserError if that of a user's attack fails."""
    attack, inputs, settings = task
    assert attack.fit is not None
    try:
        return inputs.once(attack.fit, **read_settings(attack.fit, settings))
    except Exception as error:
        if not attack.code or isinstance(error, UserError):
            raise
        raise UserError(
            f"attack.attacks: the function fit of {attack.label} fails with {user_code.describe(error)}; correct it, "
            "or leave the attack out of attack.attacks"
        ) from error


def fit_attack(name: str, inputs: FitInputs, settings: Mapping[str, Any]) -> FittedAttack:
    """Fits the attack of a name; other arguments as the fields of `Task`."""
    [fitted] = fit_attacks([Task(find(name), inputs, settings)])
    return fitted


# LiRA


def pooled_scatter(
    *, variance: str, finite_population: bool
) -> Callable[[Block], np.ndarray] | None:
    """Returns what pooled variances are estimated from, scatter_2x2 of a block; None for variances per sample."""
    if variance == "per_sample":
        return None

    def scatter(block: Block) -> np.ndarray:
        return stats.within_sample_scatter(
            block.once(gaussians, finite_population=finite_population)
        )

    return scatter


def lira_online(
    block: Block, scatter_2x2: np.ndarray | None, *, finite_population: bool
) -> np.ndarray:
    """Returns the log likelihood ratio of the loss under the IN and the OUT distribution of each sample."""
    return stats.lira_from_gaussians(
        block.loss_TxC, _gaussians(block, scatter_2x2, finite_population)
    )


def lira_offline(
    block: Block, scatter_2x2: np.ndarray | None, *, finite_population: bool
) -> np.ndarray:
    """Returns the negated log p-value of the loss under the OUT distribution of each sample."""
    fitted = _gaussians(block, scatter_2x2, finite_population)
    return stats.lira_from_gaussians(block.loss_TxC, fitted, offline=True)


def separation(
    block: Block, scatter_2x2: np.ndarray | None, *, finite_population: bool
) -> np.ndarray:
    """Returns separation_C, (OUT mean - IN mean) / sqrt((IN variance + OUT variance) / 2) of the reference losses."""
    g = _gaussians(block, scatter_2x2, finite_population)
    variance_C = (g.var_in_N + g.var_out_N) / 2
    sd_C = np.sqrt(np.where(variance_C > 0, variance_C, np.nan))
    return (g.mean_out_N - g.mean_in_N) / sd_C


def gaussians(block: Block, *, finite_population: bool) -> stats.LiraGaussians:
    """Returns the Gaussians of each sample's reference losses, with variances per sample."""
    return stats.fit_gaussians(
        block.reference_loss_RxC,
        block.reference_member_RxC,
        sampled_share=0.5 if finite_population else 0.0,
    )


def _gaussians(
    block: Block, scatter_2x2: np.ndarray | None, finite_population: bool
) -> stats.LiraGaussians:
    fitted = block.once(gaussians, finite_population=finite_population)
    return fitted if scatter_2x2 is None else stats.with_pooled_variance(fitted, scatter_2x2)


# RMIA


class RmiaFit(NamedTuple):
    """What RMIA compares samples with."""

    sorted_log_alpha_TxZ: np.ndarray
    a: float
    """The parameter a of offline RMIA; NaN if it is to be tuned, but there are too few references."""


def fit_rmia(inputs: FitInputs, *, rmia_samples: int) -> RmiaFit:
    """Returns log alpha of the samples that RMIA compares with, sorted for each attacked model."""
    return RmiaFit(np.sort(log_alpha(inputs.draw(rmia_samples)), axis=1), 1.0)


def rmia(block: Block, fit: RmiaFit, *, rmia_gamma: float) -> np.ndarray:
    """Returns the share of the drawn samples whose alpha is at most 1/gamma of that of the sample."""
    return stats.rmia_from_log_alpha(block.once(log_alpha), fit.sorted_log_alpha_TxZ, rmia_gamma)


def fit_rmia_offline(inputs: FitInputs, *, rmia_samples: int, rmia_a: float | str) -> RmiaFit:
    """Returns the same as `fit_rmia` under OUT references, with a parameter a that is given or tuned on the references.

    It cannot be tuned if there is no reference besides the first one and its complement, or if no member or no
    non-member of the first one has an OUT reference among the others.
    """
    block, a = inputs.draw(rmia_samples), rmia_a
    if a == "tuned":
        references = -block.reference_loss_RxC, block.reference_member_RxC
        try:
            a = stats.tuned_rmia_a(*references, *references)
        except ValueError:
            a = np.nan
    return RmiaFit(np.sort(_log_alpha_offline(block, float(a)), axis=1), float(a))


def rmia_offline(block: Block, fit: RmiaFit, *, rmia_gamma: float) -> np.ndarray:
    """Returns the scores of `rmia` with OUT references only."""
    alpha_TxC = _log_alpha_offline(block, fit.a)
    return stats.rmia_from_log_alpha(alpha_TxC, fit.sorted_log_alpha_TxZ, rmia_gamma)


def rmia_simple(block: Block) -> np.ndarray:
    """Returns log alpha over all references."""
    return block.once(log_alpha)


def log_alpha(block: Block) -> np.ndarray:
    """Returns log_alpha_TxC of RMIA's ratio over all references."""
    return stats.rmia_log_alpha(-block.loss_TxC, -block.reference_loss_RxC)


def _log_alpha_offline(block: Block, a: float) -> np.ndarray:
    if np.isnan(a):
        return np.full(block.loss_TxC.shape, np.nan)
    return stats.rmia_log_alpha(
        -block.loss_TxC,
        -block.reference_loss_RxC,
        reference_member_MxN=block.reference_member_RxC,
        offline=True,
        a=a,
    )


# Shrunk and stacked LiRA


class StackedFit(NamedTuple):
    """What stacked LiRA estimates on drawn samples."""

    model: stats.LossModel
    regression: stats.StackedRegression


def fit_loss_model(inputs: FitInputs) -> stats.LossModel:
    """Estimates the parameters that all samples have in common."""
    block = inputs.draw(stats.MAX_FIT_SAMPLES)
    return stats.fit_loss_model(*_losses(block), covariate_NxK=block.covariate_CxK)


def fit_loss_model_offline(inputs: FitInputs) -> stats.LossModel:
    """Estimates the same under OUT references only."""
    block = inputs.draw(stats.MAX_FIT_SAMPLES)
    return stats.fit_loss_model(*_losses(block), covariate_NxK=block.covariate_CxK, offline=True)


def shrunk(block: Block, model: stats.LossModel) -> np.ndarray:
    """Returns the log likelihood ratio with means and variances that are shrunk towards those of similar samples."""
    return stats.shrunk_from_model(*_losses(block), model, covariate_NxK=block.covariate_CxK)


def fit_stacked(inputs: FitInputs) -> StackedFit:
    """Fits the regression of stacked LiRA on the members of the references."""
    model, block = inputs.once(fit_loss_model), inputs.draw(stats.MAX_FIT_SAMPLES)
    references = block.reference_loss_RxC, block.reference_member_RxC
    regression = stats.fit_stacked_regression(*references, model, covariate_NxK=block.covariate_CxK)
    return StackedFit(model, regression)


def stacked(block: Block, fit: StackedFit) -> np.ndarray:
    """Returns log odds of membership from a regression on the score of `shrunk` and properties of the sample."""
    return stats.stacked_from_regression(*_losses(block), *fit, covariate_NxK=block.covariate_CxK)


def _losses(block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return block.loss_TxC, block.reference_loss_RxC, block.reference_member_RxC


# Differences of losses, and attacks without references


def reference_calibrated(block: Block) -> np.ndarray:
    """Returns the mean loss under the references minus the loss."""
    return stats.reference_calibrated_loss(block.loss_TxC, block.reference_loss_RxC)


def base_calibrated(block: Block) -> np.ndarray:
    """Returns the loss under the model that the attacked ones were fine-tuned from minus their loss."""
    if block.base_loss_C is None:
        raise UserError(
            "attack.attacks=base_calibrated: there are no losses of a base to subtract; import them with the role "
            "base, or leave this attack out"
        )
    return stats.reference_calibrated_loss(block.loss_TxC, block.base_loss_C[None])


def loss(block: Block) -> np.ndarray:
    """Returns the negated loss."""
    return stats.loss_attack(block.loss_TxC)


def zlib(block: Block) -> np.ndarray:
    """Returns the negated ratio of the loss to the compressed size of the text."""
    return stats.zlib_ratio(block.loss_TxC, block.zlib_bytes_C)


def min_k(block: Block) -> np.ndarray:
    """Returns Min-K% Prob, which is stored as a statistic of each sample."""
    return block.statistics["min_k"].astype(np.float64)


def min_k_plus_plus(block: Block) -> np.ndarray:
    """Returns Min-K%++, which is stored as a statistic of each sample."""
    return block.statistics["min_k_plus_plus"].astype(np.float64)


def lowercase(block: Block) -> np.ndarray:
    """Returns the loss of the text in lower case minus its loss."""
    return stats.lowercase_loss_difference(block.loss_TxC, block.statistics["lowercase_loss"])


_lira = functools.partial(Attack, sum_over_samples=pooled_scatter)
_alone = functools.partial(Attack, uses_references=False)

ATTACKS: Mapping[str, Attack] = MappingProxyType(
    {
        "lira_online": _lira(lira_online, "LiRA"),
        "lira_offline": _lira(lira_offline, "Offline LiRA"),
        "rmia": Attack(rmia, "RMIA", fit_rmia),
        "rmia_offline": Attack(rmia_offline, "Offline RMIA", fit_rmia_offline),
        "rmia_simple": Attack(rmia_simple, "Simple RMIA"),
        "reference_calibrated": Attack(reference_calibrated, "Calibrated loss"),
        "shrunk": Attack(shrunk, "Shrunk LiRA", fit_loss_model),
        "shrunk_offline": Attack(shrunk, "Offline shrunk LiRA", fit_loss_model_offline),
        "stacked": Attack(stacked, "Stacked LiRA", fit_stacked),
        "base_calibrated": _alone(base_calibrated, "Base loss minus loss", uses_base=True),
        "loss": _alone(loss, "Loss"),
        "zlib": _alone(zlib, "Zlib ratio", uses_texts=True),
        "min_k": _alone(min_k, "Min-K%", statistics=("min_k",)),
        "min_k_plus_plus": _alone(min_k_plus_plus, "Min-K%++", statistics=("min_k_plus_plus",)),
        "lowercase": _alone(lowercase, "Lowercase", statistics=("lowercase_loss",)),
    }
)
"""Name -> attack, in the order of pages."""


def find(name: str) -> Attack:
    """Returns an attack by its name, or by ``FILE.py:NAME``, where NAME is a function like ``score`` or an `Attack`.

    Raises:
      UserError: there is no such attack.
    """
    if name in ATTACKS:
        return ATTACKS[name]
    if user_files.is_in_file(name):
        return _of_user(user_files.absolute(name))
    raise UserError(f"attack {name!r}: there is none of this name; {_hint(name)}")


@functools.cache
def _of_user(name: str) -> Attack:
    attack = user_code.load(name)
    if inspect.isfunction(attack):
        attack = Attack(attack, user_code.short(name).replace("_", " "))
    if not isinstance(attack, Attack):
        raise UserError(
            f"attack.attacks={name}: is neither a function score(block, *, SETTINGS) nor an Attack of "
            "lm_mia.attacks.registry; name one of these"
        )
    unknown = {*attack.settings} - {field.name for field in dataclasses.fields(AttackSettings)}
    if unknown:
        raise UserError(
            f"attack.attacks={name}: keyword-only parameters are settings of the section attack, but there are none of "
            f"the names {', '.join(sorted(unknown))}; see lm-mia fields"
        )
    if unscored := sorted({*attack.statistics} - {*get_args(Statistic)}):
        raise UserError(
            f"attack.attacks={name}: there are no statistics {', '.join(unscored)}; choose from "
            f"{', '.join(get_args(Statistic))}"
        )
    return dataclasses.replace(attack, code=user_code.code_digest(name))


def problems(config: Config) -> list[str]:
    """Returns one line for each rule that attack.attacks breaks."""
    attack = config.attack
    is_headline_listed = attack.headline in ("auto", *attack.attacks)
    names = attack.attacks if is_headline_listed else (*attack.attacks, attack.headline)
    shown = f"attack.attacks={','.join(attack.attacks)}"
    shown += "" if is_headline_listed else f" with attack.headline={attack.headline}"
    of_users = [name for name in names if user_files.is_in_file(name)]
    lines = [
        f"{shown}: there is no attack {n!r}; {_hint(n)}"
        for n in names
        if n not in ATTACKS and n not in of_users
    ]
    known = [name for name in names if name in ATTACKS]
    for name in of_users:
        try:
            find(name)
            known.append(name)
        except UserError as error:
            lines.append(str(error))
    if built_in := [name for name in of_users if user_code.short(name) in ATTACKS]:
        lines.append(
            f"{shown}: {' and '.join(built_in)} has the name of an attack of lm_mia; rename the function"
        )
    short_names = [user_code.short(name) for name in names]
    if twice := sorted({name for name in short_names if short_names.count(name) > 1}):
        lines.append(
            f"{shown}: tables would have the name {', '.join(twice)} twice; rename one of the functions"
        )
    is_imported = config.corpus.source == "imported"
    has_base = is_imported or starts_from_checkpoint(config)
    if not has_base and (of_base := [name for name in known if find(name).uses_base]):
        lines.append(
            f"{shown}: {' and '.join(of_base)} needs the losses of a base, which only imported losses and models that "
            "start from a checkpoint (model.init=hf:FOLDER) have; leave it out"
        )
    if has_no_references(config) and (others := [n for n in known if find(n).uses_references]):
        lines.append(
            f"{shown}: {', '.join(others)} {'needs' if len(others) == 1 else 'need'} references, but all imported "
            f"models are attacked (attack.targets={attack.targets}); leave out such attacks, or import references too"
        )
    unmet = [n for n in known if not {*find(n).statistics} <= {*config.score.statistics}]
    if unmet:
        needed = statistics_of(unmet)
        remedy = f"set --config.score.statistics={','.join([*config.score.statistics, *needed])}"
        if is_imported:
            arrays = ", ".join(f"{name}_MxN" for name in needed)
            remedy = f"leave them out, or import a file with {arrays}"
        require = "require" if len(unmet) > 1 else "requires"
        lines.append(f"{shown}: {', '.join(unmet)} {require} more than the loss; {remedy}")
    return lines


def statistics_of(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the statistics that attacks need in addition to the loss, without duplicates."""
    return tuple(dict.fromkeys(s for name in names for s in find(name).statistics))


def attack_name(attack: str) -> str:
    """Returns the name of an attack for readers, such as "LiRA" for lira_online."""
    return ATTACKS[attack].label if attack in ATTACKS else user_code.short(attack).replace("_", " ")


def _hint(name: str) -> str:
    if name.endswith(".py"):
        return f"name a function or an Attack in the file, as {name}:NAME"
    close = difflib.get_close_matches(name.lower(), ATTACKS, 2)
    return f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(ATTACKS)}"
