"""The tables of a sweep: each figure adds its attacks, and no attack is computed twice. No model is trained."""

import dataclasses
import importlib
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest
import tiny_run
from synthetic_figures import ROOT

from analysis import page
from lm_mia import config
from lm_mia.attacks import evaluations, registry
from lm_mia.attacks.results import Results
from lm_mia.attacks.spec import LossNeed, Need, Request
from lm_mia.data.population import open_population
from lm_mia.errors import UserError
from lm_mia.run import pipeline
from lm_mia.run.sweep import Sweep, SweepRecipe
from lm_mia.run.workdir import Workdir

LIRA, BOTH = ["strongmia_fig01_references"], ["strongmia_fig09_lira_and_rmia"]
ON_REPLICAS = 5 + 1
"""lira_online with 1, 2, 4, 8 and 12 references, and the loss attack."""
C = config.Config(
    name="main",
    tokenizer=config.Tokenizer(vocab_size=100),
    population=config.Population(samples=48, length_tokens=16),
    model=config.Model(layers=1, width=16, heads=2),
    optimizer=config.Optimizer(warmup_steps=1),
    train=config.Train(subset="balanced", batch_size=4),
    attack=config.Attack(
        references=12,
        targets=4,
        replicas=3,
        attacks=("lira_online", "loss"),
        headline="lira_online",
        fprs=(0.1, 0.5),
        focus_fpr=0.1,
        band=(0.0, 0.1),
        variance="pooled",
        bootstraps=0,
    ),
)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> list[SweepRecipe]:
    """Two recipes, as after training and scoring; main has targets and replicas, other only targets."""
    folder = tmp_path_factory.mktemp("scored")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        synthetic_sweep = importlib.import_module("synthetic_sweep")
        path = folder / "corpus.parquet"
        synthetic_sweep.corpus(path, 100)
        corpus = config.Corpus(source="parquet", path=str(path), deduplicate="none")
        main = dataclasses.replace(C, corpus=corpus)
        attack = dataclasses.replace(C.attack, replicas=0)
        other = dataclasses.replace(main, name="other", attack=attack)
        other = dataclasses.replace(other, model=config.Model(layers=1, width=32, heads=2))
        named = {"name": "other", "attack.replicas": 0, "model.width": 32}
        return synthetic_sweep.write(folder / "w", [({}, main), (named, other)])


@pytest.fixture
def tasks(scored: list[SweepRecipe], tmp_path: Path) -> list[SweepRecipe]:
    """Returns the recipes in a workdir that only this test uses."""
    path = Path(shutil.copytree(scored[0].workdir.path, tmp_path / "w"))
    return [
        dataclasses.replace(t, workdir=dataclasses.replace(t.workdir, path=path)) for t in scored
    ]


def attack(
    tasks: Sequence[SweepRecipe], figures: Sequence[str], *more: Need | LossNeed
) -> list[str]:
    """Runs the attack stage; returns its messages."""
    messages: list[str] = []
    pairs = [(task, open_population(task.population_dir, verify=False)) for task in tasks]
    needs_by_recipe = pipeline.requested_attacks(pairs, [*page.figure_needs(figures), *more])
    for task, population in pairs:
        pipeline.attack(
            task, population, needs_by_recipe[task.name], lambda *_: None, messages.append
        )
    return messages


def attack_counts(requested: int, existing: int, computed: int) -> str:
    attacks = "1 attack" if requested == 1 else f"{requested} attacks"
    return f"{attacks} requested, {existing} already in its tables, {computed} computed"


def content(tasks: Sequence[SweepRecipe]) -> dict[str, bytes]:
    return {
        f"{task.name}/{path.name}": path.read_bytes()
        for task in tasks
        for path in sorted((task.folder / "tables").rglob("*"))
        if path.is_file()
    }


