import itertools
import sys
from typing import Any

import numpy as np
import pytest
import scipy.stats
import subset_designs as draw
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from lm_mia import stats
from lm_mia.stats.design import design_of, left_out


def taking_losses(function: Any) -> Any:  # the tests use losses; signals are negated losses
    return lambda *losses, **kwargs: function(*map(np.negative, losses), **kwargs)


log_alpha, log_mean_probability = map(
    taking_losses, (stats.rmia_log_alpha, stats.rmia_log_mean_probability)
)
rmia, rmia_simple = taking_losses(stats.rmia), taking_losses(stats.rmia_simple)

MODES: list[Any] = [{}, {"offline": True}, {"offline": True, "a": 0.3}, {"offline": True, "a": 0.0}]
SEEDS = st.integers(0, 2**32 - 1)
nan, inf = np.nan, np.inf


def slow_log_p(loss_MxN, member_MxN, offline=False, a=1.0):
    """Computes the definition, one sample at a time."""
    out = np.full(loss_MxN.shape[1], nan)
    for n in range(out.size):
        loss = loss_MxN[:, n][~np.isnan(loss_MxN[:, n]) & ~(offline & member_MxN[:, n])]
        if loss.size:
            out[n] = logsumexp(-loss) - np.log(loss.size)
            if offline:
                out[n] = np.log(((1 + a) * np.exp(out[n]) + (1 - a)) / 2)
    return out


def slow_share(x_TxN, z_TxZ, gamma=1.0):
    """Compares all pairs."""
    out = np.full(x_TxN.shape, nan)
    for t, n in itertools.product(*map(range, x_TxN.shape)):
        z = z_TxZ[t][~np.isnan(z_TxZ[t])]
        if z.size and not np.isnan(x_TxN[t, n]):
            out[t, n] = np.mean(x_TxN[t, n] - z >= np.log(gamma))
    return out


def random_losses(seed, M=7, N=40, T=3, missing=0.15):
    rng = np.random.default_rng(seed)
    member_MxN = rng.random((M, N)) < 0.5
    loss_MxN = rng.gamma(4, 0.7, N) + rng.normal(0, 0.4, (M, N)) - 0.3 * member_MxN
    loss_MxN[rng.random((M, N)) < missing] = nan
    target_TxN = rng.gamma(4, 0.7, (T, N))
    target_TxN[0, 0] = nan
    return target_TxN, loss_MxN, member_MxN


def test_rmia_by_hand():
    # p of x: target 1/2, references 1/4 and 1/8, so alpha = (1/2) / (3/16) = 8/3.
    # Three z with p = 1/2 under the target: alpha = 4/3, 8/3 and 4.
    x, x_ref = -np.log([[0.5]]), -np.log([[0.25], [0.125]])
    z, z_ref = -np.log([[0.5, 0.5, 0.5]]), -np.log([[0.5, 0.25, 0.125], [0.25, 0.125, 0.125]])
    np.testing.assert_allclose(log_alpha(x, x_ref), [[np.log(8 / 3)]], rtol=1e-14)
    np.testing.assert_allclose(log_alpha(z, z_ref), np.log([[4 / 3, 8 / 3, 4]]), rtol=1e-14)
    np.testing.assert_array_equal(rmia_simple(x, x_ref), log_alpha(x, x_ref))
    for gamma, expected in [(0.5, 3), (0.7, 2), (1, 2), (1.01, 1), (1.9, 1), (2.1, 0)]:
        np.testing.assert_array_equal(rmia(x, x_ref, z, z_ref, gamma=gamma), [[expected / 3]])


