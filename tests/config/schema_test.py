import dataclasses
import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_config import TINY

from lm_mia import config
from lm_mia.config import MODEL_SIZES, Config, Model, resolve


def test_to_dict_is_plain_and_complete():
    tree = config.to_dict(TINY)
    assert json.loads(json.dumps(tree)) == tree
    assert tree["attack"]["fprs"] == [0.1, 0.5]
    assert set(tree) == {f.name for f in dataclasses.fields(Config)}


def resolved(**model: Any) -> Model:
    return resolve(Config(model=Model(**model))).model


def test_sizes_have_the_parameters_in_their_names():
    """Those of Table A9 of Hoffmann et al. have 13 layers width^2 and 32,000 token embeddings, the others 12."""
    assert get_args(config.Size) == (*MODEL_SIZES, "custom")
    wide_heads = ("425M", "489M", "509M", "1018M")
    for name, (layers, width) in MODEL_SIZES.items():
        of_table = name in ("44M", "140M", *wide_heads)
        parameters = 13 * layers * width**2 + 32_000 * width if of_table else 12 * layers * width**2
        tolerance = 0.06 if name == "10M" else 0.01
        assert parameters / 1e6 == pytest.approx(int(name.removesuffix("M")), rel=tolerance), name
        m = resolved(size=name)
        heads = width // (128 if name in wide_heads else 64)
        assert (m.size, m.layers, m.width, m.heads) == (name, layers, width, heads)
    # No shape has two names.
    assert len(set(MODEL_SIZES.values())) == len(MODEL_SIZES)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({}, ("85M", 12, 768, 12)),
        ({"size": "302M"}, ("302M", 24, 1024, 16)),
        ({"size": "302M", "layers": 2}, ("custom", 2, 1024, 16)),
        ({"size": "302M", "width": 512}, ("custom", 24, 512, 8)),
        ({"size": "302M", "heads": 8}, ("302M", 24, 1024, 8)),
        ({"layers": 15}, ("140M", 15, 768, 12)),  # a known size gets its name
        ({"layers": 20}, ("custom", 20, 768, 12)),
        ({"size": "1018M"}, ("1018M", 23, 1792, 14)),
        ({"size": "1018M", "heads": 28}, ("1018M", 23, 1792, 28)),
        ({"layers": 23, "width": 1792}, ("1018M", 23, 1792, 14)),
        ({"size": "custom", "layers": 3, "width": 512}, ("10M", 3, 512, 8)),
        ({"size": "custom", "layers": 2, "width": 48}, ("custom", 2, 48, 1)),
        ({"size": "custom", "layers": 2, "width": 100}, ("custom", 2, 100, 1)),
        ({"size": "custom", "layers": 2, "width": 191, "heads": 1}, ("custom", 2, 191, 1)),
        ({"size": "custom"}, ("custom", "auto", "auto", "auto")),
        ({"size": "custom", "width": 128}, ("custom", "auto", 128, 2)),
    ],
)
def test_resolve_fills_in_missing_numbers(
    model: dict[str, Any], expected: tuple[str, Any, Any, Any]
):
    m = resolved(**model)
    assert (m.size, m.layers, m.width, m.heads) == expected


@given(
    st.sampled_from([*MODEL_SIZES, "custom"]),
    st.sampled_from(["auto", *range(1, 40)]),
    st.sampled_from(["auto", 8, 512, 768, 1024]),
    st.sampled_from(["auto", *range(1, 20)]),
)
def test_resolve_is_idempotent(size: Any, layers: Any, width: Any, heads: Any):
    once = resolve(Config(model=Model(size, layers, width, heads)))
    assert resolve(once) == once
    m = once.model
    assert layers in ("auto", m.layers)
    assert width in ("auto", m.width)
    assert MODEL_SIZES.get(m.size, (m.layers, m.width)) == (m.layers, m.width)


@pytest.mark.parametrize(
    ("attack", "fprs", "focus", "band"),
    [
        # 8 non-members: the lowest rate is 1/8.
        ({"fprs": (0.01, 0.124, 0.125, 0.5), "focus_fpr": 0.5}, (0.125, 0.5), 0.5, (0.0, 0.1)),
        (
            {"fprs": (0.01, 0.2, 1.0), "focus_fpr": 0.01, "band": (0.1, 0.3)},
            (0.2, 1),
            0.2,
            (1 / 8, 0.3),
        ),
        ({"fprs": (0.2,), "focus_fpr": 0.2, "band": (0.2, 0.3)}, (0.2,), 0.2, (0.2, 0.3)),
    ],
)
def test_rates_below_one_nonmember_are_left_out(attack, fprs, focus, band):
    c = Config(
        population=config.Population(samples=16),
        attack=config.Attack(**({"band": (0.0, 0.1)} | attack)),
    )
    actual = config.measurable_attack(c)
    assert (actual.fprs, actual.focus_fpr, actual.band) == (fprs, focus, band)
    assert config.measurable_attack(dataclasses.replace(c, attack=actual)) == actual
    larger = dataclasses.replace(c, population=config.Population(samples=2**20))
    assert config.measurable_attack(larger).fprs == c.attack.fprs
    assert [config.lowest_fpr(n) for n in (0, 1, 2, 2048)] == [0, 0, 1, 1 / 1024]


def test_sizes_with_canaries():
    """Of 2,000 samples, 1,800 are in every training subset, and half of the other 200."""
    c = Config(population=config.Population(samples=2000), train=config.Train(batch_size=50))
    assert (config.num_canaries(c), config.first_canary(c)) == (2000, 0)
    assert (config.training_samples(c), config.total_steps(c)) == (1000, 20)
    c = dataclasses.replace(c, train=dataclasses.replace(c.train, canaries=200, epochs=2))
    assert (config.num_canaries(c), config.first_canary(c)) == (200, 1800)
    assert (config.training_samples(c), config.total_steps(c)) == (1900, 76)
    assert config.measurable_attack(c).fprs[0] == 0.01  # one of 100 non-members
