"""Which attack the first sentence of a result is about, and at which false positive rate."""

import dataclasses
from collections.abc import Sequence

from lm_mia import config

_LOWEST_RATE, _FEWEST_FALSE_POSITIVES = 0.01, 10


def effective_attack(c: config.Config) -> config.Attack:
    """Returns the attack settings of a recipe with what they leave to the recipe filled in.

    The false positive rates are those of `config.measurable_attack`. ``headline`` is the name of an attack, which is
    among ``attacks``.
    """
    attack = config.measurable_attack(c)
    headline = attack.headline
    if headline == "auto":
        # `lm-mia import` writes the name into the config, since it knows how the subsets of the models are related.
        headline = headline_attack(
            is_random=c.train.subset != "given",
            # Replicas are attacked with all models that have subsets of their own.
            references=attack.references - (0 if attack.replicas else attack.targets),
            has_in=True,
            has_pairs=c.train.subset == "balanced",
            has_base="base_calibrated" in attack.attacks,
        )
    attacks = attack.attacks if headline in attack.attacks else (*attack.attacks, headline)
    return dataclasses.replace(attack, headline=headline, attacks=attacks)


def headline_attack(
    *, is_random: bool, references: int, has_in: bool, has_pairs: bool, has_base: bool
) -> str:
    """Returns the attack that an audit or a report names first, which is chosen before any result is seen.

    Args:
      is_random: whether the members of the target were drawn at random; otherwise they were given.
      references: number of references that attack a target, without those that are left out because their training
        subsets are related to its own, and without the base.
      has_in: whether some reference was trained on some of the samples.
      has_pairs: whether references come in pairs with complementary subsets.
      has_base: whether the losses of the model that the target was fine-tuned from are known.
    """
    if has_in and is_random and references >= (4 if has_pairs else 2):
        return "stacked"
    if has_in and not is_random and references >= 4:
        return "rmia"
    if not has_in and references >= 2:
        return "shrunk_offline"
    if has_base:
        return "base_calibrated"
    # With a single reference, the membership of a sample in it would reveal whether the sample has a score.
    return "reference_calibrated" if references >= (2 if has_in else 1) else "loss"


def headline_fpr(fprs: Sequence[float], nonmembers: int) -> float:
    """Returns the rate of the first sentence: the lowest one from 1 % on that allows 10 false positives.

    If none does, it is the highest one.

    Args:
      fprs: the rates at which true positives were counted.
      nonmembers: number of non-members.
    """
    usual = [fpr for fpr in fprs if fpr >= _LOWEST_RATE] or [*fprs]
    allowed = [fpr for fpr in usual if fpr * nonmembers >= _FEWEST_FALSE_POSITIVES]
    return min(allowed) if allowed else max(usual)
