"""Table 7 against the configs."""

from analysis.figures import settings


def test_differences_from_table_7_match_the_configs():
    configs = {name: c for name, (_, c) in settings.published_setting().items()}
    text, main, fixed = settings.DEPARTURES, configs["main"].attack, configs["fixed-140M"].attack
    assert {configs[n].population.samples // 2 for n in ("small", "flip-140M", "flip-302M")} == {
        2**19
    }
    assert f"up to {main.references - main.targets} references" in text
    assert f"scores of all {main.references} (128)" in text
    assert configs["schedule-linear"].population.samples == 2 * 7_000_000
    assert f"the {configs['chinchilla-10M'].attack.targets} targets" in text
    assert f"each of {fixed.references} models" in text