def test_figures_add_attacks_and_nothing_is_computed_twice(
    tasks: list[SweepRecipe], monkeypatch: pytest.MonkeyPatch
):
    """Requests LiRA with 4 and 8 references on the same samples, then RMIA, then both.

    LiRA with all references on all samples is always among the attacks. The other recipe, which has no replicas, has
    both attacks of its config throughout.
    """
    num_lira, num_both = ON_REPLICAS + 3, ON_REPLICAS + 5
    assert attack(tasks, LIRA) == [
        f"attack: main: {attack_counts(num_lira, 0, num_lira)}",
        f"attack: other: {attack_counts(2, 0, 2)}",
    ]
    first = content(tasks)
    assert attack(tasks, BOTH) == [
        f"attack: main: {attack_counts(num_both, num_lira, 2)}",
        f"attack: other: {attack_counts(2, 2, 0)}",
    ]
    second = content(tasks)
    grown = {
        "main/targets.csv",
        "main/target_roc.parquet",
        "main/target_jackknife.parquet",
    }
    assert {name for name in second if second[name] != first.get(name)} == grown

    monkeypatch.setattr(registry, "fit_attacks", lambda *_: pytest.fail("computed again"))
    assert attack(tasks, LIRA + BOTH) == [
        f"attack: main: {attack_counts(num_both, num_both, 0)}",
        f"attack: other: {attack_counts(2, 2, 0)}",
    ]
    assert content(tasks) == second
    logged = tiny_run.logged(tasks[0].workdir.path, "attack")
    names = ("recipe", "requested", "computed", "left_out")
    assert [[event[name] for name in names] for event in logged] == [
        ["main", num_lira, num_lira, 0],
        ["other", 2, 2, 0],
        ["main", num_both, 2, 0],
        ["other", 2, 0, 0],
        ["main", num_both, 0, 0],
        ["other", 2, 0, 0],
    ]


def test_decisions_follow_models_and_settings(tasks: list[SweepRecipe]):
    main = tasks[0]
    attack([main], [])
    c = dataclasses.replace(main.config, attack=dataclasses.replace(C.attack, stable_flip=0.2))
    other = dataclasses.replace(main, config=c)
    # The rules of archetypes need the scores of one attack once more, and the old pieces are kept.
    for task, computed in ((other, 1), (main, 0)):
        [message] = attack([task], [])
        assert message.endswith(f"{computed} computed")
        facts = json.loads((main.folder / "tables" / "flips.json").read_text())
        assert facts["config"]["stable_flip"] == task.config.attack.stable_flip
    shutil.rmtree(main.folder / "scores.zarr" / "loss" / "c" / "14")  # the last replica
    messages = attack([main], [])
    assert re.match(r"1 of 15 models\b.*\b2 of 3 replicas", messages[0])
    assert messages[-1].endswith(f"{ON_REPLICAS} computed")


def test_requested_attacks(tasks: list[SweepRecipe]):
    pairs = [(task, open_population(task.population_dir, verify=False)) for task in tasks]
    needs_by_recipe = pipeline.requested_attacks(pairs, [])
    assert list(needs_by_recipe) == ["main", "other"]
    for name, requested in needs_by_recipe.items():
        lira, *others = (r.spec for r in requested.requests)  # for the comparison of recipes
        assert (lira.attack, len(lira.references)) == ("lira_online", 8)
        assert {r.evaluation for r in requested.requests} == {evaluations.operating_points}
        assert requested.loss_samples == ()
        # The recipe without replicas has a table of membership scores under its targets.
        assert [attack.attack for attack in others] == (["loss"] if name == "other" else [])
        assert [*requested.score_table] == ([lira, *others] if name == "other" else [])
    needs_by_recipe = pipeline.requested_attacks(
        pairs,
        [
            Need(("o*",), ("rmia",), sample_scores=True),
            LossNeed(("main",), (1, 48)),
            LossNeed(("*",), (3,)),
            Need(("nothing",)),
        ],
    )
    rmia, kept, lira, loss = needs_by_recipe["other"].requests
    assert kept == Request(rmia.spec, evaluations.sample_scores)
    assert [r.spec.attack for r in (rmia, lira, loss)] == ["rmia", "lira_online", "loss"]
    assert needs_by_recipe["other"].score_table == [lira.spec, loss.spec]
    assert [needs_by_recipe[name].loss_samples for name in ("main", "other")] == [
        (0, 45, 47),
        (45,),
    ]
    [only] = needs_by_recipe["main"].requests
    assert (only.spec.attack, only.evaluation) == ("lira_online", evaluations.operating_points)


