import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import StepPatch

import lm_mia
from analysis import audit_page


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(0)
    member_N = rng.random(200) < 0.5
    score_N = rng.normal(size=200) + member_N
    one = pd.DataFrame({"score": score_N, "member": member_N})
    two = pd.concat([one.assign(model="<b>"), one.assign(model="c", score=-score_N)])
    return [
        lm_mia.audit(scores, membership="coins", replicates=5).tables() for scores in (one, two)
    ]


def test_roc_curves_have_the_auc_in_the_legend(tables):
    for audit in tables:
        [axes] = audit_page.draw_roc(audit).axes
        labels = [str(line.get_label()) for line in axes.lines]
        for auc, label in zip(audit["summary"]["auc"], labels[:-1], strict=True):
            assert f"(AUC {auc:.3f})" in label
        curve = axes.lines[0].get_xydata()
        expected = audit["roc"][audit["roc"]["model"] == audit["summary"]["model"][0]]
        expected = expected[(expected["fpr"] > 0) & (expected["tpr"] > 0)][["fpr", "tpr"]]
        np.testing.assert_array_equal(curve, expected)


def test_histograms_are_densities(tables):
    for audit in tables:
        panels = audit_page.draw_histograms(audit).axes
        assert len(panels) == len(audit["summary"])
        for axes in panels:
            for stairs in axes.patches:
                assert isinstance(stairs, StepPatch)
                values, edges, _ = stairs.get_data()
                assert (values * np.diff(edges)).sum() == pytest.approx(1)


def test_guesses_reach_the_bound(tables):
    for audit in tables:
        [axes] = audit_page.draw_guesses(audit).axes
        highest = max(np.max(np.asarray(line.get_ydata())) for line in axes.lines[:-1])
        bounds = audit["audit"].query("method == 'one_run'")
        assert highest == bounds["epsilon"].max()
        assert np.max(np.asarray(axes.lines[-1].get_ydata())) == bounds["ceiling"].max()


def test_page_shows_bounds_notes_and_escaped_names(tables, tmp_path):
    audit = tables[1]
    path = audit_page.write(tmp_path, "dir/scores.csv", "coins", audit, ["a <note>"])
    page = path.read_text()
    assert "Audit of scores.csv" in page
    assert "A &lt;note&gt;." in page
    assert "fair coin" in page
    bounds = audit["audit"].query("is_bound")["epsilon"]
    assert all(f"{epsilon:.3f}" in page for epsilon in bounds)
    assert page.count('class="focus"') == len(bounds) == 2
    assert "model &lt;b&gt;" in page
    assert "model <b>" not in page


def test_a_page_without_bounds_has_no_curve_of_guesses(tables, tmp_path):
    audit = dict(tables[0])
    audit["audit"] = audit["audit"][:2]
    audit["audit_curve"] = audit["audit_curve"][:0]
    page = audit_page.write(tmp_path, "scores.csv", "given", audit, []).read_text()
    assert page.count("data:image/png") == 2
    assert "an estimate, not a bound" in page
