"""The first sentences of the page: which numbers they name, and what they must not claim."""

import dataclasses
import math
import re

import pytest
from markupsafe import Markup

from analysis.report import answer
from analysis.report.answer import Answer, Epsilon, Findings
from analysis.report.charts import NotDrawn
from analysis.report.numbers import Estimate
from lm_mia import stats

NAN = math.nan
FOUND, MISSED = Estimate(0.2512, 0.1811, 0.3203), Estimate(0.462, 0.411, 0.514)
AUC = Estimate(0.881, 0.862, 0.899)
FINDINGS = Findings(0.01, FOUND, AUC, MISSED, 1024, 1000, 16, has_replicas=True)
NEVER = ("vulnerable", "safe", "high risk", "significant", "p-value", "FPR", "TPR", "nan")
"""Words that the page never says, and symbols that a reader would have to know."""


def findings(**changes: object) -> Findings:
    return dataclasses.replace(FINDINGS, **changes)


def of_targets(trainings: int, **changes: object) -> Findings:
    return findings(trainings=trainings, has_replicas=False, missed=Estimate(NAN), **changes)


def numbers_of(text: str) -> list[str]:
    """Returns the numbers of a text, in order."""
    return re.findall(r"−?\d+(?:,\d{3})*(?:\.\d+)?", text)


def first_and_second(found: Findings) -> tuple[str, str]:
    first, second = (str(Markup(part).striptags()) for part in answer.answer(found).lead)
    return first, second


CASES = {
    "replicas": FINDINGS,
    "few replicas": findings(trainings=5),
    "one target": of_targets(1),
    "targets": of_targets(4),
    "guessing": findings(found=Estimate(0.012, 0.004, 0.03)),
    "no interval": findings(found=Estimate(0.66), missed=Estimate(0.23), nonmembers=180),
    "higher rate": findings(fpr=0.1, nonmembers=140),
    "few non-members": findings(nonmembers=99),
    "few hits": findings(members=30),
    "reversed": findings(auc=Estimate(0.31, 0.28, 0.34)),
    "nothing known": findings(found=Estimate(NAN), auc=Estimate(NAN), missed=Estimate(NAN)),
}


@pytest.mark.parametrize("found", CASES.values(), ids=CASES)
def test_sentences_are_complete_and_plain(found: Findings):
    result = answer.answer(found)
    assert result.text
    assert all(str(Markup(part).striptags()).endswith(".") for part in result.lead)
    assert not [word for word in NEVER if re.search(rf"\b{word}\b", result.text)]
    assert "<" not in result.text
    assert len(result.text.split()) <= 60 + 30  # two sentences, and what cannot be said


def test_members_found_and_missed_of_twelve_trainings_or_more():
    first, second = first_and_second(FINDINGS)
    assert numbers_of(first) == ["100", "25", "18", "32", "100", "1"]
    assert numbers_of(second) == ["25", "46", "41", "51"]
    assert "another batch order" in second
    assert "cannot be said" not in second
    assert answer.answer(FINDINGS).has_hits


@pytest.mark.parametrize(
    ("trainings", "unsaid"),
    [
        *((n, "any text") for n in range(2, 6)),
        *((n, "unanimous") for n in range(6, 9)),
        *((n, "most texts") for n in range(9, 12)),
    ],
)
def test_few_trainings_do_not_tell_which_texts(trainings: int, unsaid: str):
    first, second = first_and_second(findings(trainings=trainings))
    assert numbers_of(first) == ["100", "25", "18", "32", "100", "1"]
    assert numbers_of(second)[:5] == ["25", "46", "41", "51", str(trainings)]
    assert {"any text", "unanimous", "most texts"} & {
        words for words in ("any text", "unanimous", "most texts") if words in second
    } == {unsaid}
    assert second.endswith("12 or more can.")
    # What is said of single texts follows from the test of fair coins.
    k_low, _ = stats.coin_flip_cutoff(trainings)
    assert {0: "any text", 1: "unanimous", 2: "most texts"}[k_low] == unsaid


