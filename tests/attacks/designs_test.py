"""What attacks on models of a store leave out because their training subsets are related."""

import dataclasses

import numpy as np
import subset_designs as draw

from lm_mia import stats
from lm_mia.attacks.designs import ModelDesign
from lm_mia.data import subsets
from lm_mia.stats.design import left_out

REFERENCES = [*map(subsets.reference, range(8))]


def model_design(member_MxN: np.ndarray) -> ModelDesign:
    return ModelDesign(
        tuple(REFERENCES[: len(member_MxN)]),
        stats.design_of(member_MxN),
        np.logical_or.reduce(member_MxN, axis=1),
    )


def test_independent_targets_are_one_part_and_use_all_references():
    member_MxN = draw.with_untrained(draw.exact(np.random.default_rng(0), 8, 200), 40)
    found = model_design(member_MxN)
    assert [*found.parts([6, 7])] == [range(0, 2)]
    is_used_RxN, has_score_TxN = found.use([6, 7], [0, 1, 2], member_MxN, np.arange(240))
    assert is_used_RxN.shape == (3, 240)
    assert is_used_RxN.all()
    for has_score_N, m in zip(has_score_TxN, (6, 7), strict=True):
        others_MxN = np.delete(member_MxN, m, axis=0)
        expected_N = others_MxN.any(axis=0) & ~others_MxN.all(axis=0)
        np.testing.assert_array_equal(has_score_N, expected_N)
        assert not has_score_N[200:].any()


def test_targets_of_other_subsets_leave_out_other_references():
    member_MxN = draw.seeds(draw.exact(np.random.default_rng(0), 4, 200))
    found = model_design(member_MxN)
    assert [*found.parts([5, 6, 7])] == [range(0, 1), range(1, 3)]
    assert [*found.parts([])] == []
    is_used_RxN, _ = found.use([6, 7], range(6), member_MxN, np.arange(200))
    assert is_used_RxN.all()
    is_used_RxN, _ = found.use([5], range(5), member_MxN, np.arange(200))
    np.testing.assert_array_equal(is_used_RxN, np.repeat([[1], [1], [1], [1], [0]], 200, axis=1))


def test_partners_are_drawn_among_all_models():
    member_MxN = draw.columns(np.random.default_rng(0), 8, 200)
    found, id_N = model_design(member_MxN), np.arange(200) + 9
    assert [*found.parts([6, 7])] == [range(0, 1), range(1, 2)]
    is_used_RxN, has_score_TxN = found.use([7], range(4), member_MxN, id_N)
    np.testing.assert_array_equal(is_used_RxN, ~left_out(found.design, member_MxN, 7, id_N)[:4])
    assert has_score_TxN.all()
    # Each sample has one partner among 4 possible ones, of which some are not among the references.
    assert 0.3 < (~is_used_RxN).sum(axis=0).mean() < 0.8


def test_references_without_members_need_no_other_models():
    member_MxN = np.zeros((4, 100), bool)
    member_MxN[3] = np.random.default_rng(0).random(100) < 0.5
    is_used_RxN, has_score_TxN = model_design(member_MxN).use(
        [3], range(3), member_MxN, np.arange(100)
    )
    assert is_used_RxN.all()
    assert has_score_TxN.all()


def test_replicas_are_in_the_place_of_the_first_one():
    found = dataclasses.replace(
        model_design(draw.exact(np.random.default_rng(0), 2, 100)),
        models=(subsets.reference(4), subsets.replica(0)),
    )
    assert found.index([subsets.replica(3), subsets.reference(4), subsets.replica(0)]) == [1, 0, 1]
