"""The recipes of the paper's figures: the published numbers, and every setting of every figure parses."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lm_mia import config
from lm_mia.config import SIZES, Config, load
from lm_mia.config.recipe import asked
from lm_mia.errors import UserError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FILES = sorted([*CONFIGS.glob("fig[0-9]*.py"), *CONFIGS.glob("tab[0-9]*.py"), CONFIGS / "paper.py"])

# StrongMIA Table 7, Appendix G and the text; DESIGN's errata: name -> size, N, references, targets, replicas, epochs,
# warm-up steps.
PUBLISHED = {
    "main": ("140M", 7_000_000, 512, 16, 2, 1, 750),
    "flip-140M": ("140M", 2**19, 128, 0, 125, 1, 750),
    "flip-302M": ("302M", 2**19, 128, 0, 127, 1, 750),
    "small": ("10M", 2**19, 128, 16, 0, 1, 750),
    "chinchilla-10M": ("10M", 500_000, 128, 16, 0, 1, 750),
    "chinchilla-85M": ("85M", 4_250_000, 128, 16, 0, 1, 750),
    "chinchilla-1018M": ("1018M", 50_900_000, 128, 16, 0, 1, 750),
    "fixed-140M": ("140M", 2**23, 128, 16, 2, 1, 750),
    "fixed-604M": ("604M", 2**23, 128, 16, 0, 1, 750),
    "data-50000": ("140M", 50_000, 128, 16, 0, 1, 80),
    "data-10000000": ("140M", 10_000_000, 128, 16, 0, 1, 80),
    "epochs-44M": ("44M", 1_100_000, 128, 16, 0, 2, 750),
    "epochs-140M": ("140M", 7_000_000, 128, 16, 0, 10, 750),
    "epochs-140M-small": ("140M", 2**19, 128, 16, 0, 20, 750),
    "schedule-linear": ("140M", 7_000_000, 128, 16, 0, 1, 750),
    "distinct": ("140M", 7_000_000, 128, 16, 0, 1, 750),
}


def recipes_in(entries: Sequence[tuple[dict[str, Any], Config]]) -> dict[str, Config]:
    """The recipes that a sweep asks for, by each of their names."""
    return {name: a.config for a in asked(entries) for name in a.config.name.split("+")}


def recipes_of(file: Path, setting: str) -> dict[str, Config]:
    return recipes_in(load.sweep(f"{file}:{setting}"))


def test_the_published_numbers():
    found = recipes_of(CONFIGS / "paper.py", "paper")
    for name, (size, n, references, targets, replicas, epochs, warmup) in PUBLISHED.items():
        c, a = found[name], found[name].attack
        assert (c.model.layers, c.model.width) == SIZES[size], name
        assert c.population.samples == 2 * n, name
        assert (a.references - a.targets, a.targets, a.replicas) == (references, targets, replicas)
        assert (c.train.epochs, c.optimizer.warmup_steps) == (epochs, warmup), name
        assert (c.train.batch_size, c.population.length_tokens) == (128, 1024)
        o = c.optimizer
        assert (o.init_learning_rate, o.peak_learning_rate, o.final_learning_rate) == (
            1e-7,
            3e-4,
            3e-5,
        )
        assert (o.weight_decay, o.clip_norm) == (0.1, 1.0)
        assert c.corpus.source == "c4"
        assert c.train.subset == "exact"
    sizes = [name.removeprefix("fixed-") for name in found if name.startswith("fixed-")]
    assert sizes == list(SIZES)
    linear, plain = found["schedule-linear"].optimizer, found["schedule-nodecay"].optimizer
    assert (linear.schedule, plain.weight_decay) == ("linear", 0)
    assert found["schedule-noclip"].optimizer.clip_norm == 0
    assert found["distinct"].population.distinct_prefix_tokens == 50
    assert config.score_steps(found["epochs-44M"]) == (8594,)


@pytest.mark.parametrize("setting", ["paper", "gpu", "cpu"])
def test_every_setting_of_every_figure_is_sound(setting: str):
    together = set(recipes_of(CONFIGS / "paper.py", setting))
    for file in FILES:
        found = load.sweep(f"{file}:{setting}")
        if file.stem != "paper":
            assert found[0][1].figures == (file.stem,)
        assert all(entry.name for _, entry in found), file.stem
        if setting == "cpu":  # figures of one folder share recipes
            assert set(recipes_in(found)) <= together, file.stem


def test_recipes_that_are_the_same_are_trained_once():
    found = recipes_of(CONFIGS / "paper.py", "cpu")
    assert found["main"] == found["fixed-140M"]


@pytest.mark.parametrize(
    ("figures", "named"),
    [
        ('("fig01_references", "tab09_x")', "'tab09_x'"),
        ('"fig01_references"', "'fig01"),
        ("[]", r"\[\]"),
    ],
)
def test_figures_that_are_none_are_told(figures: str, named: str, tmp_path: Path):
    shutil.copytree(CONFIGS, tmp_path / "configs")
    text = (
        (CONFIGS / "own.py").read_text().replace("FIGURES = paper.FIGURES", f"FIGURES = {figures}")
    )
    (tmp_path / "configs" / "mine.py").write_text(text)
    with pytest.raises(
        UserError, match=rf"^FIGURES: {named}.*: no such figure; name some of fig01"
    ):
        load.sweep(f"{tmp_path}/configs/mine.py")


def test_the_example_of_own_texts_asks_for_the_same_recipes(tmp_path: Path):
    own = recipes_of(CONFIGS / "own.py", "")
    assert set(own) == set(recipes_of(CONFIGS / "paper.py", "cpu"))
    assert {c.corpus.source for c in own.values()} == {"text"}
    code = (CONFIGS / "own.py").read_text().split(chr(34) * 3)[2]
    assert len(code.split("\n")) - code.split("\n").count("") <= 10