@pytest.mark.parametrize("trainings", [1, 4])
def test_without_replicas_nothing_is_said_about_retraining(trainings: int):
    first, second = first_and_second(of_targets(trainings))
    assert numbers_of(first) == ["100", "25", "18", "32", "100", "1"]
    assert "cannot be said" in second
    assert "missed" not in second
    assert numbers_of(second) == []
    assert ("one training" in second) == (trainings == 1)


@pytest.mark.parametrize(
    "found", [Estimate(0.012, 0.004, 0.03), Estimate(0.012), Estimate(0.01, 0.01, 0.02)]
)
def test_an_interval_that_contains_the_rate_is_guessing(found: Estimate):
    result = answer.answer(findings(found=found))
    assert "told from guessing" in result.text
    assert "an attacker finds" not in result.text
    assert "missed" not in result.text
    assert (result.has_hits, result.is_reversed) == (False, False)


@pytest.mark.parametrize(("share", "is_guessing"), [(0.03, True), (0.032, False), (0.66, False)])
def test_without_an_interval_the_possible_rate_of_the_threshold_counts(
    share: float, is_guessing: bool
):
    """With 1 false alarm among 180 non-members, up to 3.06 % of others can be above the threshold."""
    found = findings(found=Estimate(share), missed=Estimate(0.23), members=1800, nonmembers=180)
    result = answer.answer(found)
    assert ("told from guessing" in result.text) == is_guessing
    assert result.has_hits == (not is_guessing)
    if not is_guessing:
        assert "180 non-members allow 1 false alarm," in result.text
        assert "attack.focus_fpr" in result.text
        assert "23 %" in result.text


def test_guessing_at_one_rate_is_not_guessing_at_all_rates():
    found = Estimate(0.012, 0.004, 0.03)
    text = answer.answer(findings(found=found, auc=Estimate(0.73, 0.69, 0.76))).text
    assert "guessing at this rate" in text
    assert "AUC 0.73" in text
    text = answer.answer(findings(found=found, auc=Estimate(0.53, 0.49, 0.57))).text
    assert "told from guessing. " in text
    assert "AUC" not in text


def test_less_than_guessing_is_no_attack():
    """With 5,000 members, even 0.2 of 100 are 10 hits."""
    result = answer.answer(findings(found=Estimate(0.002, 0.001, 0.008), members=5000))
    assert "an attacker finds" not in result.text
    assert not result.has_hits


@pytest.mark.parametrize(("fpr", "nonmembers"), [(0.05, 200), (0.05, 999), (0.1, 100), (0.1, 199)])
def test_a_rate_above_one_says_what_the_next_lower_one_needs(fpr: float, nonmembers: int):
    found = findings(fpr=fpr, nonmembers=nonmembers)
    first, second, third = (str(Markup(part).striptags()) for part in answer.answer(found).lead)
    rate = f"{100 * fpr:.0f}"
    assert numbers_of(first) == ["100", "25", "18", "32", rate, "100", rate]
    assert numbers_of(second) == ["25", "46", "41", "51"]
    lower, needed = {0.05: ("0.01", "1,000"), 0.1: ("0.05", "200")}[fpr]
    per_100 = f"{100 * float(lower):.0f}"
    assert numbers_of(third) == ["10", per_100, "100", needed, str(nonmembers), lower]
    assert f"--config.attack.focus_fpr={lower}" in third
    assert f"--fprs={lower}" in answer.answer(found, rate_flag="--fprs").text


@pytest.mark.parametrize(("fpr", "nonmembers"), [(0.05, 1000), (0.1, 200), (0.1, 5000), (0.2, 150)])
def test_a_higher_rate_than_needed_was_chosen(fpr: float, nonmembers: int):
    """Then the user asked for it, and the page gives no reason."""
    found = findings(fpr=fpr, nonmembers=nonmembers, found=Estimate(0.5, 0.4, 0.6))
    assert len(answer.answer(found).lead) == 2


