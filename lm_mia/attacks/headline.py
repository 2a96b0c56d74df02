"""Which attack the first sentence of a result is about."""


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
