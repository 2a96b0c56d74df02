"""Which pieces are computed, and when they are computed again."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from synthetic_scores import SMALL, SyntheticScores, write_scores

from lm_mia import config
from lm_mia.attacks import evaluations, results
from lm_mia.attacks.evaluate import evaluate
from lm_mia.attacks.pieces import Pieces, pieces_of
from lm_mia.attacks.spec import AttackSpec, Request
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.store.store import Store

C = dataclasses.replace(SMALL, references=8, replicas=3)
LIRA = AttackSpec("lira_online", True, (0, 1, 2), tuple(range(8)))
LOSS = AttackSpec("loss", True, (0, 1, 2), ())
HALF = dataclasses.replace(LIRA, references=(0, 1, 4, 5), reference_part=0)
POINTS = [Request(attack, evaluations.operating_points) for attack in (LIRA, LOSS)]
EPSILONS = Request(LIRA, evaluations.epsilons)
HALVES = Request(LIRA, evaluations.halved_rates, (HALF,))
SCORES = Request(LIRA, evaluations.sample_scores)


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> SyntheticScores:
    return write_scores(tmp_path_factory.mktemp("scores"), C, 80)


def run(
    scores: SyntheticScores,
    folder: Path,
    requests: list[Request],
    c: config.Attack = C,
    progress: Callable[[float, float], None] = lambda done, total: None,
    **changes: Any,
) -> tuple[int, Pieces]:
    """Returns how many attacks were made, and the pieces."""
    pieces = dataclasses.replace(pieces_of(scores.store, "recipe", c, folder), **changes)
    population = cast(Population, scores.population)
    silent: Any = lambda *_: None  # noqa: E731
    with ThreadPoolExecutor(2) as pool:
        counts = evaluate(requests, pieces, scores.store, population, pool, progress, silent, {})
    return counts["computed"], pieces


def test_all_attacks_depend_on_the_scores_of_the_base(tmp_path: Path):
    models = [subsets.base(), *(subsets.replica(k) for k in range(3))]
    loss_MxN = np.random.default_rng(0).normal(3, 1, (len(models), 8)).astype(np.float32)

    def key(name: str, base_N: np.ndarray) -> results.Key:
        store = Store(tmp_path / name)
        store.create_or_extend(models, {"tokens": np.arange(8)}, {})
        for model, loss_N in zip(models, [base_N, *loss_MxN[1:]], strict=True):
            member_N2 = np.zeros(8, bool) if model.role == "base" else np.arange(8) < 4
            store.write_model(model, loss_N, member_N2, {})
        return pieces_of(store, "recipe", C, tmp_path).key(POINTS[1])

    assert key("first", loss_MxN[0]) == key("again", loss_MxN[0])
    assert key("first", loss_MxN[0]) != key("other", loss_MxN[0] + 1)


def test_progress_counts_scores_and_evaluations(scores: SyntheticScores, tmp_path: Path):
    shown: list[tuple[float, float, int]] = []

    def progress(done: float, total: float) -> None:
        shown.append((done, total, len([*tmp_path.glob("*.parquet")])))

    run(scores, tmp_path, POINTS, progress=progress)
    assert {total for _, total, _ in shown} == {2}
    assert [done for done, _, _ in shown] == sorted(done for done, _, _ in shown)
    # Each piece that is stored is half an attack, as are the scores of both attacks, which are computed first.
    assert dict.fromkeys((done, stored) for done, _, stored in shown if done >= 1) == dict.fromkeys(
        [(1, 0), (1.5, 1), (2, 2)]
    )


def test_only_missing_pieces_are_computed(scores: SyntheticScores, tmp_path: Path):
    assert run(scores, tmp_path, POINTS[:1])[0] == 1
    assert run(scores, tmp_path, [*POINTS, *POINTS])[0] == 1
    assert run(scores, tmp_path, [*POINTS, EPSILONS])[0] == 1
    assert run(scores, tmp_path, [*POINTS, HALVES])[0] == 2  # with all references, and with half
    assert run(scores, tmp_path, [*POINTS, EPSILONS, HALVES])[0] == 0
    assert len([*tmp_path.iterdir()]) == 4


@pytest.mark.parametrize(
    ("changes", "computed"),
    [
        ({"alpha": 0.2}, {EPSILONS}),
        ({"delta": 1e-3}, {EPSILONS}),
        ({"fprs": (0.1, 0.5)}, {*POINTS, HALVES}),
        ({"band": (0.02, 0.2)}, {*POINTS}),
        ({"variance": "pooled"}, {POINTS[0], EPSILONS, HALVES, SCORES}),
        ({"rmia_gamma": 2.0, "rmia_samples": 50, "bootstraps": 7, "priors": (0.3,)}, set()),
    ],
    ids=["alpha", "delta", "fprs", "band", "variance", "others"],
)
def test_a_setting_counts_where_it_is_read(
    scores: SyntheticScores, tmp_path: Path, changes: dict[str, Any], computed: set[Request]
):
    requests = [*POINTS, EPSILONS, HALVES, SCORES]
    _, pieces = run(scores, tmp_path, requests)
    changed = dataclasses.replace(pieces, c=dataclasses.replace(C, **changes))
    assert {request for request in requests if not changed.has(request)} == computed


def test_scores_recipe_format_and_design_count(
    scores: SyntheticScores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, pieces = run(scores, tmp_path, POINTS)
    digests = {**pieces.digests, "reference-07": "another"}
    retrained = dataclasses.replace(pieces, digests=digests)
    assert [retrained.has(request) for request in POINTS] == [False, True]
    unused = dataclasses.replace(pieces, digests={**pieces.digests, "reference-08": "another"})
    assert all(map(unused.has, POINTS))
    with_base = dataclasses.replace(pieces, always=("base-00",))
    other = dataclasses.replace(pieces, recipe_hash="other")
    assert not any(map(with_base.has, POINTS))
    assert not any(map(other.has, POINTS))
    monkeypatch.setattr("lm_mia.attacks.pieces.RESULTS_FORMAT", results.RESULTS_FORMAT + 1)
    assert not any(map(pieces.has, POINTS))


def test_a_killed_command_continues_after_its_last_piece(
    scores: SyntheticScores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    requests = [*POINTS, EPSILONS, SCORES]
    _, expected = run(scores, tmp_path / "expected", requests)
    write, written = results.Results.write, 0

    def killed(self: results.Results, *args: Any) -> None:
        nonlocal written
        if written == 2:
            raise KeyboardInterrupt
        write(self, *args)
        written += 1

    with monkeypatch.context() as patch:
        patch.setattr(results.Results, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            run(scores, tmp_path / "killed", requests)
    before = {path.name for path in (tmp_path / "killed").iterdir()}
    assert len(before) == 2
    run(scores, tmp_path / "killed", requests)
    assert {path.name: path.read_bytes() for path in (tmp_path / "killed").iterdir()} == {
        path.name: path.read_bytes() for path in expected.results.folder.iterdir()
    }


def test_an_evaluation_of_a_user(scores: SyntheticScores, tmp_path: Path):
    """Youden's J of each model: a function of scores, and nothing else."""

    def youden(scores: evaluations.Scores, *, priors: tuple[float, ...]) -> pd.DataFrame:
        def evaluate(score_N: np.ndarray, member_N: np.ndarray) -> dict[str, np.ndarray]:
            rates = [np.mean(score_N[group_N] >= 0) for group_N in (member_N, ~member_N)]
            return {"j": np.array([rates[0] - rates[1]]), "prior": np.array(priors[:1])}

        return scores.by_target(evaluate)

    request = Request(LIRA, youden)
    _, pieces = run(scores, tmp_path, [request])
    table = pieces.read(request)
    assert table is not None
    assert table["target"].tolist() == ["replica-00", "replica-01", "replica-02"]
    assert (table["j"] > 0).all()
    changed = dataclasses.replace(pieces, c=dataclasses.replace(C, priors=(0.2,)))
    assert not changed.has(request)
    assert dataclasses.replace(pieces, c=dataclasses.replace(C, alpha=0.2)).has(request)
