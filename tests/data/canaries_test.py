import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from lm_mia import stats
from lm_mia.data import canaries
from lm_mia.errors import UserError

WORDS = np.array([f"w{i}" for i in range(300)])
RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS, length)) for length in RNG.integers(5, 40, 200)]
IDS = [f"text-{i}" for i in range(len(TEXTS))]
NUMBERS: dict[canaries.Source, int] = {"held_out": 40, "new_words": 50, "random_words": 60}


def make(ids=IDS, texts=TEXTS, numbers=NUMBERS, seed=0):
    return canaries.make(ids, texts, numbers, seed).to_pandas()


def test_each_source_has_its_number_and_kind_of_texts():
    made = make()
    assert made["source"].value_counts().to_dict() == NUMBERS
    assert made["id"].tolist() == list(range(150))
    assert made["text"].is_unique
    text_of = dict(zip(IDS, TEXTS, strict=True))
    held_out = made.query("source == 'held_out'")
    assert [text_of[name] for name in held_out["name"]] == held_out["text"].tolist()
    invented: list[str] = []
    for row in made.query("source == 'new_words'").itertuples():
        old, new = (str(text).split() for text in (text_of[str(row.name)], row.text))
        assert len(old) == len(new)
        changed = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        assert changed == list(range(3, len(old), 4))
        invented += [new[i] for i in changed]
    assert len(set(invented)) == len(invented)
    assert not {*invented} & {*WORDS}
    random = made.query("source == 'random_words'")
    lengths = {len(text.split()) for text in random["text"]}
    assert lengths == {int(np.median([len(text.split()) for text in TEXTS]))}
    assert {word for text in random["text"] for word in text.split()} <= {*WORDS}
    assert not {*random["text"]} & {*TEXTS}
    assert set(random["name"]) == {""}
    assert made.query("source != 'random_words'")["name"].is_unique


def test_canaries_are_a_function_of_seed_and_texts_in_any_order():
    made = make()
    assert make().equals(made)
    assert make(IDS[::-1], TEXTS[::-1]).equals(made)
    other = make(seed=1)
    assert not other["text"].equals(made["text"])
    assert not other["member"].equals(made["member"])


def test_coins_are_fair_and_independent_of_the_source():
    heads = np.array([make(numbers={"held_out": 9, "new_words": 0, "random_words": 9}, seed=s)["member"]
                      for s in range(300)])  # fmt: skip
    assert abs(heads.mean() - 0.5) < 4 * 0.5 / np.sqrt(heads.size)
    assert np.abs(np.corrcoef(heads.T) - np.eye(18)).max() < 4.5 / np.sqrt(300)


def test_white_space_of_texts_is_kept_and_short_texts_get_a_new_word():
    numbers: dict[canaries.Source, int] = {"held_out": 0, "new_words": 3, "random_words": 0}
    texts = ["one\n\n two\tthree  four five", "short", "two words "]
    made = make(["a", "b", "c"], texts, numbers).set_index("name")["text"]
    assert made["a"].startswith("one\n\n two\tthree  ")
    assert made["a"].endswith(" five")
    assert made["b"] != "short"
    assert made["b"].isalpha()
    assert made["c"].startswith("two ")
    assert made["c"].endswith(" ")


def test_empty_and_repeated_texts_are_not_used():
    numbers: dict[canaries.Source, int] = {"held_out": 2, "new_words": 0, "random_words": 0}
    made = make(["a", "b", "c", "d"], ["x y", "  ", "z", "x y"], numbers)
    assert {*made["text"]} == {"x y", "z"}
    assert {*made["name"]} == {"a", "c"}
    with pytest.raises(UserError, match=r"\b3 different texts\b.*\b2\b"):
        make(["a", "b", "c", "d"], ["x y", "  ", "z", "x y"], numbers | {"held_out": 3})


def test_too_few_words_are_named():
    for texts in (["one two", "two one"], [" "]):
        with pytest.raises(UserError, match=r"^--random-words=5: "):
            make(IDS[: len(texts)], texts, dict(zip(canaries.SOURCES, (0, 0, 5), strict=True)))


@pytest.mark.parametrize(
    ("numbers", "seed", "fields"),
    [
        ((-1, 0, 5), -2, ["--held-out=-1", "--seed=-2"]),
        ((0, 0, 0), 0, ["--held-out=0, --new-words=0, --random-words=0"]),
    ],
)
def test_impossible_numbers_are_named(numbers, seed, fields):
    with pytest.raises(UserError) as error:
        canaries.check(dict(zip(canaries.SOURCES, numbers, strict=True)), seed)
    assert [line.partition(":")[0] for line in str(error.value).splitlines()] == fields


def test_files_have_all_canaries_and_the_texts_of_members(tmp_path: Path):
    table = canaries.make(IDS, ["é\n" + text for text in TEXTS], NUMBERS, 3)
    canaries.write(tmp_path / "new", table, 3)
    assert pq.read_table(tmp_path / "new" / "canaries.parquet").equals(table)
    lines = (tmp_path / "new" / "included.jsonl").read_text(encoding="utf-8").splitlines()
    members = table.filter(table["member"])["text"].to_pylist()
    included = [json.loads(line)["text"] for line in lines]
    assert sorted(included) == sorted(members)
    assert included != members  # their order says nothing of the source


def test_coins_of_other_canaries_are_never_replaced(tmp_path: Path):
    table = canaries.make(IDS, TEXTS, NUMBERS, 0)
    canaries.write(tmp_path, table, 0)
    (tmp_path / "included.jsonl").unlink()  # as if the command had been stopped
    canaries.write(tmp_path, table, 0)
    assert (tmp_path / "included.jsonl").exists()
    with pytest.raises(UserError, match="choose another folder"):
        canaries.write(tmp_path, canaries.make(IDS, TEXTS, NUMBERS, 1), 1)
    assert pq.read_table(tmp_path / "canaries.parquet").equals(table)
    (tmp_path / "canaries.parquet").write_bytes(b"damaged")
    with pytest.raises(UserError, match="choose another folder"):
        canaries.write(tmp_path, table, 0)


def test_a_file_that_is_not_of_canaries_is_not_replaced(tmp_path: Path):
    (tmp_path / "included.jsonl").write_text("mine")
    with pytest.raises(UserError, match="choose another folder"):
        canaries.write(tmp_path, canaries.make(IDS, TEXTS, NUMBERS, 0), 0)
    assert [path.name for path in tmp_path.iterdir()] == ["included.jsonl"]


def _bounds(effect: float, draws: int) -> np.ndarray:
    """Returns the bound of each draw of coins from losses that are lower for members by `effect`."""
    bounds = []
    for seed in range(draws):
        made = canaries.make(IDS, TEXTS, NUMBERS, seed)
        member_K = np.asarray(made["member"])
        hardness_K = np.array([len(set(text)) / 10 for text in made["text"].to_pylist()])
        noise_K = np.random.default_rng(seed).normal(size=len(member_K))
        loss_K = hardness_K + noise_K - effect * member_K
        bound = stats.one_run_bound(-loss_K, member_K, membership="coins", delta=1e-5)
        bounds.append(bound.epsilon)
    return np.array(bounds)


@pytest.mark.montecarlo
def test_a_bound_of_a_model_that_never_saw_them_is_valid():
    """Without leakage, epsilon is 0, so a bound above 0 is wrong; at most 5 % of the draws may have one."""
    assert (_bounds(0, 500) > 0).mean() <= 0.05
    assert _bounds(5, 5).min() > 1
