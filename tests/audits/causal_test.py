"""Audits of members and non-members from different sources: numbers, overlap, inputs and output."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from report_html import section_ids

import lm_mia
from analysis.report import audit_causal as shown
from lm_mia import cli, stats
from lm_mia.audits import causal as audit_causal
from lm_mia.audits import causal_table as audit_causal_table
from lm_mia.data.covariates import Covariates
from lm_mia.errors import UserError

N = 600


def make_frame(shift: float = 1.0, effect: float = 0.5, samples: int = N) -> pd.DataFrame:
    """Returns scores that depend on the length and the source of a sample, and on membership."""
    rng = np.random.default_rng(0)
    length_N, is_news_N = rng.normal(5, 1, samples), rng.random(samples) < 0.5
    member_N = rng.random(samples) < 1 / (1 + np.exp(-shift * (length_N - 5.5 + is_news_N)))
    score_N = length_N + is_news_N + rng.normal(size=samples) + effect * member_N
    source = np.where(is_news_N, "news", "web")
    columns = {"score": score_N, "member": member_N.astype(int), "length": length_N}
    return pd.DataFrame(columns | {"source": source})


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return make_frame()


@pytest.fixture(scope="module")
def result(frame: pd.DataFrame) -> "lm_mia.audits.audit.Audit":
    return lm_mia.audit(frame, covariates=["length", "source"], replicates=4)


def test_adjusted_estimates_find_the_effect(result) -> None:
    causal = result.causal.set_index("estimator")
    assert [*causal.index] == [*audit_causal.ESTIMATORS]
    assert causal.loc["unadjusted", "ate"] > 1.2
    for name in ("ipw", "g_formula", "aipw"):
        assert causal.loc[name, "ate"] == pytest.approx(0.5, abs=0.2)
        assert causal.loc[name, "ate_low"] < causal.loc[name, "ate_high"]
    assert causal["has_overlap"].all()
    assert not any("unreliable" in note or "rely" in note for note in result.notes)


def test_numbers_are_those_of_the_statistics(frame, result) -> None:
    causal = result.causal.set_index("estimator")
    assert causal.loc["unadjusted", "auc"] == result.summary["auc"].iloc[0]
    tpr = result.tpr_at_fpr["tpr"].tolist()
    unadjusted = causal.loc["unadjusted", ["tpr_0.001", "tpr_0.01", "tpr_0.05", "tpr_0.1"]]
    np.testing.assert_array_equal(unadjusted.astype(float), tpr)
    for end in ("low", "high"):
        assert causal.loc["unadjusted", f"auc_{end}"] == result.summary[f"auc_{end}"].iloc[0]
        ends = [causal.loc["unadjusted", f"tpr_{fpr:g}_{end}"] for fpr in result.tpr_at_fpr["fpr"]]
        expected = result.tpr_at_fpr[end].where(result.tpr_at_fpr["tpr"].notna())
        np.testing.assert_array_equal(ends, expected)
    value_NxC = np.column_stack([frame["length"], frame["source"] == "web"])
    covariates = Covariates(("length", "source=web"), value_NxC, np.array([True, False]))
    score_N, member_N = frame["score"].to_numpy(), frame["member"].to_numpy() == 1
    adjustment = audit_causal.fit(score_N, member_N, covariates)
    expected = stats.aipw_estimate(
        score_N, member_N, adjustment.log_odds_N, adjustment.outcome, 0.01
    )
    assert causal.loc["aipw", "auc"] == expected.auc
    assert causal.loc["aipw", "tpr_0.01"] == expected.tpr_F[0]
    assert causal.loc["ipw", "effective_nonmembers"] == expected.effective_nonmembers
    aipw = result.causal_roc.query("estimator == 'aipw'")
    area = np.trapezoid(aipw["tpr"], aipw["fpr"])
    assert area == pytest.approx(expected.auc, abs=0.01)


def test_balance_and_histogram(frame, result) -> None:
    balance = result.covariate_balance.set_index("covariate")
    members, others = (frame[frame["member"] == m] for m in (1, 0))
    pooled = math.sqrt((members["length"].var(ddof=0) + others["length"].var(ddof=0)) / 2)
    difference = members["length"].mean() - others["length"].mean()
    assert balance.loc["length", "difference"] == pytest.approx(difference / pooled)
    assert balance.loc["length", "nonmembers_mean"] == pytest.approx(others["length"].mean())
    assert balance.loc["length", "difference"] > 0.5
    assert (balance["weighted_difference"].abs() < 0.15).all()
    weights = result.causal_weights
    assert weights[["members", "nonmembers"]].sum().tolist() == [len(members), len(others)]
    assert weights["nonmembers_weighted"].sum() == pytest.approx(1)


def test_csv_and_arrays_give_the_same(frame, result, tmp_path) -> None:
    frame.to_csv(tmp_path / "scores.csv", index=False)
    options = {"covariates": ("length", "source"), "replicates": 4}
    from_csv = lm_mia.audit(tmp_path / "scores.csv", **options).causal
    pd.testing.assert_frame_equal(from_csv, result.causal)
    arrays = {"score_MxN": frame["score"].to_numpy(), "member_MxN": frame["member"].to_numpy()}
    arrays |= {"length": frame["length"].to_numpy(), "source": frame["source"].to_numpy(str)}
    pd.testing.assert_frame_equal(lm_mia.audit(arrays, **options).causal, result.causal)
    arrays["length"] = arrays["length"][1:]
    with pytest.raises(UserError, match=r"'length'.*shape"):
        lm_mia.audit(arrays, **options)


def test_models_and_missing_scores(frame, result) -> None:
    two = pd.concat([frame.assign(model="a"), frame.assign(model="b")])
    two.iloc[:10, 0] = np.nan
    both = lm_mia.audit(two, covariates=["length", "source"], replicates=4).causal
    assert both.groupby("model")["left_out"].first().tolist() == [10, 0]
    second = both[both["model"] == "b"].reset_index(drop=True).assign(model="")
    pd.testing.assert_frame_equal(second, result.causal)


def test_documents_are_drawn_as_a_whole(frame) -> None:
    # Four copies of each sample, as pieces of a document, show no more than one of them.
    frame = make_frame(shift=0.3)
    copies = pd.concat([frame.assign(document=np.arange(N))] * 4)
    given = {"covariates": ["length", "source"], "replicates": 200}
    audits = [
        lm_mia.audit(table, **given) for table in (frame, copies, copies.drop(columns="document"))
    ]
    adjusted = [audit.causal.set_index("estimator").loc["aipw"] for audit in audits]
    single, pieces, naive = (float((row["auc_high"] - row["auc_low"]).item()) for row in adjusted)
    assert pieces == pytest.approx(single, rel=0.2)
    assert naive < 0.75 * pieces


def test_users_have_the_means_of_their_samples(frame, result) -> None:
    noise_N = np.random.default_rng(1).normal(size=N)
    halves = [
        frame.assign(user=np.arange(N), length=frame["length"] + s * noise_N) for s in (1, -1)
    ]
    by_user = lm_mia.audit(
        pd.concat(halves), user="user", covariates=["length", "source"], replicates=2
    )
    np.testing.assert_allclose(by_user.causal["auc"], result.causal["auc"], atol=1e-6)


def test_texts_show_the_topic() -> None:
    rng = np.random.default_rng(0)
    is_code_N = rng.random(600) < 0.5
    member_N = rng.random(600) < np.where(is_code_N, 0.8, 0.2)
    words = {
        True: ["return", "the", "value", "of", "self", "index"],
        False: ["the", "minister", "said", "on", "monday"],
    }
    texts = [" ".join(rng.choice(words[bool(c)], 12)) for c in is_code_N]
    score_N = 2.0 * is_code_N + rng.normal(size=600)  # no effect of membership
    scores = pd.DataFrame({"score": score_N, "member": member_N, "body": texts})
    audited = lm_mia.audit(scores, text="body", replicates=2)
    auc = audited.causal.set_index("estimator")["auc"]
    assert auc["unadjusted"] > 0.7
    assert auc["aipw"] == pytest.approx(0.5, abs=0.07)
    assert "text: log characters" in audited.covariate_balance["covariate"].tolist()


@pytest.mark.parametrize("shift", [0.0, 8.0])
def test_separated_sources_are_flagged(shift: float) -> None:
    frame = make_frame()
    frame["date"] = frame["member"] * shift + np.random.default_rng(1).normal(size=N)
    audited = lm_mia.audit(frame, covariates=["date"], replicates=5)
    row = audited.causal.set_index("estimator").to_dict("index")["aipw"]
    flagged = any("do not rely on the adjusted estimates" in note for note in audited.notes)
    assert bool(row["has_overlap"]) == (shift == 0)
    assert flagged == (shift > 0)
    assert math.isnan(row["auc_low"]) == (shift > 0)
    assert not math.isnan(audited.causal["auc_low"].iloc[0])  # unadjusted
    if shift:
        assert row["members_beyond_nonmembers"] > 0.9


def test_a_column_that_separates_is_infinitely_unbalanced() -> None:
    frame = make_frame().assign(leak=lambda f: f["member"], same=1.0)
    audited = lm_mia.audit(frame, covariates=["leak", "same"], replicates=2)
    assert audited.covariate_balance["difference"].tolist() == [math.inf, 0]
    assert audited.causal["members_beyond_nonmembers"].eq(1).all()
    assert any("'same' is constant" in note for note in audited.notes)


def test_attacks_on_losses_take_covariates() -> None:
    rng = np.random.default_rng(0)
    member_MxN = rng.random((6, 200)) < 0.5
    loss_MxN = 3 - member_MxN + rng.normal(0, 0.3, (6, 200))
    arrays = {"loss_MxN": loss_MxN, "member_MxN": member_MxN}
    arrays |= {"role_M": ["target", *["reference"] * (len(loss_MxN) - 1)]}
    arrays["length_N"] = rng.normal(size=200)
    audited = lm_mia.audit(arrays, covariates=["length"], replicates=2)
    assert audited.causal["attack"].nunique() == audited.summary["attack"].nunique() > 5


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (
            ["--covariates=len"],
            "column 'len' .*'score', 'member', 'length', 'source', 'copy'",
        ),
        (["--covariates=length,"], "covariates=length,: .*empty"),
        (["--covariates=score"], "'score': .*two roles"),
        (["--covariates=length,length"], "'length': .*two roles"),
        (["--covariates=copy"], "'copy' .* -1\\.0000 "),
        (["--covariates=one"], "covariates are constant"),
        (["--covariates=gap"], "column 'gap': .*1.* row 3; fill"),
        (["--covariates=name"], "column 'name': .*60 distinct"),
        (["--text=length"], "column 'length': .* double"),
        (["--covariates=length", "--membership=coins"], "nothing to adjust"),
        (
            ["--text=name", "--membership=half"],
            "--text=name: .*--membership=half",
        ),
    ],
)
def test_bad_flags(flags: list[str], problem: str, tmp_path, capsys) -> None:
    frame = make_frame(samples=60)
    frame["copy"] = np.exp(-frame["score"])
    frame["one"] = 1
    frame["gap"] = [np.nan if i == 2 else i for i in range(60)]
    frame["name"] = [f"name {i}" for i in range(60)]
    frame.to_csv(tmp_path / "scores.csv", index=False)
    assert cli.main(["audit", str(tmp_path / "scores.csv"), *flags]) == 2
    error = capsys.readouterr().err
    assert re.search(problem, error)
    assert len(error.splitlines()) == 1


def test_a_class_of_one_group() -> None:
    frame = make_frame(samples=40).assign(member=lambda f: f.index == 3)
    with pytest.raises(UserError, match=r"2 different members\b.*\b1\b"):
        lm_mia.audit(frame, covariates=["length"])


def test_small_numbers_are_used_as_large_ones() -> None:
    frame = make_frame(samples=200)
    causal, balance = [], []
    for scale in (1, 2.0**-1000):
        scaled = frame.assign(length=frame["length"] * scale)
        result = lm_mia.audit(scaled, covariates=["length"], replicates=2)
        causal.append(result.causal)
        balance.append(result.covariate_balance)
    pd.testing.assert_frame_equal(*causal)
    differences = [b["weighted_difference"].iloc[0] for b in balance]
    assert differences[0] == differences[1]
    assert abs(differences[0]) < 1


def test_few_members_are_noted() -> None:
    frame = make_frame(samples=400)
    few = pd.concat([frame[frame["member"] == 1].head(12), frame[frame["member"] == 0]])
    result = lm_mia.audit(few, covariates=["length"], replicates=2)
    assert any("12 members" in note for note in result.notes)


def test_splines_are_linear_beyond_the_outer_knots() -> None:
    value_N = np.concatenate([np.random.default_rng(0).normal(size=200), np.arange(10.0, 15.0)])
    basis_NxD = audit_causal._spline(value_N)
    assert basis_NxD.shape == (205, 4)
    second = np.diff(basis_NxD[-5:], n=2, axis=0)
    np.testing.assert_allclose(second, 0, atol=1e-9)
    assert audit_causal._spline(np.repeat([0.0, 1.0], 50)).shape == (100, 1)
    assert np.isfinite(audit_causal._spline(np.array([0, 1, 2, 3, 4, 1e29]))).all()


def test_command_prints_and_writes(frame, tmp_path, capsys) -> None:
    path, out = tmp_path / "scores.csv", tmp_path / "out"
    frame.to_csv(path, index=False)
    argv = ["audit", str(path), "--covariates=length,source", "--replicates=5", f"--out={out}"]
    assert cli.main(argv) == 0
    printed = capsys.readouterr().out
    for line in ("adjusted for covariates", "both", "(AIPW) *", "mean effect", "covariates alone"):
        assert line in printed
    assert {*audit_causal.TABLES} < {file.stem for file in out.glob("*.csv")}
    page = (out / "audit.html").read_text()
    assert "causal" in section_ids(page)
    auc = pd.read_csv(out / "causal.csv").set_index("estimator").loc["aipw", "auc"]
    assert f"{auc:.3f}" in page
    assert f"{auc:.3f}" in printed


def test_several_models_are_printed_in_lines(frame, result) -> None:
    table = audit_causal_table.causal_table(
        pd.concat([result.causal.assign(model=name) for name in "ab"])
    )
    assert table.row_count == 2


def test_rates_that_need_more_nonmembers_are_missing(frame, tmp_path, capsys) -> None:
    path, out = tmp_path / "scores.csv", tmp_path / "out"
    frame.to_csv(path, index=False)
    argv = ["audit", str(path), "--covariates=length,source", "--replicates=5", "--fprs=1e-5"]
    assert cli.main([*argv, f"--out={out}"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("needs 100,000") >= 3  # the rate itself, unadjusted, and with weights
    tpr = pd.read_csv(out / "causal.csv").set_index("estimator")["tpr_1e-05"]
    assert np.isnan(tpr["unadjusted"])
    assert "needs 100,000 non-members" in (out / "audit.html").read_text()


def test_page_and_command_name_the_same_estimators() -> None:
    assert (*shown.ESTIMATORS,) == (*audit_causal_table.LABELS,)
    assert (*shown.ESTIMATORS,) == audit_causal.ESTIMATORS
    assert shown.RECOMMENDED == audit_causal.RECOMMENDED
