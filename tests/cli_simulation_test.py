"""Configs without a recipe: figures that are simulations are drawn without any model."""

from pathlib import Path

import pytest

from analysis.experiments.mace import dp_bound
from lm_mia import cli

SIMULATIONS = (
    "causal:tab02,fig03a,fig03b",
    "mace:fig06",
    "privacyguard:fig07",
    "reliability:fig02,figA3",
)


@pytest.mark.parametrize("figures", SIMULATIONS)
def test_simulations_plan_no_models(figures: str, capsys: pytest.CaptureFixture[str]):
    for flags in ([], ["--device=h100"]):
        assert cli.main(["plan", f"--config={figures},paper", *flags]) == 0
        assert capsys.readouterr().out.startswith("0 models")


def test_a_simulation_is_drawn_without_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(dp_bound.SIZES, "simulations", 2)
    w = tmp_path / "w"
    assert cli.main(["run", "--config=mace:fig06,cpu", f"--workdir={w}"]) == 0
    table = (w / "tables" / "mace_fig06_dp_bound.csv").read_bytes()
    assert not (w / "populations").exists()
    assert not [*(w / "recipes").iterdir()]
    assert (w / "figures" / "mace_fig06_dp_bound.png").exists()
    assert cli.main(["report", f"--workdir={w}"]) == 0
    assert (w / "tables" / "mace_fig06_dp_bound.csv").read_bytes() == table
    for verb in ("status", "plan"):
        capsys.readouterr()
        assert cli.main([verb, f"--workdir={w}"]) == 0
        assert capsys.readouterr().out.startswith("0 models")
    for command in (["train"], ["attack"], ["extract"], ["launch", "local"]):
        assert cli.main([*command, f"--workdir={w}"]) == 2
        assert capsys.readouterr().err.startswith("has_recipe=False: ")
