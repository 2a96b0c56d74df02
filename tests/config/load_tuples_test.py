import dataclasses
import typing
from pathlib import Path

import pytest
from tiny_config import FILE, error_lines

from lm_mia.config import load


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("configs") / "tiny.py"
    path.write_text(FILE)
    return str(path)


@pytest.mark.parametrize(
    "flags",
    [
        ["--config.attack.fprs=0.01,0.1"],
        ["--config.attack.fprs", "0.01", "0.1"],
        ["--config.attack.fprs", "0.01,0.1"],
        ["--config.attack.fprs=0.01", "0.1"],
    ],
)
def test_tuples_take_commas_or_words(file: str, flags: list[str]):
    assert load.load_config(file, flags).attack.fprs == (0.01, 0.1)
    single = ["--config.attack.fprs=0.2", "--config.attack.focus_fpr=0.2"]
    assert load.load_config(file, single).attack.fprs == (0.2,)


@pytest.mark.parametrize(
    "flags",
    [
        ["--config.attack.attacks=lira_online,loss"],
        ["--config.attack.attacks=lira_online, loss"],
        ["--config.attack.attacks=lira_online", "loss"],
        ["--config.attack.attacks", "lira_online,loss"],
        ["--config.attack.attacks", "lira_online", "loss"],
    ],
)
def test_tuples_of_choices_take_commas_or_words(file: str, flags: list[str]):
    assert load.load_config(file, flags).attack.attacks == ("lira_online", "loss")


@pytest.mark.parametrize("flags", [["=0.001,0.1"], ["", "0.001", "0.1"], ["=1e-3,1e-1"]])
def test_a_band_is_two_numbers(file: str, flags: list[str]):
    assert load.load_config(file).attack.band == (0, 0.1)
    flags[0] = "--config.attack.band" + flags[0]
    assert load.load_config(file, flags).attack.band == (0.001, 0.1)


FULL = FILE.replace(
    "batch_size=4)",
    """batch_size=4, epochs=2, trackers=("wandb",)),
        score=config.Score(at_steps=(1,), at_epochs=(1.0,), statistics=("min_k",), token_samples=(3,)),
        figures=("fig01_references",)""",
)
LISTS = [name for name, kind in load.field_types().items() if typing.get_origin(kind) is tuple]
ONE_LINE = {
    "attack.attacks": "must include lira_online, whose decisions the tables show, and have no duplicates",
    "attack.fprs": "must be rates above 0 and at most 1, in ascending order, distinct in their first 6 digits",
}


@pytest.mark.parametrize("name", [name for name in LISTS if name != "attack.band"])
@pytest.mark.parametrize("value", ["=", "= ", ""])
def test_an_empty_value_empties_a_list(tmp_path: Path, name: str, value: str):
    path = tmp_path / "full.py"
    path.write_text(FULL)
    before, flag = load.load_config(str(path)), f"--config.{name}{value}"
    section, _, leaf = name.rpartition(".")
    assert getattr(getattr(before, section) if section else before, leaf)
    if name in ONE_LINE:
        assert error_lines(str(path), flag)[0] == f"{name}=(): {ONE_LINE[name]}"
        return
    changed = {leaf: ()}
    if section:
        changed = {section: dataclasses.replace(getattr(before, section), **changed)}
    assert load.load_config(str(path), [flag]) == dataclasses.replace(before, **changed)
