"""Table 7, against the configs that it is made of."""

from analysis.figures import settings


def test_departures_from_table_7_are_those_of_the_configs():
    asked = {name: c for name, (_, c) in settings.published_setting().items()}
    said, main, fixed = settings.DEPARTURES, asked["main"].attack, asked["fixed-140M"].attack
    assert {asked[n].population.samples // 2 for n in ("small", "flip-140M", "flip-302M")} == {
        2**19
    }
    assert f"up to {main.references - main.targets} references" in said
    assert f"scores of all {main.references} (128)" in said
    assert asked["schedule-linear"].population.samples == 2 * 7_000_000
    assert f"the {asked['chinchilla-10M'].attack.targets} targets" in said
    assert f"each of {fixed.references} models" in said
