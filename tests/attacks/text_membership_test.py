"""Members and non-members are compared by their words alone."""

import numpy as np
import pytest

from lm_mia import stats
from lm_mia.attacks import text_membership

N = 300


def make_texts(rng: np.random.Generator, samples: int = N) -> list[str]:
    return [
        " ".join(f"w{rank}" for rank in rng.geometric(0.01, rng.integers(20, 60)))
        for _ in range(samples)
    ]


def compare(texts: list[str], member_N: np.ndarray, *groups: np.ndarray) -> stats.TwoSampleAuc:
    auc = text_membership.compare_texts(texts, member_N, groups)
    assert auc is not None
    return auc


def test_other_words_are_found_and_random_members_are_not():
    rng = np.random.default_rng(0)
    texts, member_N = make_texts(rng), rng.random(N) < 0.5
    same = compare(texts, member_N)
    assert same.low < 0.5 < same.high
    years = [f"{text} in {2019 if m else 2024}." for text, m in zip(texts, member_N, strict=True)]
    assert compare(years, member_N).auc > 0.95
    unspaced = ["今日は天気" * m + "昨日の電車" for m in member_N.tolist()]
    assert compare([f"{text}{i}" for i, text in enumerate(unspaced)], member_N).auc > 0.99


@pytest.mark.parametrize("relation", ["equal", "document", "user"])
def test_related_texts_do_not_reveal_each_other(relation: str):
    """Those of a document are members or not together, and have a word that no other document has."""
    rng = np.random.default_rng(0)
    document_N = np.arange(N) // 3
    member_N = (rng.random(N // 3) < 0.5)[document_N]
    if relation == "equal":
        texts = [make_texts(rng, N // 3)[0] + f" d{d}" for d in range(N // 3)]
        auc = compare([texts[d].title() if d % 2 else texts[d] for d in document_N], member_N)
    else:
        texts = [
            f"{text} d{d} d{d} d{d}" for text, d in zip(make_texts(rng), document_N, strict=True)
        ]
        assert compare(texts, member_N).is_above_chance
        names = (
            document_N if relation == "document" else np.char.add("user", document_N.astype(str))
        )
        auc = compare(texts, member_N, names)
    assert not auc.is_above_chance


def test_unknown_users_are_not_one_user():
    rng = np.random.default_rng(0)
    texts, member_N = make_texts(rng), rng.random(N) < 0.5
    assert compare(texts, member_N, np.full(N, "", object)) == compare(texts, member_N)


def test_texts_without_common_words_are_compared():
    texts = [f"word{i}" for i in range(N)]
    assert compare(texts, np.arange(N) % 2 == 0).auc == 0.5
    assert text_membership.compare_texts(texts[:10], np.arange(10) % 2 == 0) is None


def test_the_sentence_says_what_an_auc_includes():
    above = text_membership.describe(stats.TwoSampleAuc(0.78, 0.75, 0.81), "model a")
    assert "of model a were given" in above
    assert "0.78 (0.75 to 0.81)" in above
    assert "AUC below includes" in above
    assert text_membership.HOW_TO in above
    chance = text_membership.describe(stats.TwoSampleAuc(0.52, 0.49, 0.55))
    assert "no difference" in chance
    assert "every difference" in chance
