"""Score points: the steps of a row after which it is scored, which are the same in every row of a recipe."""

from lm_mia import config


def total_steps(c: config.Config) -> int:
    """Updates of a row with N members, from start to end; a Bernoulli subset may make more or fewer."""
    return c.train.epochs * _per_epoch(c)


def score_steps(c: config.Config) -> tuple[int, ...]:
    """Steps, ascending, after which rows are scored beside their end: ``score.at_steps`` and ``score.at_epochs``."""
    return tuple(sorted({*c.score.at_steps, *epoch_steps(c)} - {total_steps(c)}))


def epoch_steps(c: config.Config) -> list[int]:
    """The step that each of ``score.at_epochs`` is rounded to, the first at the earliest."""
    return [max(round(epochs * _per_epoch(c)), 1) for epochs in c.score.at_epochs]


def _per_epoch(c: config.Config) -> int:
    return -(-(c.population.samples // 2) // c.train.batch_size)
