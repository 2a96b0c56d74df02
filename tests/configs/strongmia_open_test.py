from pathlib import Path

import pytest

from lm_mia.config import load
from lm_mia.config.recipe import recipe_requests

ROOT = Path(__file__).resolve().parents[2]
FILE = f"{ROOT}/configs/strongmia_open.py"


@pytest.mark.parametrize("setting", ["paper", "gpu", "cpu"])
def test_all_figures_share_the_models_of_flip_140m(setting: str):
    opened = load.load_sweep(f"{FILE}:{setting}", [])
    fig22 = load.load_sweep(f"{ROOT}/configs/strongmia.py:fig22,{setting}", [])
    [request] = recipe_requests([*opened, *fig22], "strongmia_open")
    assert {"crossed-140M", "tokens-140M", "flip-140M"} <= {*request.names}
    a, score, extract = request.config.attack, request.config.score, request.config.extract
    assert a.replica_inits > 1
    assert a.references // a.resample_references >= 4
    assert a.replicas == fig22[0][1].attack.replicas
    assert len(score.token_samples) <= request.config.population.samples // 2
    assert extract.prefix_tokens + extract.suffix_tokens <= request.config.population.length_tokens


def test_figures_on_tokens_need_no_crossed_models():
    [(_, c)] = load.load_sweep(f"{FILE}:fig06,fig07,cpu", [])
    assert (c.name, c.attack.replica_inits) == ("tokens-140M", 1)