def test_offline_mean_probability_by_hand():
    # OUT references 1/4 and 1/8; the IN reference, 1/2, is not used.
    loss, member = -np.log([[0.25], [0.5], [0.125]]), np.array([[False], [True], [False]])
    for a, expected in [(1.0, 3 / 16), (0.5, (1.5 * 3 / 16 + 0.5) / 2), (0.0, (3 / 16 + 1) / 2)]:
        actual = log_mean_probability(loss, reference_member_MxN=member, offline=True, a=a)
        np.testing.assert_allclose(actual, [np.log(expected)], rtol=1e-14)
    online = log_mean_probability(loss, reference_member_MxN=member, a=0.5)
    np.testing.assert_allclose(online, [np.log(7 / 24)], rtol=1e-14)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_log_alpha_equals_slow_reference(mode, seed, monkeypatch):
    monkeypatch.setattr(sys.modules["lm_mia.stats.rmia"], "_CHUNK", 7)
    target_TxN, loss_MxN, member_MxN = random_losses(seed, M=3, missing=0.6)
    actual = log_alpha(target_TxN, loss_MxN, reference_member_MxN=member_MxN, **mode)
    expected = -target_TxN - slow_log_p(loss_MxN, member_MxN, **mode)
    np.testing.assert_allclose(actual, expected, rtol=1e-13, atol=1e-14)
    assert 0 < np.isnan(actual[1]).sum() < 40  # some samples have no reference


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gamma", [0.8, 1.0, 1.3])
def test_rmia_equals_all_pairs(mode, gamma):
    target_TxN, loss_MxN, member_MxN = random_losses(5, N=90)
    x, z = slice(0, 50), slice(30, 90)  # the sets overlap, so there are ties
    members = {"reference_member_MxN": member_MxN[:, x], "reference_member_MxZ": member_MxN[:, z]}
    sides = target_TxN[:, x], loss_MxN[:, x], target_TxN[:, z], loss_MxN[:, z]
    actual = rmia(*sides, gamma=gamma, **members, **mode)
    alpha = log_alpha(target_TxN, loss_MxN, reference_member_MxN=member_MxN, **mode)
    np.testing.assert_array_equal(actual, slow_share(alpha[:, x], alpha[:, z], gamma))
    assert len(np.unique(actual[~np.isnan(actual)])) > 20


@settings(max_examples=60, deadline=None)
@given(
    seed=SEEDS,
    sizes=st.tuples(st.integers(0, 300), st.integers(1, 300)),
    shape=st.sampled_from(["normal", "heavy", "few values", "one value", "far apart"]),
    gamma=st.sampled_from([0.5, 1.0, 1.0, 1.7]),
)
def test_rmia_from_log_alpha_equals_all_pairs(seed, sizes, shape, gamma):
    rng = np.random.default_rng(seed)
    gamma = 1.0 if shape == "far apart" else gamma  # log gamma is smaller than their rounding error
    draws = {
        "normal": lambda size: rng.normal(size=size),
        "heavy": lambda size: rng.standard_t(1, size) ** 3,
        "few values": lambda size: rng.integers(-3, 4, size) / 4,
        "one value": lambda size: np.full(size, 0.1),
        "far apart": lambda size: rng.choice([-8e307, 8e307, 0.25], size),
    }
    x, z = (draws[shape]((2, size)) for size in sizes)
    x[rng.random(x.shape) < 0.1] = nan
    z[rng.random(z.shape) < 0.1] = nan
    x[:, :1] = inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["lm_mia.stats.rmia"], "_SEARCH_CHUNK", 64)
        actual = stats.rmia_from_log_alpha(x, np.sort(z, axis=1), gamma)
    np.testing.assert_array_equal(actual, slow_share(x, z, gamma))


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_rmia_is_invariant_to_order(mode, seed):
    target_TxN, loss_MxN, member_MxN = random_losses(seed)

    def score(rows, cols):
        members: Any = {"reference_member_MxN": member_MxN[rows]}
        members["reference_member_MxZ"] = member_MxN[rows][:, cols]
        z, z_ref = target_TxN[:, cols], loss_MxN[rows][:, cols]
        return rmia(target_TxN, loss_MxN[rows], z, z_ref, **members, **mode)

    rng = np.random.default_rng(seed)
    expected = score(slice(None), slice(None))
    np.testing.assert_array_equal(score(rng.permutation(7), rng.permutation(40)), expected)


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, gammas=st.tuples(*[st.floats(0.1, 10) | st.just(1.0)] * 2).map(sorted))
def test_score_is_monotone_in_gamma_and_alpha(seed, gammas):
    rng = np.random.default_rng(seed)
    # With multiples of log(gamma) / 3, some ratios equal gamma up to rounding errors.
    x, z = (np.sort(rng.integers(-9, 10, (2, n)) * np.log(gammas[1]) / 3) for n in (60, 20))
    low, high = (stats.rmia_from_log_alpha(x, z, gamma) for gamma in gammas)
    assert np.all(low >= high)
    assert np.all(np.diff(low, axis=1) >= 0)
    assert np.all((low >= 0) & (low <= 1))