@pytest.mark.parametrize(
    "found",
    [
        findings(nonmembers=99),
        findings(members=39),  # 9.8 hits
        findings(found=Estimate(NAN)),
    ],
)
def test_too_few_samples_have_an_auc_only(found: Findings):
    result = answer.answer(found)
    assert numbers_of(result.text) == [
        f"{found.members:,}",
        f"{found.nonmembers:,}",
        *("0.88", "0.86", "0.90", "0.5"),
    ]
    assert "too few" in result.text
    assert not result.has_hits


def test_too_few_samples_without_an_auc():
    result = answer.answer(findings(nonmembers=1, auc=Estimate(NAN)))
    assert numbers_of(result.text) == ["1,024", "1"]
    assert "1 non-member " in result.text
    assert "AUC" not in result.text


def test_reversed_scores_are_named_and_nothing_is_found():
    result = answer.answer(CASES["reversed"])
    assert numbers_of(result.text) == ["0.31", "0.28", "0.34"]
    assert "finds" not in result.text
    assert (result.has_hits, result.is_reversed) == (False, True)


@pytest.mark.parametrize(
    "auc", [Estimate(0.45, 0.39, 0.51), Estimate(0.31), Estimate(0.5, 0.49, 0.5)]
)
def test_an_auc_that_may_be_above_a_half_is_not_reversed(auc: Estimate):
    assert not answer.answer(findings(auc=auc)).is_reversed


def test_canaries_have_a_bound_on_epsilon():
    result = answer.answer(FINDINGS, epsilon=Epsilon(1.2389, 1e-5))
    assert "at least ε 1.23 " in result.text
    assert "1e-05" in result.text
    assert "25 (18 to 32)" in result.text


@pytest.mark.parametrize("bound", [0.0, -0.3, NAN])
@pytest.mark.parametrize("case", ["replicas", "guessing"])
def test_no_bound_on_epsilon_is_no_leak_that_could_be_shown(bound: float, case: str):
    result = answer.answer(CASES[case], epsilon=Epsilon(bound, 1e-5))
    assert "No leak" in result.text
    assert not re.search(r"ε|−|nan", result.text.replace("δ", ""))


@pytest.mark.parametrize("found", CASES.values(), ids=CASES)
def test_while_models_are_made_every_answer_is_so_far(found: Findings):
    running, done = answer.answer(found, so_far=True), answer.answer(found)
    assert running.text.startswith("So far, ")
    assert numbers_of(running.text) == numbers_of(done.text)


def test_while_models_are_made_the_number_is_so_far():
    running = answer.answer(FINDINGS, so_far=True)
    assert running.text.startswith("So far, ")
    assert numbers_of(running.text) == numbers_of(answer.answer(FINDINGS).text)
    assert "So far" not in answer.answer(FINDINGS).text


@pytest.mark.parametrize("found", CASES.values(), ids=CASES)
def test_icons_show_the_numbers_of_the_sentence(found: Findings):
    result = answer.answer(found)
    drawing = answer.icons(found, result)
    if "finds" not in result.text.replace("how many members an attacker finds", ""):
        assert drawing is None or isinstance(drawing, NotDrawn)
        return
    assert drawing is not None
    shown = numbers_of(str(Markup(drawing).striptags()))
    assert f"{100 * found.found.value:.0f}" in shown
    has_missed = "would be missed" in result.text
    assert (f"{100 * MISSED.value:.0f} %" in str(drawing)) <= has_missed


def test_answers_are_equal_in_html_and_plain_text():
    result = answer.answer(FINDINGS)
    assert isinstance(result, Answer)
    assert result.text == " ".join(str(Markup(part).striptags()) for part in result.lead)
