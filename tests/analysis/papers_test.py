"""The texts and numbers of papers against the experiments and the configs."""

import pytest

from analysis import papers
from analysis.experiments import MODULES
from analysis.experiments.strongmia import settings
from lm_mia import config
from lm_mia.config.paper import figure_number


def text_of(number: str) -> str:
    departures = papers.read("strongmia").departures
    return " ".join(departure.text for departure in departures if number in departure.items)


def test_items_of_papers_and_experiments_are_the_same():
    experiments = {name for name in MODULES if papers.name_of(name)}
    assert {name for paper in papers.NAMES for name in papers.read(paper).items} == experiments


@pytest.mark.parametrize("name", papers.NAMES)
def test_remarks_are_about_items_of_their_paper(name: str):
    paper = papers.read(name)
    numbers = {figure_number(item) for item in paper.items}
    remarks = (*paper.departures, *paper.errata)
    for remark in remarks:
        assert {*remark.items} <= numbers, remark.text
        assert remark.text.endswith("."), remark.text
    assert len({remark.text for remark in remarks}) == len(remarks)


@pytest.mark.parametrize("name", papers.NAMES)
def test_items_say_what_the_paper_shows_and_where_it_prints_a_number(name: str):
    for key, item in papers.read(name).items.items():
        assert item.title, key
        assert item.shows.endswith("."), key
        assert all(number.description and number.location for number in item.numbers.values()), key


def test_the_numbers_of_departures_are_those_of_the_configs():
    configs = {name: c for name, (_, c) in settings.published_setting().items()}
    main, fixed = configs["main"].attack, configs["fixed-140M"].attack
    flips = {configs[n].population.samples // 2 for n in ("small", "flip-140M", "flip-302M")}
    assert flips == {2**19}
    assert f"up to {main.references - main.targets} references" in text_of("fig10")
    assert f"{main.references} models of Figure 1" in text_of("fig07")
    assert configs["schedule-linear"].population.samples == 2 * 7_000_000
    assert f"the {configs['chinchilla-10M'].attack.targets} targets" in text_of("fig20")
    assert f"Each of {fixed.references} models" in text_of("fig21")
    warmups = {c.optimizer.warmup_steps for n, c in configs.items() if n.startswith("data-")}
    assert warmups == {80}
    assert "80 warm-up steps" in text_of("fig04")
    scored = configs["epochs-140M-small"].score.at_epochs
    assert ", ".join(f"{epoch:g}" for epoch in scored) in text_of("fig17")
    distinct = configs["distinct"].population.distinct_prefix_tokens
    assert f"first {distinct} tokens" in text_of("fig16")
    assert f"{main.targets} targets" in text_of("fig01")
    by_step = text_of("fig06")
    assert f"trained for {config.total_steps(configs['fixed-140M']):,} steps" in by_step
    assert f"{config.total_steps(configs['main']):,} steps; (b)" in by_step
