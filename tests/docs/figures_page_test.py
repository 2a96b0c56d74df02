"""The page of the figures agrees with the plan and with the texts of the figures."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from analysis import papers
from analysis.experiments import MODULES
from lm_mia.config import load

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def figures_page() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        yield importlib.import_module("figures_page")


def test_the_page_is_up_to_date(figures_page: ModuleType):
    written = figures_page.PAGE.read_text(encoding="utf-8")
    assert written == figures_page.page_text(), "run python docs/figures_page.py"


def test_needs_are_listed(figures_page: ModuleType):
    text = figures_page.page_text()
    assert {*figures_page.PAPERS} == {name.partition("_")[0] for name in MODULES} - {"scaling"}
    assert "LiRA on targets, " in text
    assert "for intervals, " in text
    assert "losses of 3 samples" in text
    assert "LiRA on replicas, targets, " in text


@pytest.mark.parametrize("paper", papers.NAMES)
def test_pages_of_departures_are_up_to_date(figures_page: ModuleType, paper: str):
    written = (figures_page.DEPARTURES / f"{paper}.md").read_text(encoding="utf-8")
    assert written == figures_page.departures_text(paper), "run python docs/figures_page.py"


@pytest.mark.parametrize("paper", papers.NAMES)
def test_departures_and_errata_stand_once_and_figures_link_to_them(
    figures_page: ModuleType, paper: str
):
    text = figures_page.departures_text(paper)
    read = papers.read(paper)
    for kind, remarks in (("departure", read.departures), ("erratum", read.errata)):
        assert all(text.count(remark.text) == 1 for remark in remarks)
        links = re.findall(rf"\(#({kind}_\d+)\)", text)
        assert len(links) == sum(len(r.items) for r in remarks if len(r.items) > 1)
        assert {*links} == {*re.findall(rf'<a id="({kind}_\d+)"></a>', text)}


@pytest.mark.parametrize(
    "paper", ["strongmia", "reliability", "mace", "privacyguard", "causal", "open"]
)
def test_the_config_states_the_cost_of_all_figures(figures_page: ModuleType, paper: str):
    config = figures_page.config_name(paper)
    text = (load.included_configs() / f"{config}.py").read_text()
    lines = [line.split() for line in text.splitlines()]
    for setting in figures_page.SETTINGS:
        needed = figures_page.cost(f"{config}:{setting}")
        sentence = f"{setting} {needed.models:,} models {figures_page.format_cost(setting, needed)}"
        assert any(line[: len(sentence.split())] == sentence.split() for line in lines), sentence


@pytest.mark.parametrize(
    ("setting", "flops", "expected"),
    [
        ("paper", 4e3 * 3600 * 0.4 * 989e12, "4,000 hours"),
        ("gpu", 0.0123 * 3600 * 0.4 * 989e12, "0.012 hours"),
        ("cpu", 1e11 * 149, "about 2 minutes"),
        ("cpu", 1.0, "about 1 minute"),
    ],
)
def test_costs_in_words(figures_page: ModuleType, setting: str, flops: float, expected: str):
    needed = figures_page.Cost(names=("main",), recipes=1, models=1, flops=flops, of_recipes="")
    assert figures_page.format_cost(setting, needed) == expected


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (
            "Top-k: share: 0.25, 95% interval 0.1 to 0.4 over 8; B: 1.0, 95% interval",
            "Top-k: share: ",
        ),
        ("", ""),
    ],
)
def test_numbers_of_claims_say_what_they_are(figures_page: ModuleType, finding: str, expected: str):
    claim = {"value": "0.25", "low": "0.1", "high": "0.4", "finding": finding}
    assert figures_page._interval(claim) == f"{expected}0.25 (0.1 to 0.4)"
