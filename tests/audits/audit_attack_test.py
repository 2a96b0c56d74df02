"""`lm-mia audit` and `lm-mia import` followed by `lm-mia attack` give the same numbers for the same losses."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from slow_case import slow_case

import lm_mia
from lm_mia import cli
from lm_mia.errors import UserError

N = 300
SETTINGS = ["--config.attack.bootstraps=20", "--config.attack.fprs=0.05,0.1"]


def losses(roles: list[str], *, out: bool = False, paired: bool = False) -> dict[str, Any]:
    """Returns losses of models that were trained on random halves; a base knows how hard each sample is."""
    rng = np.random.default_rng(len(roles))
    hardness_N = 2 + rng.gamma(9, 0.2, N)
    member_MxN = rng.random((len(roles), N)) < 0.5
    for m, role in enumerate(roles):
        if role == "replica":
            member_MxN[m] = member_MxN[roles.index("replica")]
        elif role == "base" or (out and role == "reference"):
            member_MxN[m] = False
    if paired:
        member_MxN[2] = ~member_MxN[0]
    loss_MxN = hardness_N - 0.4 * member_MxN + rng.normal(0, 0.2, member_MxN.shape)
    return {
        "loss_MxN": loss_MxN,
        "member_MxN": member_MxN,
        "role_M": np.array(roles),
        "name_M": np.array([f"model {m}" for m in range(len(roles))]),
        "tokens_N": rng.integers(5, 60, N),
        "text_N": np.array([f"text {i} {i % 7}" for i in range(N)]),
    }


CASES = {
    "targets": losses(["target"] * 2 + ["reference"] * 8),
    "replicas": losses(["replica"] * 3 + ["reference"] * 6),
    "replicas and their base": losses(["replica"] * 3 + ["base"]),
    "replicas beside targets": losses(["replica"] * 3 + ["target"] * 2 + ["reference"] * 6),
    "replicas alone": losses(["replica"] * 3),
    "references that saw none of the samples": losses(["target"] + ["reference"] * 4, out=True),
    "a base alone": losses(["target", "base"]),
    "a base and references": losses(["target", "reference", "reference", "reference", "base"]),
    "one reference": losses(["target", "reference"]),
    "a complement among the references": losses(["target"] + ["reference"] * 6, paired=True),
}


def test_targets_beside_replicas_need_references():
    with pytest.raises(UserError, match="no reference"):
        lm_mia.audit(losses(["replica", "replica", "target"]))


SLOW = (
    "replicas and their base",
    "replicas alone",
    "a base alone",
    "one reference",
    "a complement among the references",
)
"""Cases between those of the others."""


@pytest.mark.parametrize("name", [slow_case(name) if name in SLOW else name for name in CASES])
def test_both_ways_give_the_same_numbers(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, workdir = tmp_path / "losses.npz", tmp_path / "w"
    np.savez(file, **CASES[name])
    audited = lm_mia.audit(file, replicates=20, fprs=[0.05, 0.1])
    assert cli.main(["import", str(file), f"--workdir={workdir}"]) == 0
    assert cli.main(["attack", f"--workdir={workdir}", *SETTINGS]) == 0
    capsys.readouterr()
    [recipe] = lm_mia.open(workdir).recipes.values()
    named = pd.read_csv(recipe.path / "imported_models.csv").set_index("model")["name_in_file"]

    table = recipe.table("targets")
    most_A = table.groupby(["attack", "target"])["references"].transform("max")
    table = table[table["references"] == most_A].drop_duplicates(["attack", "target"])
    table = table.assign(model=table["target"].map(named))
    if len({*audited.summary["model"]}) == 1:
        audited.summary["model"] = table["model"].iloc[0]
    attacked = table.set_index(["attack", "model"])["auc"].dropna()
    summary = audited.summary.set_index(["attack", "model"])["auc"]
    assert {*attacked.index} <= {*summary.index}
    if name == "replicas beside targets":  # `attack` attacks such targets by online LiRA alone
        targets = {"model 3", "model 4"}
        assert {model for _, model in {*summary.index} - {*attacked.index}} == targets
    else:
        assert {*attacked.index} == {*summary.index}
    assert (attacked == summary.loc[attacked.index]).all()

    # The rows of audit.csv are those of the first attacked model.
    first = table["model"].iloc[0] if (audited.epsilon["model"] != "").any() else ""
    epsilon = audited.epsilon[audited.epsilon["model"] == first].drop(columns=["attack", "model"])
    epsilon.index = pd.Index(audited.epsilon.loc[epsilon.index, "attack"].astype(object))
    of_attack = recipe.table("audit").drop(columns="references")
    of_attack = of_attack.set_index(pd.Index(of_attack.pop("attack").astype(object)))
    common = [name for name in {*of_attack.index} if name in epsilon.index]
    assert {"loss"} <= {*common}
    for name in common:
        pd.testing.assert_frame_equal(of_attack.loc[[name]], epsilon.loc[[name]], check_dtype=False)

    # So are the intervals of one model in intervals.csv, which are not those of the report.
    of_one = recipe.table("intervals").query("models == 1 and attack == 'loss'")
    ends = of_one.set_index("metric")[["low", "high"]]
    points = audited.tpr_at_fpr
    points = points[(points["attack"] == "loss") & (points["model"] == first)]
    for fpr, low, high in points[["fpr", "low", "high"]].to_numpy().tolist():
        of_rate = ends.loc[f"tpr_at_{fpr:g}"]
        assert (of_rate["low"], of_rate["high"]) == (low, high)


def lengths(*, differ: bool) -> pd.DataFrame:
    """Returns the losses of one model, with the lengths of 50 texts of each of 12 users."""
    rng = np.random.default_rng(5)
    user_N = np.repeat(np.arange(12), 50)
    member_N = rng.random(user_N.size) < 0.5
    tokens_N = rng.integers(20, 100, user_N.size) + 200 * member_N * differ
    loss_N = 3 + rng.normal(0, 0.3, user_N.size) - 0.4 * member_N
    return pd.DataFrame(
        {"loss": loss_N, "member": member_N.astype(int), "tokens": tokens_N, "person": user_N}
    )


@pytest.mark.parametrize("membership", ["coins", "half"])
def test_members_that_differ_in_length_were_not_drawn_at_random(
    membership: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, flag = tmp_path / "losses.csv", f"--membership={membership}"
    lengths(differ=True).to_csv(file, index=False)
    assert cli.main(["audit", str(file), flag, "--replicates=20"]) == 2
    out, message = capsys.readouterr()
    assert "lower bound" not in out
    assert flag in message
    assert "length in tokens" in message
    assert cli.main(["audit", str(file), "--replicates=20"]) == 0
    assert "length in tokens" in capsys.readouterr().out
    lengths(differ=False).to_csv(file, index=False)
    assert cli.main(["audit", str(file), flag, "--replicates=20"]) == 0
    assert "lower bound" in capsys.readouterr().out


def test_users_that_were_drawn_at_random_may_write_texts_of_their_own_length():
    samples = lengths(differ=False)
    samples["member"] = (samples["person"] % 3 == 0).astype(int)
    samples["tokens"] += 60 * samples["person"].isin([0, 1, 3, 6])
    with pytest.raises(UserError, match="length in tokens"):
        lm_mia.audit(samples, membership="half", replicates=20)
    result = lm_mia.audit(samples, user="person", membership="half", replicates=20)
    assert result.epsilon["is_bound"].any()
