"""Attacks on targets with training subsets of their own: the evaluations that are requested without replicas."""

import dataclasses
from collections.abc import Sequence

from lm_mia import config
from lm_mia.attacks import evaluations, target_warnings
from lm_mia.attacks.designs import model_design
from lm_mia.attacks.evaluate import group_by_inputs, open_group
from lm_mia.attacks.models import present_models
from lm_mia.attacks.pieces import models_of
from lm_mia.attacks.replicas import complete_requests
from lm_mia.attacks.spec import AttackSpec, Request
from lm_mia.attacks.table_sets import Facts, TableSet, Write
from lm_mia.data.population import Population
from lm_mia.store.store import Store


def requests_of_score_table(attacks: Sequence[AttackSpec], c: config.Attack) -> list[Request]:
    """Returns the evaluations of the attacks whose scores are in membership_scores.parquet."""
    requests = [Request(attack, evaluations.operating_points) for attack in attacks]
    return requests + [request for attack in attacks for request in complete_requests(attack, c)]


def warnings_set(
    attacks: Sequence[AttackSpec], store: Store, population: Population
) -> TableSet | None:
    """Returns warnings about the targets; None if no attack is possible.

    Args:
      attacks: the attacks whose scores are in membership_scores.parquet.
      store: the score store of the recipe.
      population: the attacked samples.
    """
    with_references = [attack for attack in attacks if attack.references]
    groups, _ = group_by_inputs(with_references or attacks, store)
    if not groups:
        return None
    most = max((spec for same in groups for spec in same), key=lambda spec: len(spec.references))

    def compute(_: Write) -> Facts:
        design = model_design(store, present_models(store))
        of_loss = dataclasses.replace(most, attack="loss")  # which needs no further statistics
        inputs = open_group([of_loss], store, population, design)
        return {"warnings": target_warnings.warnings(inputs, population)}

    names = sorted(map(str, models_of(most)))
    return TableSet(
        "target_warnings", models_of(most), {"models": names, "step": most.step}, compute
    )
