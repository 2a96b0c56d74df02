"""Numbers about decisions and their intervals, from the tables of recipes."""

import dataclasses
import math
import re

import numpy as np
import pytest

from analysis import io, studies
from analysis.claims import decisions
from analysis.io import SweepResults
from lm_mia.errors import UserError


def test_intervals_cover_replicas_references_and_samples(recipes: SweepResults):
    flip = recipes["flip-302M"]
    members, nonmembers = (
        decisions.read_jackknife(flip, f"{kind}_flip_rate", 0.05)
        for kind in ("member", "nonmember")
    )
    samples = io.read_samples(flip, ["member", "flip_rate_0.05"])
    member_N = samples["member"].astype(bool)
    assert members.value == pytest.approx(samples["flip_rate_0.05"][member_N].mean())
    assert nonmembers.value == pytest.approx(samples["flip_rate_0.05"][~member_N].mean())
    gap = (members - nonmembers).estimate()
    assert re.findall(r"(\d+) (\w+)", gap.over) == [("12", "replicas"), ("16", "references")]
    assert gap.not_covered == ("the training subset",)
    assert gap.standard_error > 0


def test_auc_is_the_same_at_every_fpr(recipes: SweepResults):
    flip = recipes["flip-302M"]
    auc = decisions.read_jackknife(flip, "auc")
    at_tenth = decisions.read_jackknife(flip, "auc", 0.1)
    np.testing.assert_array_equal(auc.value_A1xR1xH1, at_tenth.value_A1xR1xH1)
    assert auc.value_A1xR1xH1.shape == (9, 15, 15)
    assert not math.isnan(auc.value)
    with pytest.raises(UserError, match=r"\bFPR\b.*\b0\.3\b"):
        decisions.read_jackknife(flip, "auc", 0.3)


def test_replicas_are_attacked_with_targets_too(recipes: SweepResults):
    """A target of another attack is a reference of the replicas."""
    flip = recipes["flip-302M"]
    attack = dataclasses.replace(flip.config.attack, targets=4)
    config = dataclasses.replace(flip.config, attack=attack)
    attacked = dataclasses.replace(flip, config=config)
    assert len(attacked.references) == 12
    auc = studies.read_parts(attacked, decisions.TABLE, "auc", {"fpr": 0.05})
    assert re.findall(r"(\d+) (\w+)", auc.over) == [("12", "replicas"), ("16", "references")]


def test_replicas_with_other_members_are_refused(recipes: SweepResults):
    decisions.check_same_members(recipes["flip-140M"], recipes["flip-302M"])
    with pytest.raises(UserError, match="same members"):
        decisions.check_same_members(recipes["flip-140M"], recipes["main"])
