import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lm_mia import cli

RNG = np.random.default_rng(0)
WORDS = [f"w{i}" for i in range(200)]
FLAGS = ["--held-out=100", "--new-words=100", "--random-words=100", "--seed=7"]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    rows = [{"text": " ".join(RNG.choice(WORDS, 12))} for _ in range(220)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_losses_of_canaries_give_a_bound_on_epsilon(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "canaries"
    argv = ["canaries", f"--texts={texts}", f"--out={out}", *FLAGS]
    assert cli.main(argv) == 0
    printed = capsys.readouterr().out
    made = pd.read_parquet(out / "canaries.parquet")
    included = {
        json.loads(line)["text"] for line in (out / "included.jsonl").read_text().splitlines()
    }
    assert included == {*made.query("member")["text"]}
    assert f"{len(included)} are members" in printed
    noise = RNG.normal(0, 0.1, len(made))
    for effect, audited in ((0, False), (1, True)):  # a model that never saw them, and one that did
        # Larger for texts that a model predicts better, as minus the loss is.
        scores = made[["id", "member"]].assign(score=noise + effect * made["member"])
        scores.to_csv(tmp_path / "scores.csv", index=False)
        flags = ["--membership=coins", f"--out={tmp_path / 'page'}", "--replicates=200"]
        assert cli.main(["audit", str(tmp_path / "scores.csv"), *flags]) == 0
        table = pd.read_csv(tmp_path / "page" / "audit.csv").set_index("method")
        assert table.loc["one_run", "canaries"] == 300
        assert (table["epsilon"]["one_run"] > 1) == audited
    assert cli.main(argv) == 0  # again, which changes nothing
    assert pd.read_parquet(out / "canaries.parquet").equals(made)


def test_all_mistakes_of_canaries_are_shown_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    argv = [
        f"--texts={tmp_path / 'x.csv'}",
        "--held-out=-1",
        "--seed=-1",
        "--config.a=1",
        "--word=1",
    ]
    assert cli.main(["canaries", *argv]) == 2
    lines = capsys.readouterr().err.splitlines()
    fields = ("--word", "--config.a=1", "--out", "--held-out=-1", "--seed=-1", str(tmp_path))
    assert len(lines) == len(fields)
    for line, field in zip(lines, fields, strict=True):
        assert line.startswith(field)


def test_too_few_texts_for_canaries_are_refused(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "canaries"
    assert cli.main(["canaries", f"--texts={texts}", f"--out={out}"]) == 2
    assert capsys.readouterr().err.startswith("--held-out=500, --new-words=500: ")
    assert not out.exists()
