"""Bootstrap intervals of samples that depend on each other within clusters, such as documents."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import stats
from lm_mia.stats import intervals, resamples

FPRS = [0.1, 0.25, 0.5, 1.0]


def ends(result: stats.BootstrapIntervals, t: int = 0) -> np.ndarray:
    """Returns the lower ends of AUC and TPRs in the first row and the upper ends in the second."""
    low = [result.auc_low_T[t], *result.tpr_low_TxF[t]]
    return np.array([low, [result.auc_high_T[t], *result.tpr_high_TxF[t]]])


def slow_replicates(
    score_N: np.ndarray, member_N: np.ndarray, cluster_N: np.ndarray, replicates: int, seed: int
) -> np.ndarray:
    """Computes AUC and TPRs of each replicate that has members and non-members from an explicit resample."""
    present_N = ~np.isnan(score_N)
    score_N, member_N, cluster_N = score_N[present_N], member_N[present_N], cluster_N[present_N]
    labels, rng = np.unique(cluster_N), np.random.default_rng(seed)
    rows = []
    for _ in range(replicates):
        drawn = labels[rng.integers(labels.size, size=labels.size)]
        index = np.concatenate([np.flatnonzero(cluster_N == label) for label in drawn])
        score, member = score_N[index], member_N[index]
        if member.all() or not member.any():
            continue
        thresholds = [stats.threshold_at_fpr(score[~member], fpr) for fpr in FPRS]
        tprs = [np.mean(score[member] >= threshold) for threshold in thresholds]
        rows.append([stats.auc(score, member).auc_T[0], *tprs])
    return np.array(rows)


@pytest.fixture
def no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives intervals however few samples and clusters there are."""
    monkeypatch.setattr(intervals, "MIN_COUNT", 0)
    monkeypatch.setattr(intervals, "MIN_CLUSTERS", 0)


@pytest.mark.usefixtures("no_rules")
@pytest.mark.parametrize("block", [5, 2**16])
@pytest.mark.parametrize("digits", [0, 9])
@given(seed=st.integers(0, 999), clusters=st.integers(2, 12), samples=st.integers(4, 60))
@settings(max_examples=40, deadline=None)
def test_replicates_equal_metrics_of_explicit_resamples(
    block: int, digits: int, seed: int, clusters: int, samples: int
):
    rng = np.random.default_rng(seed)
    cluster_N = 100 * rng.integers(clusters, size=samples) - 7
    member_N = rng.random(samples) < 0.5
    member_N[:2] = True, False
    score_N = np.round(rng.normal(size=samples) + member_N, digits)
    score_N[2:][rng.random(samples - 2) < 0.1] = np.nan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resamples, "_BLOCK", block)
        actual = stats.bootstrap_intervals(
            score_N, member_N, FPRS, cluster_N=cluster_N, replicates=9, confidence=0.8, seed=seed
        )
    rows = slow_replicates(score_N, member_N, cluster_N, 9, seed)
    if len(rows):
        expected = np.quantile(rows, [0.1, 0.9], axis=0)
        np.testing.assert_allclose(ends(actual), expected, rtol=1e-13)
    points = stats.tpr_at_fpr(score_N, member_N, FPRS)
    np.testing.assert_array_equal(actual.tpr_TxF, points.tpr_TxF)
    np.testing.assert_array_equal(actual.left_out_T, points.left_out_T)


@pytest.mark.usefixtures("no_rules")
def test_two_clusters_by_hand():
    # Cluster 0 has the scores 0 (non-member) and 1 (member), cluster 1 has 2 and 3: drawing both gives an AUC of 3/4,
    # drawing one of them twice an AUC of 1.
    score, member = [0.0, 1.0, 2.0, 3.0], np.array([False, True, False, True])
    one = [
        stats.bootstrap_intervals(score, member, cluster_N=[5, 5, 8, 8], replicates=1, seed=s)
        for s in range(200)
    ]
    drawn = np.array([result.auc_low_T[0] for result in one])
    np.testing.assert_array_equal(np.unique(drawn), [0.75, 1.0])
    assert 80 <= np.sum(drawn == 0.75) <= 120
    assert one[0].auc_T[0] == 0.75