def test_equal_samples_have_bitwise_equal_scores():
    # They do not depend on chunks, sizes or the memory layout.
    target_TxN, loss_MxN, _ = random_losses(0, M=37, N=9000, T=1, missing=0.05)
    complete = log_alpha(target_TxN, loss_MxN)
    for n in (1, 8190, 8999):
        assert log_alpha(target_TxN[:, [n]], loss_MxN[:, [n]]) == complete[0, n]
    reversed_order = log_alpha(
        np.asfortranarray(target_TxN), np.asfortranarray(loss_MxN[:, ::-1])[:, ::-1]
    )
    np.testing.assert_array_equal(reversed_order, complete)
    score = rmia(target_TxN[:, 1:], loss_MxN[:, 1:], target_TxN[:, :0:-1], loss_MxN[:, :0:-1])
    np.testing.assert_array_equal(
        score[0], scipy.stats.rankdata(complete[0, 1:], method="max") / 8999
    )


def test_score_of_known_distribution():
    # With one reference, log alpha = reference loss - target loss. If the losses of z are normal with variance 1,
    # the score is Phi((log alpha(x) - log gamma - mean log alpha(z)) / sqrt 2).
    rng = np.random.default_rng(1)
    z, z_ref = rng.normal(3, 1, 200_000), rng.normal(3.5, 1, 200_000)
    x, x_ref = np.array([2.0, 3.0, 4.5]), np.full(3, 3.0)
    expected = scipy.stats.norm.cdf((x_ref - x - np.log(1.5) - 0.5) / np.sqrt(2))
    actual = rmia(x, x_ref, z, z_ref, gamma=1.5)[0]
    np.testing.assert_allclose(actual, expected, atol=4 * 0.5 / np.sqrt(200_000))


@pytest.mark.parametrize("mode", MODES[:3])
def test_signal_and_noise_have_expected_auc(mode):
    # Many references fix p(x), so log alpha is a constant minus the loss: AUC = Phi(gap / sqrt 2).
    # With a < 1 the constant depends on the mean loss of the sample, so all samples have the same mean.
    rng = np.random.default_rng(2)
    N, M = 8_000, 200
    member_MxN, member_N = rng.random((M, N)) < 0.5, rng.random(N) < 0.5
    mean_N = np.full(N, 0.5) if "a" in mode else rng.normal(8, 5, N)
    for gap in (0.0, 1.0):
        loss_MxN = mean_N + 0.1 * (rng.normal(size=(M, N)) - gap * member_MxN)
        loss_N = mean_N + 0.1 * (rng.normal(size=N) - gap * member_N)
        alpha = log_alpha(loss_N, loss_MxN, reference_member_MxN=member_MxN, **mode)
        score = stats.rmia_from_log_alpha(alpha, np.sort(alpha[:, :4000]), 1.01)
        actual = stats.auc(np.vstack([alpha, score]), member_N).auc_T
        expected = scipy.stats.norm.cdf(gap / np.sqrt(2))
        np.testing.assert_allclose(actual, expected, atol=4 / np.sqrt(3 * N))


def test_large_losses_keep_precision():
    rng = np.random.default_rng(3)
    spread_MxN, spread_N = 1e-3 * rng.normal(size=(20, 50)), 1e-3 * rng.normal(size=50)
    near = log_alpha(spread_N, spread_MxN)
    for offset in (1e3, -1e3, 1e6):
        far = log_alpha(spread_N + offset, spread_MxN + offset)
        np.testing.assert_allclose(far, near, rtol=0, atol=1e-9)
    # One likely reference dominates the mean, however unlikely the others are.
    actual = log_mean_probability([[0.0, 2000.0, -5.0], [1e3, 3e3, 1e6]])
    np.testing.assert_allclose(actual, [-np.log(2), -2000 - np.log(2), 5 - np.log(2)], rtol=1e-15)
    # A much more likely IN reference does not affect the mean over OUT references.
    kwargs: Any = {"reference_member_MxN": [[True], [False], [False]], "offline": True}
    actual = log_mean_probability([[0.0], [2000.0], [2000.0]], **kwargs)
    np.testing.assert_array_equal(actual, [-2000.0])
    half = log_mean_probability([[0.0], [2000.0], [2000.0]], a=0.5, **kwargs)
    np.testing.assert_allclose(half, [np.log(0.25)])


