"""Attacks in files of users: what is run, refused, and computed again."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_scores import SMALL, SyntheticScores, run_attacks, write_scores

from lm_mia import config, stats, user_files
from lm_mia.attacks import registry, replicas, user_code
from lm_mia.errors import UserError

MINE = """
import numpy as np
from lm_mia.attacks.registry import Attack

FACTOR = 2.0


def below_median(block):
    return FACTOR * (np.median(block.reference_loss_RxC, axis=0) - block.loss_TxC)


def centered(block):
    return block.loss_TxC.mean(axis=1, keepdims=True) - block.loss_TxC


def transposed(block):
    return block.loss_TxC.T


def fails(block):
    return block.no_such_thing


def infinite(block):
    return np.full_like(block.loss_TxC, np.inf)


def in_place(block):
    block.loss_TxC[:] = 0
    return block.loss_TxC


def imaginary(block):
    return 1j * block.loss_TxC


def masked(block):
    at_C = np.arange(block.at.start, block.at.stop)
    return np.ma.array(-block.loss_TxC, mask=np.broadcast_to(at_C % 4 == 0, block.loss_TxC.shape))


def loss(block):
    return -block.loss_TxC


def unknown_setting(block, *, gamma):
    return block.loss_TxC


def mean_loss(inputs, *, rmia_samples):
    return inputs.draw(rmia_samples).loss_TxC.mean(axis=1, keepdims=True)


def score(block, mean_Tx1):
    return mean_Tx1 - block.loss_TxC


fitted = Attack(score, "Below the mean", fit=mean_loss, uses_references=False)
number = 7


def failing_fit(inputs):
    return inputs.draw(10).nothing


unfitted = Attack(score, "Unfitted", fit=failing_fit)
of_unknown = Attack(score, "Of unknown", statistics=("perplexity",))
of_tokens = Attack(score, "Of tokens", statistics=("min_k",))
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_NUM_SHUFFLES", 1)


def settings(*names: str) -> config.Attack:
    c = dataclasses.replace(SMALL, references=8, replicas=3, bootstraps=0)
    return dataclasses.replace(c, attacks=("lira_online", *names))


def world(folder: Path) -> SyntheticScores:
    return write_scores(folder, settings(), 200)


def test_an_attack_of_a_user_is_in_all_tables(mine: Path, tmp_path: Path):
    c, scores = settings(f"{mine}:below_median", f"{mine}:fitted"), world(tmp_path)
    run = run_attacks(scores, c, tmp_path / "tables")
    score_TxN = 2 * (np.median(scores.reference_MxN, axis=0) - scores.target_TxN)
    expected = stats.auc(score_TxN, np.broadcast_to(scores.member_N, score_TxN.shape)).auc_T
    attacks = run.csv("attacks.csv").set_index(["attack", "references"])
    assert attacks.loc[("below_median", 8), "auc_mean"] == pytest.approx(expected.mean())
    assert ("fitted", 0) in attacks.index
    table = pd.read_parquet(run.folder / "membership_scores.parquet")
    np.testing.assert_allclose(table["below_median/replica-01"], score_TxN[1], rtol=1e-6)
    for name in ("advantage.csv", "audit.csv", "attack_flips.csv", "shuffled.csv", "targets.csv"):
        assert {"below_median", "fitted"} <= {*run.csv(name)["attack"]}, name
    assert not any(str(tmp_path) in path.read_text() for path in run.folder.glob("*.csv"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "centered",
            "depends on .*block; ",
        ),
        (
            "transposed",
            r"shape \(200, 3\); ",
        ),
        ("in_place", "ValueError: .*read-only"),
        ("imaginary", "complex64; "),
        (
            "unfitted",
            "fit of Unfitted .*AttributeError: 'Block' ",
        ),
        ("infinite", "infinite scores; return NaN"),
        ("fails", "AttributeError: .*'no_such_thing'"),
    ],
)
def test_wrong_scores_are_refused(mine: Path, tmp_path: Path, name: str, message: str):
    with pytest.raises(UserError) as caught:
        run_attacks(world(tmp_path), settings(f"{mine}:{name}"), tmp_path / "tables")
    assert re.search(message, str(caught.value))
    assert "fit(inputs" in str(caught.value) or name != "centered"