def test_sample_losses_are_those_of_the_figures(tasks: list[SweepRecipe]):
    [_, other] = tasks
    path = other.folder / "tables" / "sample_losses.csv"
    attack([other], [], LossNeed(("other",), (2,)), LossNeed(("other",), (1, 48)))
    assert pd.read_csv(path)["sample"].tolist() == [i for i in (0, 46, 47) for _ in range(12)]
    attack([other], [])
    assert not path.exists()


def test_damaged_store_does_not_stop_other_recipes(tasks: list[SweepRecipe]):
    main, other = tasks
    (main.folder / "scores.zarr" / "zarr.json").write_text("{")
    pairs = [(task, open_population(task.population_dir, verify=False)) for task in tasks]
    needs_by_recipe = pipeline.requested_attacks(pairs, [Need(("*",))])
    assert [len(needs_by_recipe[task.name].requests) for task in tasks] == [0, 2]
    with pytest.raises(UserError, match=r"scores\.zarr.*"):
        attack([main], [])
    assert attack([other], []) == [f"attack: other: {attack_counts(2, 0, 2)}"]


def test_targets_without_enough_models_are_refused(tasks: list[SweepRecipe]):
    other = tasks[1]
    for model in range(5, 12):  # one of the eight references is left
        shutil.rmtree(other.folder / "scores.zarr" / "loss" / "c" / str(model))
    with pytest.raises(UserError, match=r"other: too few .*\battack.targets=4 .*\b2\b"):
        attack([other], [])


def test_tables_of_decisions_are_removed_without_replicas(tasks: list[SweepRecipe]):
    """Otherwise, the page would show them beside numbers of the new settings."""
    main = tasks[0]
    attack([main], [])
    assert (main.folder / "tables" / "flips.json").is_file()
    c = dataclasses.replace(main.config.attack, replicas=0, variance="per_sample")
    attack([dataclasses.replace(main, config=dataclasses.replace(main.config, attack=c))], [])
    assert not (main.folder / "tables" / "flips.json").exists()


def test_edited_exports_and_damaged_pieces_are_made_again(
    tasks: list[SweepRecipe],
):
    main = tasks[:1]
    attack(main, [])
    before, tables = content(main), main[0].folder / "tables"
    for path in sorted(tables.iterdir()):
        path.write_bytes(path.read_bytes()[:-9])
    (tables / "flips.json").unlink()
    [message] = attack(main, [])
    assert message.endswith(attack_counts(ON_REPLICAS + 1, ON_REPLICAS + 1, 0))
    assert content(main) == before
    pieces = sorted((main[0].folder / "pieces").glob("*.parquet"))
    intact = [path.read_bytes() for path in pieces]
    for path in pieces:
        path.write_bytes(path.read_bytes()[:-9])
    [message] = attack(main, [])
    assert message.endswith(attack_counts(ON_REPLICAS + 1, 0, ON_REPLICAS + 1))
    assert [path.read_bytes() for path in pieces] == intact
    assert content(main) == before