def clustered(seed: int, documents: int, pieces: int, vulnerability: float = 1.0):
    """Scores of pieces of documents; the effect of membership differs between documents."""
    rng = np.random.default_rng(seed)
    document_N = np.repeat(np.arange(documents), pieces)
    member_N = rng.random(document_N.size) < 0.5
    gap_D = 0.95 + vulnerability * rng.normal(size=documents)
    return rng.normal(size=document_N.size) + member_N * gap_D[document_N], member_N, document_N


def test_intervals_do_not_depend_on_labels_order_or_other_targets():
    score_N, member_N, document_N = clustered(0, 60, 10)
    one = stats.bootstrap_intervals(score_N, member_N, [0.2], cluster_N=document_N, replicates=50)
    order = np.random.default_rng(1).permutation(score_N.size)
    both = stats.bootstrap_intervals(
        np.stack([score_N, -score_N])[:, order],
        member_N[order],
        [0.2],
        cluster_N=3 * document_N[order] - 50,
        replicates=50,
    )
    np.testing.assert_array_equal(ends(one), ends(both))
    assert not np.isnan(ends(one)).any()


def test_single_samples_as_clusters_agree_with_independent_samples():
    score_N, member_N, _ = clustered(3, 2000, 1, 0.0)
    independent = stats.bootstrap_intervals(score_N, member_N, [0.1], replicates=2000)
    single = stats.bootstrap_intervals(
        score_N, member_N, [0.1], cluster_N=np.arange(2000), replicates=2000
    )
    np.testing.assert_allclose(ends(single)[:, 0], ends(independent)[:, 0], atol=0.003)
    np.testing.assert_allclose(ends(single)[:, 1], ends(independent)[:, 1], atol=0.02)


def test_few_clusters_have_no_intervals():
    for documents in (49, 50):
        score_N, member_N, document_N = clustered(1, documents, 20)
        result = stats.bootstrap_intervals(
            score_N, member_N, [0.2], cluster_N=document_N, replicates=20
        )
        assert np.isnan(ends(result)).all() == (documents < 50)
        assert not np.isnan(result.auc_T[0])
    # 50 clusters, of which only 49 have members.
    member_N &= document_N > 0
    result = stats.bootstrap_intervals(score_N, member_N, cluster_N=document_N, replicates=20)
    assert np.isnan(ends(result)).all()


def test_rates_that_rest_on_few_clusters_have_no_interval():
    """All high scores of non-members belong to 9 or to 10 of 60 documents."""
    document_N = np.repeat(np.arange(60), 20)
    member_N = np.arange(1200) % 2 == 0
    rng = np.random.default_rng(0)
    for documents in (9, 10):
        score_N = rng.normal(size=1200) + 1.5 * member_N
        high = ~member_N & (document_N < documents)
        score_N[high] += 100
        score_N[member_N & (np.arange(1200) % 3 == 0)] += 200  # a third of the members is above
        fpr = [high.sum() / 600, 0.5]
        result = stats.bootstrap_intervals(
            score_N, member_N, fpr, cluster_N=document_N, replicates=20
        )
        assert np.isnan(result.tpr_low_TxF[0]).tolist() == [documents < 10, False]
        samples = stats.bootstrap_intervals(score_N, member_N, fpr, replicates=20)
        assert not np.isnan(samples.tpr_low_TxF[0]).any()


def test_invalid_clusters_raise():
    score, member = [[1.0, 2.0, 3.0]], np.array([True, False, True])
    for cluster_N in ([0, 1], [[0, 1, 1]], [0.0, 1.0, 1.0], ["a", "b", "b"]):
        with pytest.raises(ValueError, match=r"cluster_N: .*integer per sample"):
            stats.bootstrap_intervals(score, member, cluster_N=cluster_N)


@pytest.mark.montecarlo
def test_only_intervals_over_documents_have_nominal_coverage():
    """80 documents with 20 pieces and a shared vulnerability; the full table is that of benchmarks/clusters.py."""
    truth = 0.7083  # AUC: Phi(0.95 / sqrt(1 + 2))
    covered = np.zeros((600, 2), bool)
    for e in range(len(covered)):
        score_N, member_N, document_N = clustered(e, 80, 20)
        for b, cluster_N in enumerate((None, document_N)):
            result = stats.bootstrap_intervals(
                score_N, member_N, cluster_N=cluster_N, replicates=300, seed=e
            )
            covered[e, b] = result.auc_low_T[0] <= truth <= result.auc_high_T[0]
    over_samples, over_documents = covered.mean(axis=0)
    assert 0.925 <= over_documents <= 0.975
    assert over_samples < 0.85
