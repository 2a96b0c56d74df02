"""The recipes of StrongMIA's figures: the published numbers, and every setting of every figure parses."""

import dataclasses
from pathlib import Path

import pytest

from analysis.experiments import MODULES
from lm_mia import config
from lm_mia.config import MODEL_SIZES, Config, load
from lm_mia.config.recipe import recipe_requests
from lm_mia.errors import UserError

FILE = Path(__file__).resolve().parents[2] / "configs" / "strongmia.py"
FIGURES = [name for name in MODULES if name.startswith("strongmia_")]

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


def recipes_of(argument: str) -> dict[str, Config]:
    return {c.name: c for _, c in load.load_sweep(f"{FILE}:{argument}")}


def test_paper_recipes_have_the_published_numbers():
    result = recipes_of("paper")
    for name, (size, n, references, targets, replicas, epochs, warmup) in PUBLISHED.items():
        c, a = result[name], result[name].attack
        assert (c.model.layers, c.model.width) == MODEL_SIZES[size], name
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
        assert (c.corpus.source, c.corpus.min_chars) == ("c4", 1)
        assert c.train.subset == "exact"
    sizes = [name.removeprefix("fixed-") for name in result if name.startswith("fixed-")]
    assert sizes == list(MODEL_SIZES)
    linear, plain = result["schedule-linear"].optimizer, result["schedule-nodecay"].optimizer
    assert (linear.schedule, plain.weight_decay) == ("linear", 0)
    assert result["schedule-noclip"].optimizer.clip_norm == "none"
    assert result["distinct"].population.distinct_prefix_tokens == 50
    assert config.score_steps(result["epochs-44M"]) == (8594,)
    extract = result["main"].extract
    assert (extract.prefix_tokens, extract.suffix_tokens) == (51, 50)  # <bos> and 50 tokens
    assert {c.corpus.min_chars for c in recipes_of("gpu").values()} == {1}


@pytest.mark.parametrize("setting", ["paper", "gpu", "cpu"])
def test_each_figure_is_valid_at_each_setting(setting: str):
    together = recipes_of(setting)
    assert next(iter(together.values())).figures == (*FIGURES, "scaling")
    needed: dict[str, Config] = {}
    for figure in FIGURES:
        result = recipes_of(f"{figure},{setting}")
        assert {c.figures for c in result.values()} == {(figure,)}
        needed |= result
    assert list(needed) == list(together)
    for name, c in needed.items():  # figures of one workdir share recipes
        assert dataclasses.replace(c, figures=together[name].figures) == together[name]


def test_several_figures_share_recipes():
    result = recipes_of("fig24,strongmia_fig05_instability,fig01,fig05,cpu")
    assert list(result) == ["flip-140M", "flip-302M", "main"]
    assert {c.figures for c in result.values()} == {
        ("strongmia_fig24_mean_roc", "strongmia_fig05_instability", "strongmia_fig01_references")
    }
    assert load.load_sweep("strongmia:fig05,cpu") == load.load_sweep(
        f"{FILE}:strongmia_fig05_instability,cpu"
    )


def test_naming_all_figures_adds_the_comparison():
    assert load.load_config(f"{FILE}:{','.join(FIGURES)},cpu").figures == (*FIGURES, "scaling")


def test_equal_recipes_are_trained_once():
    entries = load.load_sweep(f"{FILE}:cpu")
    names = [{entries[n][1].name for n in r.entries} for r in recipe_requests(entries, "strongmia")]
    assert {"main", "fixed-140M"} <= next(group for group in names if "main" in group)
    assert sorted(name for group in names for name in group) == sorted(c.name for _, c in entries)


_SETTING = "must be paper, gpu or cpu, .*strongmia.py:fig01,cpu$"
_FIGURE = "StrongMIA has no such figure; did you mean {}. Name one of fig01 to fig32 or tab01 to"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("", f"^SETTING is missing: .*{_SETTING}"),
        (":", f"^SETTING is missing: .*{_SETTING}"),
        (":fig05,", f"^SETTING is missing: .*{_SETTING}"),
        (":fig05", f"^SETTING=fig05: {_SETTING}"),
        (":cpu,fig05", f"^SETTING=fig05: {_SETTING}"),
        (":fig05,tpu", f"^SETTING=tpu: {_SETTING}"),
        (":fig5,cpu", f"^FIGURE=fig5: {_FIGURE.format('fig05')}"),
        (":fig01,tab8,gpu", f"^FIGURE=tab8: {_FIGURE.format('tab01')}"),
        (
            ":instability,cpu",
            f"^FIGURE=instability: {_FIGURE.format('strongmia_fig05_instability')}",
        ),
        (":scaling,cpu", "^FIGURE=scaling: "),
    ],
)
def test_invalid_arguments_are_refused(argument: str, message: str):
    for entry_point in (load.load_config, load.load_sweep):
        with pytest.raises(UserError, match=message) as caught:
            entry_point(f"{FILE}{argument}")
        assert "\n" not in str(caught.value)