def test_masked_scores_are_missing(mine: Path, tmp_path: Path):
    run = run_attacks(world(tmp_path), settings(f"{mine}:masked"), tmp_path / "tables")
    attacks = run.csv("attacks.csv")
    assert attacks["left_out"][attacks["attack"] == "masked"].tolist() == [50] * 4


def problems(*names: str) -> list[str]:
    return registry.problems(config.Config(attack=settings(*names)))


def test_mistakes_are_found_before_any_work(mine: Path, tmp_path: Path):
    assert problems(f"{mine}:below_median") == []
    assert problems(f"{tmp_path}/none.py:f")[0].startswith(f"{tmp_path}/none.py: ")
    assert "define other" in problems(f"{mine}:other")[0]
    assert "neither a function" in problems(f"{mine}:number")[0]
    assert " gamma" in problems(f"{mine}:unknown_setting")[0]
    assert "; rename the function" in problems(f"{mine}:loss")[0]
    assert "statistics perplexity; " in problems(f"{mine}:of_unknown")[0]
    [line] = problems(f"{mine}:of_tokens")
    assert line.endswith("; set --config.score.statistics=min_k")
    assert f"{mine}:NAME" in problems(str(mine))[0]
    copy = tmp_path / "copy.py"
    copy.write_text(MINE)
    [line] = problems(f"{mine}:fitted", f"{copy}:fitted")
    assert "fitted twice" in line
    broken = tmp_path / "broken.py"
    broken.write_text("x = 1 / 0")
    assert "ZeroDivisionError" in problems(f"{broken}:f")[0]
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f(:")
    assert "SyntaxError: invalid syntax (wrong.py, line 1)" in problems(f"{wrong}:f")[0]


def test_a_file_may_import_others_beside_it(tmp_path: Path):
    (tmp_path / "beside_mine.py").write_text("FACTOR = 3")
    path = tmp_path / "mine.py"
    path.write_text("from beside_mine import FACTOR")
    assert user_code.load(f"{path}:FACTOR") == 3


def digest_of(path: Path, text: str, name: str = "below_median") -> str:
    path.write_text(text)
    return user_code.code_digest(f"{path}:{name}")


def test_comments_do_not_count_and_constants_do(tmp_path: Path):
    texts = {
        "same": MINE,
        "comment": MINE.replace("FACTOR = 2.0", "FACTOR = 2.0  # why"),
        "other function": MINE.replace("return block.loss_TxC.T", "return block.loss_TxC"),
        "constant": MINE.replace("FACTOR = 2.0", "FACTOR = 3.0"),
        "statement": f"{MINE}np.seterr(all='raise')\n",
    }
    found = {
        name: digest_of(tmp_path / f"{i}.py", text) for i, (name, text) in enumerate(texts.items())
    }
    assert len({found[name] for name in ("same", "comment", "other function")}) == 1
    assert len({*found.values()}) == 3


def test_the_functions_of_an_attack_count(tmp_path: Path):
    changes = ["mean_Tx1 - block.loss_TxC", "inputs.draw(rmia_samples)", '"Below the mean"']
    texts = [
        MINE,
        *(
            MINE.replace(change, f"({change})" if change[0] != '"' else '"Other"')
            for change in changes
        ),
    ]
    texts += [text.replace("mean_Tx1 - ", "0.5 * mean_Tx1 - ") for text in texts[:1]]
    texts += [
        texts[0].replace(
            "axis=1, keepdims=True)\n\n\ndef score", "axis=-1, keepdims=True)\n\n\ndef score"
        )
    ]
    found = [digest_of(tmp_path / f"{i}.py", text, "fitted") for i, text in enumerate(texts)]
    assert len({*found[:3]}) == 1  # parentheses
    assert len({*found[2:]}) == 4


def test_paths_become_absolute_and_are_in_no_key(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert user_files.absolute("mine.py:f") == f"{mine}:f"
    assert user_files.absolute("rmia") == user_code.short("rmia") == "rmia"
    assert user_code.short(f"{mine}:f") == "f"
    assert registry.attack_name(f"{mine}:below_median") == "below median"
