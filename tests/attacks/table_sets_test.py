"""Tables that one function computes: they are computed once, and again if what they depend on changes or is damaged."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from synthetic_scores import SMALL, write_scores

from lm_mia.attacks.pieces import Pieces, pieces_of
from lm_mia.attacks.table_sets import Facts, TableSet, Write, find, get
from lm_mia.data import subsets

MODELS = [subsets.reference(0), subsets.replica(1)]


@pytest.fixture
def pieces(tmp_path: Path) -> Pieces:
    scores = write_scores(tmp_path, dataclasses.replace(SMALL, references=4, replicas=2), 30)
    return pieces_of(scores.store, "recipe", SMALL, tmp_path / "pieces")


class Counted:
    """A set of two tables that counts how often it is computed."""

    def __init__(self) -> None:
        self.computed = 0

    def __call__(self, write: Write) -> Facts:
        self.computed += 1
        write("a.csv", pd.DataFrame({"x": [1.5]}))
        write("b.parquet", (pd.DataFrame({"y": [i]}) for i in range(2)))
        return {"reason": "", "models": (1, 2)}


def test_tables_are_computed_once(pieces: Pieces):
    compute = Counted()
    tables = TableSet("numbers", MODELS, {"alpha": 0.1}, compute)
    assert find(tables, pieces) is None
    stored = get(tables, pieces)
    assert stored.names == ("a.csv", "b.parquet")
    assert stored.facts == {"reason": "", "models": [1, 2]}
    again = get(tables, pieces)
    assert (again.facts, again.names) == (stored.facts, stored.names)
    assert compute.computed == 1
    [table] = pieces.results.parts(tables.key(pieces, "a.csv"))
    assert table.to_pydict() == {"x": [1.5]}


@pytest.mark.parametrize(
    "change",
    [
        lambda tables, pieces: (dataclasses.replace(tables, settings={"alpha": 0.2}), pieces),
        lambda tables, pieces: (dataclasses.replace(tables, models=MODELS[:1]), pieces),
        lambda tables, pieces: (dataclasses.replace(tables, name="others"), pieces),
        lambda tables, pieces: (tables, dataclasses.replace(pieces, recipe_hash="other")),
        lambda tables, pieces: (
            tables,
            dataclasses.replace(pieces, digests={**pieces.digests, "replica-01": "retrained"}),
        ),
    ],
    ids=["settings", "models", "name", "recipe", "scores"],
)
def test_what_tables_depend_on(
    pieces: Pieces, change: Callable[[TableSet, Pieces], tuple[TableSet, Pieces]]
):
    compute = Counted()
    tables = TableSet("numbers", MODELS, {"alpha": 0.1}, compute)
    get(tables, pieces)
    get(*change(tables, pieces))
    assert compute.computed == 2
    get(tables, pieces)
    assert compute.computed == 2


def test_models_that_take_no_part_do_not_count(pieces: Pieces):
    compute = Counted()
    tables = TableSet("numbers", MODELS, {}, compute)
    get(tables, pieces)
    digests = {**pieces.digests, "reference-01": "retrained"}
    get(tables, dataclasses.replace(pieces, digests=digests))
    assert compute.computed == 1


@pytest.mark.parametrize("table", ["", "a.csv", "b.parquet"])
def test_damaged_or_missing_tables_are_computed_again(pieces: Pieces, table: str):
    compute = Counted()
    tables = TableSet("numbers", MODELS, {}, compute)
    get(tables, pieces)
    path = pieces.results.path(tables.key(pieces, table))
    before = path.read_bytes()
    path.write_bytes(before[:-3])
    get(tables, pieces)
    path.unlink()
    get(tables, pieces)
    assert compute.computed == 3
    assert path.read_bytes() == before


def test_a_kill_between_tables_leaves_none_of_the_set(pieces: Pieces):
    def killed(write: Write) -> Facts:
        write("a.csv", pd.DataFrame({"x": [1.5]}))
        raise KeyboardInterrupt

    tables = TableSet("numbers", MODELS, {}, killed)
    with pytest.raises(KeyboardInterrupt):
        get(tables, pieces)
    assert find(tables, pieces) is None
    assert get(dataclasses.replace(tables, compute=Counted()), pieces).names[0] == "a.csv"
