"""Notes that the page and the figures share."""

from typing import Any

from analysis import notes

FACTS: dict[str, Any] = {
    "config": {"references": 128, "replicas": 128, "alpha": 0.05},
    "references": 128,
    "replicas": 128,
    "k_low": 52,
    "cutoff": 0.4875,
    "max_flip_rate": 0.504,
    "left_out": 3,
}


def test_missing_models_are_counted_by_role() -> None:
    assert notes.missing_models_note(FACTS) == ""
    text = notes.missing_models_note(FACTS | {"references": 126, "replicas": 125})
    assert "126 of 128 requested references and 125 of 128 requested replicas" in text
    assert "128 of 128 requested references" in notes.missing_models_note(FACTS | {"replicas": 125})


def test_min_replicas_depend_on_the_level() -> None:
    assert [notes.min_replicas_for_test(alpha) for alpha in (0.05, 0.01, 0.5)] == [6, 8, 3]


def test_coin_flip_note_gives_the_cutoff() -> None:
    text = notes.coin_flip_note(FACTS)
    assert "With 128 replicas" in text
    assert "when 52 to 76 of them" in text
    assert "a flip rate of 0.487 or more; the largest possible is 0.504" in text
    text = notes.coin_flip_note(FACTS | {"replicas": 4, "k_low": 0})
    assert "With 4 replicas the exact two-sided binomial test at level 0.05 has no power" in text
    assert text.endswith("At least 6 replicas are needed.")


def test_the_note_says_how_often_stable_decisions_are_labeled() -> None:
    """8 replicas: 1 - 0.8^8 - 0.2^8 = 83.2% and 1 - 0.9^8 - 0.1^8 = 57.0%."""
    few = FACTS | {"replicas": 8, "k_low": 1}
    text = notes.coin_flip_power_note(few)
    assert text.startswith("Too few replicas: with fewer than 12,")
    assert "With 8 replicas, a sample that each replica calls a member with probability 0.8" in text
    assert "a coin flip in 83.2% of the cases, and one with probability 0.9 in 57%." in text
    assert "127 replicas" in text
    enough = notes.coin_flip_power_note(FACTS | {"replicas": 12, "k_low": 3})
    assert "Too few" not in enough
    assert "in 44.2% of the cases, and one with probability 0.9 in 11.1%." in enough


def test_replica_notes_describe_the_numbers() -> None:
    spread, references, left_out, cutoff, power = notes.replica_notes(FACTS)
    assert "means over 128 replicas of one target" in spread
    assert references == "Every replica is attacked with the same 128 references."
    assert left_out.endswith("left out: 3.")
    assert cutoff == notes.coin_flip_note(FACTS)
    assert power == notes.coin_flip_power_note(FACTS)
    assert len(notes.replica_notes(FACTS | {"left_out": 0, "replicas": 125})) == 4
    assert len(notes.replica_notes(FACTS | {"left_out": 0, "replicas": 4, "k_low": 0})) == 3
