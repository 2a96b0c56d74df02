"""Runs all attacks of a recipe: from the score store to pieces, and from these to exported tables."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

from lm_mia.attacks import evaluations, exports, privacy_bounds, table_sets
from lm_mia.attacks.experiment import RecipeView
from lm_mia.attacks.spec import Request
from lm_mia.attacks.studies import study_set
from lm_mia.attacks.table_sets import TableSet
from lm_mia.attacks.user_code import UserCodeError
from lm_mia.data import subsets
from lm_mia.errors import Unavailable, UserError

_OF_REPLICAS = (
    exports.SHUFFLED,
    exports.REFERENCE_TARGETS,
    exports.JACKKNIFE,
    exports.REPLICA_WARNINGS,
    exports.RESAMPLED,
)


def _all_sets(view: RecipeView) -> list[Callable[[RecipeView], TableSet]]:
    studies = map(study_set, view.declared.studies)
    return [*exports.SETS, exports.REPLICA_WARNINGS, exports.target_warnings_set, *studies]


def run(view: RecipeView, folder: Path) -> dict[str, int]:
    """Computes the pieces of a recipe that are missing, and exports its tables.

    Args:
      view: the recipe.
      folder: folder of the exported tables.

    Returns:
      The numbers of attacks: "requested", "computed", and "left_out" because models are not scored as required. The
      remaining attacks were computed before.

    Raises:
      UserError: if scores are corrupt, if the tables of decisions cannot be made (too few models are present, or no
        member or no non-member has enough references), or if an evaluation or a study of the user fails. Except in the
        first case, all other results are computed and exported before the error is raised.
    """
    c, say = view.c, view.say
    if not c.replicas:
        references = subsets.requested_seeds(c.references, 0)
        if missing := {*references} - {*view.present}:
            say(
                f"{len(missing)} of {len(references)} models are missing; run `lm-mia run` to make them"
            )
    view.stored_set(exports.models_set)
    failure = None
    counts = {"requested": 0, "computed": 0, "left_out": 0}
    try:
        if c.replicas:
            if _evaluate(view, view.required_replica_requests(), "attack", counts):
                _say_what_is_left_out(view)
            _make(view, _OF_REPLICAS)
    except UserError as error:
        failure = error  # such as too few replicas; the targets are attacked nevertheless
    if (
        _evaluate(view, view.target_requests, "attack targets", counts)
        and view.declared.score_table
    ):
        privacy_bounds.say_if_delta_is_large(c.delta, len(view.attacked), view.store.design, say)
    if not failure or c.targets:
        _make(view, [exports.target_warnings_set])
        _make_studies(view)
        _make(view, [exports.sample_losses_set])
    if failure:
        # The tables of decisions of an earlier command stay.
        tables = view.tables if c.targets else exports.WITHOUT_STUDIES
        left = dataclasses.replace(view, no_replicas=str(failure), tables=tables)
        problems = exports.write_tables(left, folder, keeps_others=True)
        raise UserError("\n".join([str(failure), *problems])) from failure
    if problems := exports.write_tables(view, folder):
        raise UserCodeError("\n".join(problems))
    return counts


def ask(view: RecipeView) -> None:
    """Asks for all pieces that `run` would export and computes none, so that `Results.unused` returns the others."""
    view = dataclasses.replace(view, computes=False)
    for request in (*view.replica_requests(), *view.target_requests):
        view.stored.results.path(view.stored.key(request))
    for make in _all_sets(view):
        with contextlib.suppress(Unavailable):
            table_sets.find(view.once(make), view.stored)


def count_pieces(view: RecipeView) -> tuple[int, int]:
    """Returns how many of the pieces that `run` would make are there, and how many it would make; reads none of them.

    The tables of a set count as one.
    """
    requests = dict.fromkeys((*view.replica_requests(), *view.target_requests))
    found = [view.stored.results.path(view.stored.key(r)).is_file() for r in requests]
    for make in _all_sets(view):
        if make is not exports.extraction_set:
            with contextlib.suppress(Unavailable):
                found.append(has_set(make, view))
    return sum(found), len(found)


def has_set(make: Callable[[RecipeView], TableSet], view: RecipeView) -> bool:
    """Returns whether the tables of a set are there, without reading them; raises Unavailable without such a set."""
    return view.stored.results.path(view.once(make).key(view.stored)).is_file()


def _make(view: RecipeView, sets: Iterable[Callable[[RecipeView], TableSet]]) -> None:
    """Computes the tables of sets that the models and settings of the recipe allow."""
    for make in sets:
        with contextlib.suppress(Unavailable):
            view.stored_set(make)


def _make_studies(view: RecipeView) -> None:
    studies = view.declared.studies
    for done, study in enumerate(studies):
        view.progress("studies", done, len(studies))
        with contextlib.suppress(UserCodeError):  # the export of its tables says so
            _make(view, [study_set(study)])
    if studies:
        view.progress("studies", len(studies), len(studies))


def _evaluate(view: RecipeView, requests: list[Request], label: str, counts: dict[str, int]) -> int:
    """Computes the missing evaluations; adds to the numbers of attacks, and returns how many were computed."""
    result = view.evaluate(requests, label)
    for name, count in result.items():
        counts[name] += count
    return result["computed"]


def _say_what_is_left_out(view: RecipeView) -> None:
    """Tells the user how many samples have no score, and if delta is too large."""
    c, references = view.c, len(view.replicas.references)
    if not references:
        privacy_bounds.say_if_delta_is_large(
            c.delta, len(view.attacked), view.store.design, view.say
        )
        return
    main = Request(view.replicas.main, evaluations.operating_points)
    left_out = int(view.pieces.table(main)["left_out"].max())
    needed = 2 if c.variance == "per_sample" else 1
    if left_out:
        view.say(
            f"attack.references={references}: {left_out} samples have fewer than {needed} IN or {needed} "
            "OUT references, or references with equal losses, and have no score (NaN); more references or "
            "train.subset='balanced' avoid this"
        )
    privacy_bounds.say_if_delta_is_large(c.delta, len(view.attacked), view.store.design, view.say)
