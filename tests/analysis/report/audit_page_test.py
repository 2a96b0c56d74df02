"""The page of an audit: the answer first, and the numbers of the tables."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import report_html
from markupsafe import Markup
from report_html import description, lead, row_of

import lm_mia
from analysis import formatting
from analysis.report import audit_page, numbers
from analysis.report.audit_page import Audited
from analysis.report.document import Table
from analysis.report.numbers import FRACTION, Estimate
from lm_mia.audits.audit import Audit as AuditResult

N = 1000


def table(seed: int, effect: float, **columns: Any) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    member_N = rng.random(N) < 0.5
    score_N = rng.normal(size=N) + effect * member_N
    return pd.DataFrame({"score": score_N, "member": member_N.astype(int)} | columns)


def of_losses() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    member_MxN = rng.random((9, N)) < 0.5
    loss_MxN = 2 + rng.gamma(9, 0.3, N) - 0.4 * member_MxN + rng.normal(0, 0.3, (9, N))
    return {
        "loss_MxN": loss_MxN,
        "member_MxN": member_MxN,
        "role_M": ["target", *["reference"] * (len(loss_MxN) - 1)],
    }


def sources() -> pd.DataFrame:
    one = table(0, 1.0)
    length_N = np.random.default_rng(2).normal(size=N) + 0.7 * one["member"]
    return one.assign(length=length_N, score=one["score"] + length_N)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "scores": (table(0, 1.0), {"membership": "coins"}),
    "given": (table(0, 1.0), {}),
    "losses": (of_losses(), {"membership": "half"}),
    "models": (
        pd.concat([table(0, 1.0, model="<b>"), table(1, 2.0, model="c")]),
        {"membership": "half"},
    ),
    "users": (table(0, 1.0, user=np.arange(N)), {"user": "user", "membership": "coins"}),
    "sources": (sources(), {"covariates": ("length",)}),
    "independent": (table(0, 1.0), {"membership": "independent"}),
}


@pytest.fixture(scope="module")
def audits() -> dict[str, tuple[AuditResult, Audited]]:
    results = {}
    for name, (source, settings) in CASES.items():
        result = lm_mia.audit(source, replicates=20, **settings)
        results[name] = result, Audited(result.tables(), settings.get("membership", "given"))
    return results


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, audits: Any, tmp_path: Path) -> tuple[str, Audited, str]:
    """Returns the name of a case, its tables, and its page."""
    result, audited = audits[request.param]
    path = audit_page.write(
        tmp_path, f"dir/{request.param}.csv", audited.membership, audited.tables,
        result.warnings, ["a <note>"],
    )  # fmt: skip
    return request.param, audited, path.read_text("utf-8")


def test_what_holds_for_every_page(case: tuple[str, Audited, str]):
    name, _, html = case
    page = report_html.check(html)
    assert f"{name}.csv" in page.words
    assert "/dir" not in html
    assert "A &lt;note&gt;." in html
    assert len(report_html.unfolded(html).split()) <= report_html.MAX_WORDS
    assert len(html.encode()) <= report_html.MAX_BYTES
    assert len(lead(html).split()) <= 90
    for finding in re.findall(r"(?s)<summary>.*?<span>(.*?)</span></summary>", html):
        assert len(str(Markup(finding).striptags()).split()) <= 20
    for part in re.findall(r"(?s)<(?:fig)?caption>(.*?)</(?:fig)?caption>", html):
        assert len(str(Markup(part).striptags()).split()) <= 60


def test_the_command_says_the_sentence_of_the_page(case: tuple[str, Audited, str]):
    _, audited, html = case
    assert audit_page.sentences(audited.tables, audited.membership) == lead(html)


def test_numbers_are_those_of_the_tables(case: tuple[str, Audited, str]):
    """In the sentence, the facts, the table, and the descriptions of the charts."""
    name, audited, html = case
    points = audited.tables["tpr_at_fpr"]
    first = points[(points["attack"] == audited.headline) & np.isclose(points["fpr"], 0.05)]
    found_T = [
        Estimate(*(float(row[n]) for n in ("tpr", "low", "high")))
        for row in first.to_dict("records")
    ]
    if name == "models":
        mean = Estimate(float(first["tpr"].mean()))
        assert f"finds {numbers.value(mean)} on average " in lead(html)
        ends = [numbers.value(Estimate(end)) for end in (first["tpr"].min(), first["tpr"].max())]
        assert f"({ends[0]} to {ends[1]})" in lead(html)
        assert f"{numbers.value(mean)} found" in description(html, "answer")
        return
    found = numbers.plain(found_T[0])
    auc = audited.tables["summary"].iloc[0]
    auc = numbers.plain(Estimate(*(auc[n] for n in ("auc", "auc_low", "auc_high"))), FRACTION)
    assert f"AUC {auc}." in report_html.text_of(html, '<dl class="facts">', "</dl>")
    if name == "sources":
        causal = audited.tables["causal"].set_index("estimator").to_dict("index")["aipw"]
        adjusted = Estimate(*(causal[f"tpr_0.05{end}"] for end in ("", "_low", "_high")))
        assert f"finds {numbers.plain(adjusted)} at 5 false alarms" in lead(html)
        assert f"Without adjustment: {numbers.value(found_T[0])}." in lead(html)
        assert f"{numbers.value(adjusted)} found" in description(html, "answer")
        assert f"Both (AIPW) {numbers.plain(adjusted)}" in description(html, "causal-roc")
        return
    assert f"finds {found} at 5 false alarms" in lead(html)
    label = "Scores" if audited.headline == "score" else "Stacked LiRA"
    cells = row_of(html, label)
    for number in (found, auc):
        assert number.replace("(", "").replace(")", "") in cells
    assert f"{label} {found}" in description(html, "roc")
    assert f"{found.split()[0]} found" in description(html, "answer")
    assert found in description(html, "change")


def test_bounds_are_claimed_only_where_they_hold(case: tuple[str, Audited, str]):
    name, audited, html = case
    table = audited.tables["audit"]
    bounds = table[table["is_bound"].astype(bool)]["epsilon"]
    details = html.partition('id="d-privacy"')[2].partition("</details>")[0]
    assert details.count('class="headline"') == len(bounds)
    assert all(f"{epsilon:.3f}" in details for epsilon in bounds)
    if name in ("given", "sources"):
        assert len(bounds) == 0
        assert "No bound" in details
        assert "reveals at least" not in lead(html)
    elif name != "models":
        assert f"at least ε {formatting.lower_bound(bounds.iloc[0])} " in lead(html)
        assert f"at least {formatting.lower_bound(bounds.iloc[0])} " in details
    has_guesses = name not in ("given", "sources", "independent")
    assert bool(description(html, "guesses")) == has_guesses


def test_canaries_of_a_random_half_are_pairs(case: tuple[str, Audited, str]):
    _, audited, html = case
    details = html.partition('id="d-privacy"')[2].partition("</details>")[0]
    table = audited.tables["audit"]
    pairs = table[table["method"].str.startswith("one_run")]["canaries"]
    for count in pairs:
        assert (f"{count:,} pairs" in details) == (audited.membership == "half")


def test_a_rate_without_a_tpr_has_no_interval(case: tuple[str, Audited, str]):
    _, audited, html = case
    rows = audited.tables["tpr_at_fpr"]
    rows = rows[rows["tpr"].isna()]
    assert rows["high"].notna().any()
    for high in rows["high"].dropna():
        assert f"0.000 to {high:.3f}" not in html


def test_more_references_are_advised_only_if_there_are_some():
    for attack, is_advised in (("rmia", True), ("loss", False), ("score", False)):
        tables = {name: frame.assign(attack=attack) for name, frame in invented().tables.items()}
        tables["tpr_at_fpr"]["low"] = 0.0
        text = audit_page.sentences(tables, "given")
        assert "may find more" in text
        assert ("references" in text) == is_advised


def test_all_numbers_are_folded_below(case: tuple[str, Audited, str]):
    _, audited, html = case
    details = html.partition('id="d-numbers"')[2].partition("</details>")[0]
    words = " ".join(str(Markup(details.replace("<", " <")).striptags()).split())
    for row in audited.tables["summary"].to_dict("records"):
        for metric in ("auc", "balanced_accuracy"):
            assert f"{row[metric]:.3f}" in words
        assert f"{int(row['members']):,} {int(row['nonmembers']):,}" in words
    for row in audited.tables["tpr_at_fpr"].to_dict("records"):
        assert "needs" in words if np.isnan(row["tpr"]) else f"{row['tpr']:.3f}" in words
    assert audited.tables["summary"]["auc"].map("{:.3f}".format).isin(words.split()).all()


def test_users_with_the_highest_scores_are_listed(audits: Any):
    result, audited = audits["users"]
    page = audit_page.page("a", audited, result.warnings, result.notes)
    [section] = [section for section in page.sections if section.id == "users"]
    groups = audited.tables["groups"]
    top = groups[groups["member"]].sort_values("score", ascending=False)["user"].astype(str)
    [table] = section.blocks
    assert isinstance(table, Table)
    assert [row.cells[0] for row in table.rows] == top[:8].tolist()


def test_names_are_escaped(audits: Any):
    _, audited = audits["models"]
    html = audit_page.document.render(audit_page.page("<i>", audited, (), ()))
    assert "Model &lt;b&gt;" in html
    assert "Model <b>" not in html
    assert "<i>" not in html


# --- The rate, and cases without a number -----------------------------------------------------------------------------


def invented(models: int = 1, **changes: Any) -> Audited:
    row = {"attack": "rmia", "model": "", "members": 500, "nonmembers": 1000, "unit": "sample"}
    row |= {"auc": 0.8, "auc_low": 0.78, "auc_high": 0.82} | changes
    points = pd.DataFrame(
        {"attack": "rmia", "model": "", "fpr": [0.001, 0.01, 0.1], "tpr": [0.02, 0.2, 0.6]}
        | {"low": [0.0, 0.15, 0.55], "high": [0.1, 0.25, 0.65]}
    )
    epsilon = pd.DataFrame(columns=["attack", "is_bound"])
    names = ["", "b", "c"][:models]
    tables = {
        "summary": pd.concat([pd.DataFrame([row | {"model": name}]) for name in names]),
        "tpr_at_fpr": pd.concat([points.assign(model=name) for name in names]),
        "audit": epsilon,
    }
    return Audited(tables, "given")


def said(audited: Audited) -> str:
    return audit_page.sentences(audited.tables, audited.membership)


def test_the_rate_is_the_lowest_that_allows_ten_false_positives():
    assert "20 (15 to 25) at one " in said(invented())
    assert "60 (55 to 65) at 10 " in said(invented(nonmembers=200))


@pytest.mark.parametrize("models", [1, 2])
def test_too_few_nonmembers_give_no_number_of_members_found(models: int):
    text = said(invented(models, nonmembers=50))
    assert re.search("too few", text, re.IGNORECASE)
    assert "0.80" in text
    assert "finds" not in text.replace("an attacker finds", "")


def test_models_that_look_like_guessing_are_said_to_be():
    audited = invented(3)
    audited.tables["tpr_at_fpr"]["low"] = 0.0
    assert re.search(r"told from guessing\b.*\b3 models", said(audited))


def test_sources_without_overlap_have_no_number(audits: Any):
    _, audited = audits["sources"]
    causal = audited.tables["causal"].assign(has_overlap=False)
    tables = {**audited.tables, "causal": causal}
    text = said(Audited(tables, "given"))
    assert "cannot be compared" in text
    assert "100 members" not in text
    page = audit_page.page("a", Audited(tables, "given"), (), ())
    assert page.icons is None