@pytest.mark.parametrize("mode", MODES)
def test_float32_is_computed_in_float64(mode):
    target_TxN, loss_MxN, member_MxN = random_losses(4)
    target32, loss32 = target_TxN.astype(np.float32), loss_MxN.astype(np.float32)
    members: Any = {"reference_member_MxN": member_MxN, **mode}
    actual = log_alpha(target32, loss32, **members)
    expected = log_alpha(target32.astype(np.float64), loss32.astype(np.float64), **members)
    np.testing.assert_array_equal(actual, expected, strict=True)
    alpha = actual.astype(np.float32)
    z = alpha - np.log(np.float32(1.1))  # all of these would be ties in float32
    expected = slow_share(alpha.astype(np.float64), z.astype(np.float64), 1.1)
    np.testing.assert_array_equal(
        stats.rmia_from_log_alpha(alpha, np.sort(z), 1.1), expected, strict=True
    )


def test_missing_models_and_one_reference():
    loss = np.array([[1.0, nan, nan, 1.0], [3.0, 2.0, nan, nan], [nan, nan, nan, 5.0]])
    member = np.array([[False] * 4, [False] * 4, [True] * 4])
    expected = [
        np.log((np.exp(-1) + np.exp(-3)) / 2),
        -2,
        nan,
        np.log((np.exp(-1) + np.exp(-5)) / 2),
    ]
    np.testing.assert_allclose(log_mean_probability(loss), expected, rtol=1e-14)
    actual = log_mean_probability(loss, reference_member_MxN=member, offline=True)
    np.testing.assert_allclose(actual, [*expected[:3], -1], rtol=1e-14)
    np.testing.assert_array_equal(log_alpha([0.2, 1], [[0.7, 3.1]]), [[0.7 - 0.2, 3.1 - 1]])
    assert np.isnan(log_mean_probability(np.empty((0, 2)))).all()
    for a in (1.0, 0.5):  # no OUT reference
        actual = log_mean_probability([[1.0]], reference_member_MxN=[[True]], offline=True, a=a)
        assert np.isnan(actual).all()


def test_missing_scores_and_empty_inputs():
    actual = stats.rmia_from_log_alpha([[nan, 0.0], [1.0, 1.0]], [[-1.0, 0.0, 1.0, nan], [nan] * 4])
    np.testing.assert_array_equal(actual, [[nan, 2 / 3], [nan, nan]])
    actual = rmia([[nan, 1.0]], [[1.0, 1.0]], [[1.0, nan, 1.0]], [[0.5, 1.0, nan]])
    np.testing.assert_array_equal(actual, [[nan, 1.0]])
    assert stats.rmia_from_log_alpha(np.empty((2, 0)), [[1.0], [2.0]]).shape == (2, 0)
    assert stats.rmia_from_log_alpha(np.empty((0, 2)), np.empty((0, 1))).shape == (0, 2)
    assert log_alpha(np.empty((3, 0)), np.empty((4, 0))).shape == (3, 0)
    assert log_alpha(np.empty((0, 2)), np.zeros((4, 2))).shape == (0, 2)


def test_invalid_arguments_raise():
    one: Any = [[1.0]]
    for target, loss, kwargs, message in [
        ([[1.0, 2.0]], one, {}, "of 1 samples"),
        (np.zeros((1, 1, 1)), one, {}, "of 1 samples"),
        (one, np.zeros((1, 1, 1)), {}, "models x samples"),
        (one, [[inf]], {}, "finite"),
        *[(one, [[loss]], {}, "finite") for loss in (-inf, 1e30)],
        ([[inf]], one, {}, "finite"),
        (one, one, {"offline": True}, "needs reference_member"),
        (one, one, {"offline": True, "reference_member_MxN": [[0]]}, "booleans"),
        (one, one, {"offline": True, "reference_member_MxN": [[True, True]]}, "shape"),
        *[(one, one, {"a": a}, "between 0 and 1") for a in (1.1, -0.1, nan)],
    ]:
        with pytest.raises(ValueError, match=message):
            log_alpha(target, loss, **kwargs)
    for x, z, gamma, message in [
        (one, [[]], 1.0, "population is empty"),
        (one, [[1.0], [1.0]], 1.0, "same targets"),
        *[(one, [z], 1.0, "sorted") for z in ([2.0, 1.0], [nan, 1.0], [1.0, nan, 2.0])],
        *[(one, one, gamma, "gamma") for gamma in (0.0, -1.0, inf, nan)],
    ]:
        with pytest.raises(ValueError, match=message):
            stats.rmia_from_log_alpha(x, z, gamma)
    two: Any = [[1.0, 1.0]]
    for sides in [(one, one, two, one), (two, one, one, one), (one, one, [[1.0], [1.0]], one)]:
        with pytest.raises(ValueError, match="targets of shapes"):
            rmia(*sides)


