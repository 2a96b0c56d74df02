"""Log-probabilities of the tokens of selected samples, from the command line to the store and back."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny_run
import xarray as xr
from slow_case import slow_case
from tiny_run import _on_cpu, run_in_process, tiny
from tiny_store import COLUMNS, FOUR, _small_shards, content, ensure, open_with_points, values

from lm_mia import cli
from lm_mia.data.population import Population, open_population, take_samples, token_columns
from lm_mia.errors import UserError
from lm_mia.run import supervisor
from lm_mia.store import check, schema
from lm_mia.store import store as store_module
from lm_mia.store.store import Store

__all__ = ["_on_cpu", "_small_shards", "tiny"]  # fixtures

IDS = (7, 0, 19)
T = 9
TOKENS = {name: np.arange(T) + 10 * n for n, name in enumerate(schema.TOKEN_COLUMNS)}
TOKENS["token_sample"] = np.repeat([4, 1, 3], [2, 3, 4])


def test_subset_of_a_population_and_its_token_columns(tiny_population: Population):
    subset = take_samples(tiny_population, IDS)
    assert len(subset) == 3
    for position, i in enumerate(IDS):
        assert subset.sample(position).tolist() == tiny_population.sample(i).tolist()
    columns = token_columns(tiny_population, IDS)
    rows = list(zip(*(columns[name].tolist() for name in schema.TOKEN_COLUMNS), strict=True))
    assert rows == [
        (i, position, int(piece))
        for i in IDS
        for position, piece in enumerate(tiny_population.sample(i))
    ]
    assert all(column_T.dtype == np.int64 for column_T in columns.values())
    assert token_columns(tiny_population, ()) == {}


@pytest.fixture(scope="module")
def tiny_population(tiny: tiny_run.Tiny) -> Population:
    return open_population(tiny_run.population_of(tiny.workdir))


def store(path: Path, samples: tuple[int, ...] = (4, 1, 3)) -> Store:
    return Store(path / "scores.zarr", token_samples=samples)


def log_probs(model_index: int) -> np.ndarray:
    return np.where(np.arange(T) % 4, -model_index - np.arange(T), np.nan).astype(np.float32)


@pytest.mark.usefixtures("_small_shards")
def test_token_log_probs_have_their_own_dimension(tmp_path: Path):
    s = store(tmp_path)
    s.create_or_extend(FOUR, COLUMNS, {}, TOKENS)
    for model in FOUR:
        s.write_model(model, *values(model))
    assert s.missing_models(FOUR) == FOUR
    assert s.missing_shards(FOUR[0]) == []
    for m, model in enumerate(FOUR):
        assert s.is_missing_tokens(model)
        s.write_tokens(model, log_probs(m))
        assert not s.is_missing_tokens(model)
    assert s.missing_models(FOUR) == []
    with xr.open_zarr(s.path) as data:
        assert data["token_log_prob"].dims == ("model", "token")
        assert data["token_log_prob"].attrs["units"] == "nats"
        log_prob = (
            data["token_log_prob"].isel(model=2).set_xindex("token_sample").sel(token_sample=3)
        )
        np.testing.assert_array_equal(log_prob, log_probs(2)[5:])
        for name in schema.TOKEN_COLUMNS:
            np.testing.assert_array_equal(data[name], TOKENS[name])
    # They can be read in blocks, as any other variable.
    blocks = list(s.blocks({"x": ("token_log_prob", FOUR[::-1])}, 4))
    log_prob_MxT = np.concatenate([block["x"] for _, block in blocks], axis=1)
    np.testing.assert_array_equal(log_prob_MxT, [log_probs(m) for m in range(len(FOUR))][::-1])
    # Of three shards per model, one is deleted and one damaged.
    deleted, damaged = (s.path / "token_log_prob" / "c" / part for part in ("1/2", "2/0"))
    before = content(s)
    deleted.unlink()
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    report = check.check_shards(s, FOUR)
    assert (report.num_shards, report.missing, report.corrupt) == (6 * 9, [deleted], [damaged])
    assert s.missing_models(FOUR) == [FOUR[1]]
    damaged.unlink()
    for m in (1, 2):
        s.write_tokens(FOUR[m], log_probs(m))
    assert content(s) == before


@pytest.mark.usefixtures("_small_shards")
def test_other_token_samples_are_refused_until_the_old_are_deleted(tmp_path: Path):
    plain = store(tmp_path, ())
    ensure(plain, FOUR)
    for model in FOUR:
        plain.write_model(model, *values(model))
    s = store(tmp_path)
    assert s.missing_models(FOUR) == FOUR
    s.create_or_extend(FOUR, COLUMNS, {}, TOKENS)
    assert (plain.missing_models(FOUR), s.missing_models(FOUR)) == ([], FOUR)
    s.write_tokens(FOUR[0], log_probs(0))
    assert s.missing_models(FOUR) == FOUR[1:]
    other = store(tmp_path, (3, 1, 4))
    with pytest.raises(UserError) as caught:
        other.missing_models(FOUR)
    assert re.match(
        rf"score\.token_samples: {s.path} .*\(3 samples: 4, 1, 3\); .*delete {s.path / 'token_log_prob'}\b",
        str(caught.value),
    )
    shutil.rmtree(s.path / "token_log_prob")
    assert (plain.missing_models(FOUR), other.missing_models(FOUR)) == ([], FOUR)
    others = {"token_sample": np.repeat([3, 1, 4], [4, 5, 6])}
    others |= {name: np.arange(15) for name in schema.TOKEN_COLUMNS[1:]}
    other.create_or_extend(FOUR, COLUMNS, {}, others)
    other.write_tokens(FOUR[1], np.zeros(15, np.float32))
    assert other.missing_models(FOUR) == [FOUR[0], *FOUR[2:]]
    with xr.open_zarr(s.path) as data:
        assert data["token_log_prob"].shape == (6, 15)
        assert data["token_sample"].values.tolist() == others["token_sample"].tolist()


@pytest.mark.usefixtures("_small_shards")
def test_other_token_samples_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The token samples of the crashed command were never published and hold no values."""
    s, other = store(tmp_path), store(tmp_path, (4,))
    first_tokens = {name: column[:2] for name, column in TOKENS.items()}
    with monkeypatch.context() as patch:
        patch.setattr(schema, "consolidate", lambda path: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            s.create_or_extend(FOUR, COLUMNS, {}, TOKENS)
    other.create_or_extend(FOUR, COLUMNS, {}, first_tokens)
    other.write_tokens(FOUR[0], np.zeros(2, np.float32))
    with xr.open_zarr(s.path) as data:
        assert data["token_log_prob"].shape == (6, 2)
        assert data["token_sample"].values.tolist() == [4, 4]


def columns(samples: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Returns token columns with two tokens per sample."""
    columns_of_tokens = {"token_sample": np.repeat(samples, 2)}
    return columns_of_tokens | {
        name: np.arange(2 * len(samples)) for name in schema.TOKEN_COLUMNS[1:]
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((), (3, 4, 5)), ((0, 1), (0,)), ((0,), (2,)),
        *(
            slow_case(old, new)
            for old, new in [
                ((), (0,)), ((0, 1), (0, 1)), ((0, 1), (3, 4, 5)), ((0,), (0, 1))
            ]
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("crash", ["write_coordinates", "variable_spec", "consolidate"])
def test_crash_while_token_samples_change(
    tmp_path: Path,
    old: tuple[int, ...],
    new: tuple[int, ...],
    crash: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """Any list of token samples can be requested afterwards, and losses are never affected."""
    s, plain = store(tmp_path, old), store(tmp_path, ())
    s.create_or_extend(FOUR, COLUMNS, {}, columns(old) if old else {})
    for model in FOUR:
        plain.write_model(model, *values(model))
    shutil.rmtree(s.path / "token_log_prob", ignore_errors=True)
    owner = store_module if crash == "variable_spec" else schema
    with monkeypatch.context() as patch:
        true, calls = getattr(owner, crash), []

        def crashing(*args: object) -> object:
            calls.append(args)  # the first consolidation only removes the old list
            return 1 / 0 if crash != "consolidate" or len(calls) > bool(old) else true(*args)

        patch.setattr(owner, crash, crashing)
        with pytest.raises(ZeroDivisionError):
            store(tmp_path, new).create_or_extend(FOUR, COLUMNS, {}, columns(new))
    for requested in (new, (9, 8)):
        assert plain.missing_models(FOUR) == []
        again = store(tmp_path, requested)
        again.create_or_extend(FOUR, COLUMNS, {}, columns(requested))
        again.write_tokens(FOUR[0], np.zeros(2 * len(requested), np.float32))
        assert again.missing_models(FOUR) == FOUR[1:]
        with xr.open_zarr(s.path) as data:
            assert data["token_log_prob"].shape == (6, 2 * len(requested))
            assert data["token_log_prob"].values[0].tolist() == [0] * 2 * len(requested)
            assert data["token_sample"].values.tolist() == np.repeat(requested, 2).tolist()
        shutil.rmtree(s.path / "token_log_prob")
    plain.create_or_extend(FOUR, COLUMNS, {})
    with xr.open_zarr(s.path) as data:
        assert not [name for name in data.variables if str(name).startswith("token_")]


@pytest.mark.usefixtures("_small_shards")
def test_damaged_tokens_do_not_affect_losses(tmp_path: Path):
    s, plain = store(tmp_path), store(tmp_path, ())
    s.create_or_extend(FOUR, COLUMNS, {}, TOKENS)
    file = s.path / "token_log_prob" / "zarr.json"
    (s.path / "token_position" / "c" / "0").unlink()
    assert plain.missing_models(FOUR) == s.missing_models(FOUR) == FOUR
    file.write_text("{")
    assert plain.missing_models(FOUR) == FOUR
    with pytest.raises(UserError) as caught:
        s.missing_models(FOUR)
    assert re.match(rf"{file}: .*damaged; delete {file.parent} .*`lm-mia score`", str(caught.value))


@pytest.mark.usefixtures("_small_shards")
def test_token_log_probs_at_every_score_point(tmp_path: Path):
    plain = open_with_points(tmp_path / "scores.zarr")
    s = Store(plain.path, (), plain.steps, plain.total_steps, token_samples=(4, 1, 3))
    s.create_or_extend(FOUR, COLUMNS, {}, TOKENS)
    s.write_tokens(FOUR[0], log_probs(5), 6)
    assert [s.is_missing_tokens(FOUR[0], step) for step in (*s.steps, 0)] == [True, False, True]
    with xr.open_zarr(s.path) as data:
        assert data["token_log_prob"].dims == ("model", "checkpoint", "token")
        np.testing.assert_array_equal(data["token_log_prob"][0, 1], log_probs(5))


@pytest.mark.usefixtures("_on_cpu")
def test_score_stage_adds_token_log_probs(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):  # fmt: skip
    """Finished models get them from their checkpoints; their means are the samples' losses."""
    w = tiny.copy(tmp_path / "w")
    before, population = tiny_run.scores(w), open_population(tiny_run.population_of(w))
    monkeypatch.setattr(supervisor, "run", run_in_process)
    flags = ("--config.score.token_samples", "5", "31", "2")
    assert cli.main(tiny.argv("score", w, *flags)) == 0
    assert tiny_run.models_counted(capsys.readouterr().err) == [6, 0, 6]
    path = tiny_run.recipe_of(w) / "scores.zarr"
    with xr.open_zarr(path) as data:
        log_prob_MxT = data["token_log_prob"].values
        sample_W, position_T = data["token_sample"].values, data["token_position"].values
        np.testing.assert_array_equal(
            data["token_piece"], np.concatenate([population.sample(i) for i in (5, 31, 2)])
        )
        assert np.isnan(log_prob_MxT[:, position_T == 0]).all()
        assert (log_prob_MxT[:, position_T > 0] < 0).all()
        for i in (5, 31, 2):
            mean_M = np.nanmean(log_prob_MxT[:, sample_W == i], axis=1)
            np.testing.assert_allclose(-mean_M, data["loss"][:, i], rtol=2e-6)
    after = tiny_run.scores(w)
    assert {name: after[name] for name in before if "/c/" in str(name)} == {
        name: content_of_file for name, content_of_file in before.items() if "/c/" in str(name)
    }
    assert cli.main(tiny.argv("score", w, *flags)) == 0
    assert "6 present, 0 to score" in capsys.readouterr().err
    assert cli.main(tiny.argv("status", w, *flags, "--verify")) == 0
    assert "48 shards expected, 0 missing, 0 corrupt" in capsys.readouterr().out
    assert cli.main(tiny.argv("attack", w, *flags)) == 0
    capsys.readouterr()
    for bad in (("32", "3"), ("5", "5"), ("-1",)):
        assert cli.main(tiny.argv("score", w, flags[0], *bad)) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("score.token_samples=")
        assert bad[0] in line
    assert cli.main(tiny.argv("score", w, flags[0], "5")) == 2
    assert "(3 samples: 5, 31, 2); " in capsys.readouterr().err
    # Damage is detected and repaired without naming the variable.
    [bad] = path.glob("token_log_prob/c/3/0")
    bad.write_bytes(b"x" + bad.read_bytes()[1:])
    assert cli.main(tiny.argv("status", w, "--verify")) == 2
    assert f"corrupt     {bad}" in capsys.readouterr().out
    assert cli.main(tiny.argv("score", w, "--repair")) == 0
    assert tiny_run.scores(w) == after
