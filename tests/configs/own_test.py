"""The figures of StrongMIA on a user's own texts."""

from lm_mia.config import Config, load

CONFIGS = load.included_configs()


def recipes_of(config_arg: str) -> dict[str, Config]:
    return {c.name: c for _, c in load.load_sweep(config_arg)}


def test_own_texts_use_the_recipes_of_strongmia():
    own = recipes_of(f"{CONFIGS}/own.py")
    assert list(own) == list(recipes_of(f"{CONFIGS}/strongmia.py:cpu"))
    assert {c.corpus.source for c in own.values()} == {"text"}
    code = (CONFIGS / "own.py").read_text().split(chr(34) * 3)[2]
    assert len(code.split("\n")) - code.split("\n").count("") <= 10


def test_own_accepts_the_argument_of_strongmia():
    own = recipes_of("own:fig01,fig05,gpu")
    assert list(own) == ["main", "flip-302M"]
    assert own["main"].figures == ("strongmia_fig01_references", "strongmia_fig05_instability")
    assert own["main"].corpus.path == "texts"
    # Own texts may be fewer than the million on which the tokenizer of C4 is trained, and may have duplicates.
    assert {(c.tokenizer.documents, c.corpus.deduplicate) for c in own.values()} == {(0, "exact")}
