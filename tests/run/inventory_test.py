import dataclasses
from pathlib import Path

import numpy as np

from lm_mia import config
from lm_mia.data import subsets
from lm_mia.run import inventory
from lm_mia.store.store import Store, open_store

C = config.Config(
    population=config.Population(samples=20, length_tokens=8),
    train=config.Train(batch_size=4, epochs=3),
    attack=config.Attack(references=4, replicas=2),
)
MODELS = subsets.requested_seeds(4, 2)
ZEROS = np.zeros(20, np.float32)


def test_models_of_a_config():
    assert subsets.models_of_config(C) == MODELS


def test_total_steps_counts_short_batches_and_real_members():
    assert inventory.total_steps(C, MODELS[0]) == 3 * 3  # 10 members in batches of 4
    bernoulli = dataclasses.replace(C, train=dataclasses.replace(C.train, subset="bernoulli"))
    for model in subsets.requested_seeds(20, 2):
        members = sum(subsets.member(model.subset_seed, 20, "bernoulli"))
        assert inventory.total_steps(bernoulli, model) == 3 * -(-members // 4)
    # 8 samples are in all subsets, and about half of the 12 canaries.
    canaries = dataclasses.replace(C, train=dataclasses.replace(bernoulli.train, canaries=12))
    for model in subsets.requested_seeds(4, 2):
        members = 8 + sum(subsets.member(model.subset_seed, 12, "bernoulli"))
        assert inventory.total_steps(canaries, model) == 3 * -(-members // 4)


def test_missing_models_of_each_verb(tmp_path: Path):
    assert inventory.missing_models("train", C, tmp_path, MODELS) == MODELS
    store = Store(tmp_path / "scores.zarr")
    store.create_or_extend(MODELS, {"tokens": np.arange(20)}, {})
    store.write_model(MODELS[1], ZEROS, ZEROS > 0)
    (tmp_path / "checkpoints" / str(MODELS[3]) / "9").mkdir(parents=True)
    (tmp_path / "checkpoints" / str(MODELS[4]) / "8").mkdir(parents=True)  # not the last step
    are_trained = [inventory.is_trained(C, tmp_path, model) for model in MODELS]
    assert are_trained == [False] * 3 + [True] + [False] * 2
    unscored = [MODELS[i] for i in (0, 2, 3, 4, 5)]
    assert inventory.missing_models("score", C, tmp_path, MODELS) == unscored
    assert inventory.missing_models("run", C, tmp_path, MODELS) == unscored
    assert inventory.missing_models("train", C, tmp_path, MODELS) == [
        MODELS[i] for i in (0, 2, 4, 5)
    ]
    assert inventory.missing_models("run", C, tmp_path, [MODELS[5], MODELS[1]]) == [MODELS[5]]


def test_model_without_a_requested_statistic_is_missing(tmp_path: Path):
    """Trained models are only scored; a model without its checkpoint must be trained again."""
    c = dataclasses.replace(C, score=config.Score(statistics=("min_k",)))
    plain, store = Store(tmp_path / "scores.zarr"), open_store(c, tmp_path)
    plain.create_or_extend(MODELS, {"tokens": np.arange(20)}, {})
    for model in MODELS[:3]:
        plain.write_model(model, ZEROS, ZEROS > 0)
    (tmp_path / "checkpoints" / str(MODELS[0]) / "9").mkdir(parents=True)
    store.create_or_extend(MODELS, {"tokens": np.arange(20)}, {})
    store.write_model(MODELS[2], ZEROS, ZEROS > 0, {"min_k": ZEROS})
    assert inventory.missing_models("run", C, tmp_path, MODELS) == MODELS[3:]
    assert inventory.missing_models("run", c, tmp_path, MODELS) == [*MODELS[:2], *MODELS[3:]]
    assert inventory.missing_models("score", c, tmp_path, MODELS) == [*MODELS[:2], *MODELS[3:]]
    assert inventory.missing_models("train", c, tmp_path, MODELS) == [MODELS[1], *MODELS[3:]]


def test_model_is_present_if_all_score_points_are(tmp_path: Path):
    c = dataclasses.replace(C, score=config.Score(at_epochs=(1.0,), at_steps=(5,)))
    store = open_store(c, tmp_path)
    assert (store.steps, store.total_steps) == ((3, 5), 9)
    store.create_or_extend(MODELS, {"tokens": np.arange(20)}, {})
    for model, steps in (
        (MODELS[0], (3, 5, 0)),
        (MODELS[1], (3, 5)),
        (MODELS[2], (3, 0)),
        (MODELS[3], (0,)),
    ):
        for step in steps:
            store.write_model(model, ZEROS, ZEROS > 0, step=step)
    assert inventory.missing_models("run", c, tmp_path, MODELS) == MODELS[1:]


def test_diverged_model_is_not_missing(tmp_path: Path):
    assert (
        inventory.divergence_file(tmp_path, MODELS[2])
        == tmp_path / "diverged" / "reference-02.json"
    )
    inventory.divergence_file(tmp_path, MODELS[2]).parent.mkdir()
    inventory.divergence_file(tmp_path, MODELS[2]).touch()
    left = [model for model in MODELS if model != MODELS[2]]
    for verb in ("train", "score", "run"):
        assert inventory.missing_models(verb, C, tmp_path, MODELS) == left
    inventory.divergence_file(tmp_path, MODELS[2]).unlink()
    assert inventory.missing_models("run", C, tmp_path, MODELS) == MODELS


def test_unheld_lock_file_is_not_a_lock(tmp_path: Path):
    assert not inventory.is_locked(tmp_path, MODELS[0])
    with inventory.model_lock(tmp_path, MODELS[0]):
        assert inventory.is_locked(tmp_path, MODELS[0])
        assert not inventory.is_locked(tmp_path, MODELS[1])
    assert not inventory.is_locked(tmp_path, MODELS[0])
