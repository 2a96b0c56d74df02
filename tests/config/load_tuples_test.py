import dataclasses
import re
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
        ["--config.attack.fprs=0.25,0.5"],
        ["--config.attack.fprs", "0.25", "0.5"],
        ["--config.attack.fprs", "0.25,0.5"],
        ["--config.attack.fprs=0.25", "0.5"],
    ],
)
def test_tuples_take_commas_or_words(file: str, flags: list[str]):
    flags = [*flags, "--config.attack.focus_fpr=0.5"]
    assert load.load_config(file, flags).attack.fprs == (0.25, 0.5)
    single = ["--config.attack.fprs=0.2", "--config.attack.focus_fpr=0.2"]
    assert load.load_config(file, single).attack.fprs == (0.2,)


def test_a_rate_that_the_population_cannot_show_is_refused(file: str):
    rule = r"must be at least 0\.125\b.*\b8 non-members\b.*"
    flags = ["--config.attack.fprs=0.01,0.5", "--config.attack.focus_fpr=0.01"]
    lines = error_lines(file, *flags, "--config.attack.band=0,0.1")
    fields = ("fprs=(0.01, 0.5): ", "focus_fpr=0.01: ", "band=(0.0, 0.1): its upper end ")
    for line, field in zip(lines, fields, strict=True):
        assert re.fullmatch(re.escape(f"attack.{field}") + rule, line)
    alone = ["--config.attack.fprs=0.01", "--config.attack.focus_fpr=auto"]
    assert len(error_lines(file, *alone)) == 1
    # The rates of the file (0.1, 0.5) and those of a flag for a larger population are accepted.
    load.load_config(file, ["--config.train.epochs=2"])
    c = load.load_config(file, [*flags, "--config.population.samples=200"])
    assert c.attack.fprs == (0.01, 0.5)


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


@pytest.mark.parametrize("flags", [["=0.001,0.2"], ["", "0.001", "0.2"], ["=1e-3,2e-1"]])
def test_a_band_is_two_numbers(file: str, flags: list[str]):
    assert load.load_config(file).attack.band == (0, 0.1)
    flags[0] = "--config.attack.band" + flags[0]
    assert load.load_config(file, flags).attack.band == (0.001, 0.2)


@pytest.mark.parametrize(
    "flags",
    [
        ["=embedding,0.1,^blocks/(attn|mlp)/,2"],
        ["", "embedding", "0.1", "^blocks/(attn|mlp)/", "2"],
    ],
)
def test_a_list_of_pairs(file: str, flags: list[str]):
    flags[0] = "--config.optimizer.learning_rate_multipliers" + flags[0]
    pairs = (("embedding", 0.1), ("^blocks/(attn|mlp)/", 2.0))
    assert load.load_config(file, flags).optimizer.learning_rate_multipliers == pairs
    [line] = error_lines(file, "--config.optimizer.learning_rate_multipliers=embedding,x")
    assert line.startswith("optimizer.learning_rate_multipliers='embedding,x': ")
    assert "embedding,0.1,mlp,2" in line


def test_items_of_pairs_have_their_own_types(tmp_path: Path):
    path = tmp_path / "pairs.py"
    for value in ('(("embedding",),)', '(("embedding", "0.1"),)', "((1, 0.1),)", '("embedding",)'):
        path.write_text(FILE.replace("weight_decay=0", f"learning_rate_multipliers={value}"))
        assert "list of pairs" in error_lines(str(path))[0]
    path.write_text(FILE.replace("weight_decay=0", 'learning_rate_multipliers=(("embedding", 2),)'))
    assert load.load_config(str(path)).optimizer.learning_rate_multipliers == (("embedding", 2),)


FULL = (
    FILE.replace(
        "weight_decay=0",
        """weight_decay=0, weight_decay_mask=("kernel",),
        learning_rate_multipliers=(("embedding", 0.1),)""",
    )
    .replace(
        "batch_size=4)",
        """batch_size=4, epochs=2, trackers=("wandb",)),
        score=config.Score(at_steps=(1,), at_epochs=(1.0,), statistics=("min_k",), token_samples=(3,)),
        figures=("strongmia_fig01_references",)""",
    )
    .replace("band=(0, 0.1)", 'band=(0, 0.1), zero_run=("groups",)')
    .replace("heads=2)", 'heads=2, kind="llama", rope_scaling=(2.0,))')
)
LISTS = [name for name, kind in load.field_types().items() if "tuple[" in str(kind)]
NEVER_EMPTY = {"attack.attacks", "attack.fprs", "attack.priors", "attack.zero_run_strengths"}


@pytest.mark.parametrize("name", [name for name in LISTS if name != "attack.band"])
@pytest.mark.parametrize("value", ["=", "= ", ""])
def test_an_empty_value_empties_a_list(tmp_path: Path, name: str, value: str):
    path = tmp_path / "full.py"
    path.write_text(FULL)
    before, flag = load.load_config(str(path)), f"--config.{name}{value}"
    section, _, leaf = name.rpartition(".")
    assert getattr(getattr(before, section) if section else before, leaf)
    if name in NEVER_EMPTY:
        assert error_lines(str(path), flag)[0].startswith(f"{name}=(): ")
        return
    changed = {leaf: ()}
    if section:
        changed = {section: dataclasses.replace(getattr(before, section), **changed)}
    assert load.load_config(str(path), [flag]) == dataclasses.replace(before, **changed)
