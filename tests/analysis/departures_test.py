"""The list of departures from the protocol of StrongMIA against the configs and the figures."""

from analysis import departures
from analysis.departures import DEPARTURES
from analysis.figures import MODULES, settings
from lm_mia import config
from lm_mia.config.paper import figure_number


def text_of(number: str) -> str:
    [name] = [n for n in MODULES if n.startswith("strongmia_") and figure_number(n) == number]
    return " ".join(departures.departures(name))


def test_every_departure_names_figures_of_the_paper():
    numbers = {figure_number(name) for name in MODULES if name.startswith("strongmia_")}
    for departure in DEPARTURES:
        assert {*departure.figures} <= numbers, departure.text
        assert departure.text.endswith("."), departure.text
    texts = [departure.text for departure in DEPARTURES]
    assert len({*texts}) == len(texts)


def test_figures_of_other_papers_have_no_departures():
    assert departures.departures("reliability_fig04_efficiency") == []
    assert departures.departures("scaling") == []


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
