"""Notes that the page and the figures share."""

import re
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
    assert re.findall(r"(\d+) of (\d+) \w+ (\w+)", text) == [
        ("126", "128", "references"),
        ("125", "128", "replicas"),
    ]
    assert "128 of 128 requested references" in notes.missing_models_note(FACTS | {"replicas": 125})


def test_min_replicas_depend_on_the_level() -> None:
    assert [notes.min_replicas_for_test(alpha) for alpha in (0.05, 0.01, 0.5)] == [6, 8, 3]


def test_coin_flip_note_gives_the_cutoff() -> None:
    text = notes.coin_flip_note(FACTS)
    assert "With 128 replicas" in text
    assert all(number in text for number in ("52 to 76", "0.487 ", "0.504"))
    text = notes.coin_flip_note(FACTS | {"replicas": 4, "k_low": 0})
    assert re.match(r"With 4 replicas\b.*\b0\.05\b.*\bno power\b.*\b6 replicas", text)


def test_the_note_says_how_often_stable_decisions_are_labeled() -> None:
    """8 replicas: 1 - 0.8^8 - 0.2^8 = 83.2% and 1 - 0.9^8 - 0.1^8 = 57.0%."""
    few = FACTS | {"replicas": 8, "k_low": 1}
    text = notes.coin_flip_power_note(few)
    assert text.startswith("Too few replicas")
    assert re.search(r"With 8 replicas\b.*\b0\.8\b.*\b83\.2%.*\b0\.9\b.*\b57%", text)
    assert "12, " in text
    assert "127 replicas" in text
    enough = notes.coin_flip_power_note(FACTS | {"replicas": 12, "k_low": 3})
    assert "Too few" not in enough
    assert re.search(r"\b44\.2%.*\b0\.9\b.*\b11\.1%", enough)


def test_replica_notes_describe_the_numbers() -> None:
    spread, references, left_out, cutoff, power = notes.replica_notes(FACTS)
    assert "128 replicas" in spread
    assert "128 references" in references
    assert left_out.endswith("left out: 3.")
    assert cutoff == notes.coin_flip_note(FACTS)
    assert power == notes.coin_flip_power_note(FACTS)
    assert len(notes.replica_notes(FACTS | {"left_out": 0, "replicas": 125})) == 4
    assert len(notes.replica_notes(FACTS | {"left_out": 0, "replicas": 4, "k_low": 0})) == 3
