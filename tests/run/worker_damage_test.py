from pathlib import Path

import numpy as np
import pytest
import tiny_run
from tiny_run import _on_cpu, tiny, work

from lm_mia.config import load
from lm_mia.data import subsets
from lm_mia.errors import UserError
from lm_mia.score.scorer import Scorer
from lm_mia.store.store import open_store

__all__ = ["_on_cpu", "tiny"]  # fixtures


@pytest.mark.usefixtures("_on_cpu")
def test_deleted_shard_is_scored_again_from_the_checkpoint(tiny: tiny_run.Tiny, tmp_path: Path):
    c, seen = load.load_config(tiny.config), []
    workdir = tiny.copy(tmp_path / "w")
    recipe = tiny_run.recipe_of(workdir)
    (recipe / "scores.zarr" / "member" / "c" / "2" / "0").unlink()
    work("run", c, workdir, seen.append)
    events = [event for event in seen[1:] if event["event"] != "compiled"]
    assert [(e["event"], e.get("model")) for e in events] == [
        ("model_started", "reference-02"),
        ("scoring", "reference-02"),
        ("model_scored", "reference-02"),
    ]
    assert tiny_run.scores(workdir) == tiny_run.scores(tiny.workdir)


@pytest.mark.usefixtures("_on_cpu")
def test_statistics_that_are_not_finite_are_not_stored(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    c = load.load_config(tiny.config, ["--config.score.statistics=min_k"])
    workdir = tiny.copy(tmp_path / "w")
    recipe = tiny_run.recipe_of(workdir)
    open_store(c, recipe).create_or_extend(
        subsets.requested_seeds(4, 2), {"tokens": np.arange(32)}, {}
    )
    bad = {
        "loss": np.ones(32, np.float32),
        "min_k": np.array([np.nan, np.inf, *range(30)], np.float32),
    }
    monkeypatch.setattr(Scorer, "score", lambda *_: dict(bad))
    for message in ("2 values of min_k are", "3 losses are"):
        with pytest.raises(UserError) as caught:
            work("score", c, workdir, lambda event: None)
        assert str(caught.value).startswith(f"model reference-00: {message} not finite; ")
        bad["loss"][:3] = np.nan
        (recipe / "scores.zarr" / "loss/c/0/0").unlink(missing_ok=True)
    expected = tiny_run.scores(tiny.workdir)
    expected.pop("loss/c/0/0")
    assert tiny_run.scores(workdir) == expected