def test_results_that_the_config_does_not_ask_for_are_removed(tasks: list[SweepRecipe]):
    needs = page.figure_needs(LIRA)
    sweep = Sweep("synthetic", tasks[0].workdir, (), tuple(tasks), ())
    display = SimpleNamespace(say=pytest.fail)
    attack(tasks, LIRA)
    kept = {recipe.name: sorted((recipe.folder / "pieces").glob("*.parquet")) for recipe in tasks}
    c = dataclasses.replace(tasks[0].config.attack, alpha=0.2, attacks=("lira_online", "zlib"))
    attack(
        [dataclasses.replace(tasks[0], config=dataclasses.replace(tasks[0].config, attack=c))], []
    )
    counts = pipeline.remove_unused(sweep, needs, [], cast(Any, display))
    for (name, deleted, deleted_bytes, num_kept), recipe in zip(counts, tasks, strict=True):
        assert sorted((recipe.folder / "pieces").glob("*.parquet")) == kept[name]
        assert num_kept == len(kept[name])
        assert (deleted > 10) == (deleted_bytes > 10_000) == (name == "main")
    assert [line.rpartition(", ")[2] for line in attack(tasks, LIRA)] == ["0 computed"] * 2
    # Without the figure, what only the figure needs is removed.
    counts = pipeline.remove_unused(sweep, page.figure_needs([]), [], cast(Any, display))
    assert 0 < counts[0][1] < len(kept["main"])
    assert counts[1][1] == 0


def test_results_of_simulations_that_no_figure_keeps_are_removed(tmp_path: Path):
    pieces, display = Results(tmp_path / "pieces"), cast(Any, SimpleNamespace(say=pytest.fail))
    keys = page.figure_keys(["causal_tab02_regression", "scaling"])
    for key in (*keys, {**keys[0], "format": "an earlier one"}):
        pieces.write(key, pd.DataFrame({"auc": [0.5]}))
    sweep = Sweep("synthetic", Workdir(tmp_path), (), (), ())
    [(name, *counts)] = pipeline.remove_unused(sweep, [], keys, display)
    assert (name, counts[0], counts[2]) == ("workdir", 1, len(keys))
    assert all(pieces.has(key) for key in keys)
    [(_, *counts)] = pipeline.remove_unused(sweep, [], page.figure_keys(["scaling"]), display)
    assert (counts[0], counts[2]) == (len(keys), 0)


def test_missing_models_are_reported_without_replicas(tasks: list[SweepRecipe]):
    other = tasks[1]
    shutil.rmtree(other.folder / "scores.zarr" / "loss" / "c" / "11")  # the last target
    messages = attack([other], [])
    assert re.match(r"1 of 12 models\b.*`lm-mia run`", messages[0])


def test_rates_that_the_population_cannot_show_are_left_out(tasks: list[SweepRecipe]):
    [task, _] = tasks
    settings = dataclasses.replace(
        task.config.attack, fprs=(1e-5, 1e-4, 0.1, 0.5), focus_fpr=1e-4, band=(1e-5, 0.2)
    )
    task = dataclasses.replace(task, config=dataclasses.replace(task.config, attack=settings))
    nonmembers = task.config.population.samples // 2
    messages = attack([task], ())
    assert re.fullmatch(
        rf"attack\.fprs: .*\bmain\b.* 1e-05, 0\.0001, .*\b{2 * nonmembers} samples\b.*"
        rf"\b{1 / nonmembers:.3g}; attack\.focus_fpr becomes 0\.1",
        messages[0],
    )
    tables = task.folder / "tables"
    assert pd.read_csv(tables / "error_rates.csv").fpr.tolist() == [0.1, 0.5]
    curve = pd.read_csv(tables / "roc.csv").fpr
    assert curve[curve > 0].min() == 1 / nonmembers
    assert pd.read_csv(tables / "partial_auc.csv").low.tolist() == [1 / nonmembers] * 3 + [0] * 3
    assert "votes_0.1" in pd.read_parquet(tables / "samples.parquet").columns
    assert json.loads((tables / "flips.json").read_text())["config"]["focus_fpr"] == 0.1
    assert attack([task], ())[-1].endswith("0 computed")