def test_tuned_a_is_the_best_attack_on_the_first_reference():
    rng = np.random.default_rng(3)
    member_MxN, member_MxZ = rng.random((7, 400)) < 0.5, np.zeros((7, 90), bool)
    hardness_N, hardness_Z = rng.gamma(2, size=400), rng.gamma(2, size=90)
    reference_MxN = -hardness_N * np.where(member_MxN, 0.6, 1) + 0.1 * rng.normal(size=(7, 400))
    reference_MxZ = -hardness_Z + 0.1 * rng.normal(size=(7, 90))
    member_MxN[4] = ~member_MxN[0]  # the complement is not used
    arguments = (reference_MxN, member_MxN, reference_MxZ, member_MxZ)
    others = [1, 2, 3, 5, 6]
    aucs = [
        stats.auc(
            stats.rmia(
                reference_MxN[0],
                reference_MxN[others],
                reference_MxZ[0],
                reference_MxZ[others],
                reference_member_MxN=member_MxN[others],
                reference_member_MxZ=member_MxZ[others],
                offline=True,
                a=i / 10,
            ),
            member_MxN[0],
        ).auc_T[0]
        for i in range(11)
    ]
    assert stats.tuned_rmia_a(*arguments) == np.argmax(aucs) / 10
    reference_MxN[4] = rng.normal(size=400)
    assert stats.tuned_rmia_a(*arguments) == np.argmax(aucs) / 10


def test_references_without_losses_do_not_count_when_a_is_tuned():
    """Of pairs, the complement of the target is left out, and it may be the first reference."""
    rng = np.random.default_rng(5)
    member_MxN = draw.pairs(rng, 8, 300)
    signal_MxN = -rng.gamma(2, size=300) * np.where(member_MxN, 0.6, 1) + rng.random((8, 300))
    rest = signal_MxN[2:], member_MxN[2:]
    expected = stats.tuned_rmia_a(*rest, *rest)
    signal_MxN[1] = np.nan
    references = signal_MxN[1:], member_MxN[1:]
    assert stats.tuned_rmia_a(*references, *references) == expected
    with pytest.raises(ValueError, match="NaN"):
        stats.tuned_rmia_a(*(signal_MxN[1:2], member_MxN[1:2]) * 2)


def test_partners_of_the_first_reference_are_not_used_to_tune_a():
    rng = np.random.default_rng(4)
    member_MxN = draw.columns(rng, 6, 300)
    loss_MxN = rng.gamma(2, size=300) * np.where(member_MxN, 0.6, 1) + rng.random((6, 300))
    arguments = -loss_MxN, member_MxN
    expected = stats.tuned_rmia_a(*arguments, *arguments)
    is_left_out_MxN = left_out(design_of(member_MxN), member_MxN, 0, np.arange(300))
    is_left_out_MxN[0] = False
    assert is_left_out_MxN.any()
    # Other losses of the partners change nothing.
    other = np.where(is_left_out_MxN, 50 * rng.random((6, 300)), -loss_MxN), member_MxN
    assert stats.tuned_rmia_a(*other, *other) == expected


def test_tuned_a_needs_another_reference_and_both_classes():
    signal, member = np.full((2, 4), -1.0), np.array([[True, True, False, False], [False] * 4])
    assert stats.tuned_rmia_a(signal, member, signal, member) == 0  # all AUCs are equal
    with pytest.raises(ValueError, match="the first one"):
        stats.tuned_rmia_a(signal[:1], member[:1], signal[:1], member[:1])
    half_N = np.random.default_rng(0).random(80) < 0.5
    signal_2xN = np.full((2, 80), -1.0)
    for other_N in (half_N, ~half_N):
        related = signal_2xN, np.stack([half_N, other_N])
        with pytest.raises(ValueError, match="the first one"):
            stats.tuned_rmia_a(*related, *related)
    with pytest.raises(ValueError, match="members and non-members"):
        stats.tuned_rmia_a(signal, np.zeros((2, 4), bool), signal, np.zeros((2, 4), bool))
    with pytest.raises(ValueError, match="same references"):
        stats.tuned_rmia_a(signal, member, signal[:1], member[:1])
