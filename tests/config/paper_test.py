"""The argument [FIGURE,]SETTING of the configs of papers."""

import dataclasses

import pytest

from lm_mia.config import Config, Train
from lm_mia.config.paper import current_figure_name, figure_number, parse_argument, sweep_entries
from lm_mia.errors import UserError

FEW = ["ours_fig02_sizes", "ours_figA1_oracle", "ours_tab01_settings"]
MANY = [*(f"ours_fig{n:02}_x" for n in range(1, 12)), "ours_tab01_x", "ours_tab02_x"]


def test_numbers_of_figures():
    names = ("strongmia_fig05_instability", "ours_figA1_oracle_moments", "scaling", "mine")
    assert [*map(figure_number, names)] == ["fig05", "figA1", "scaling", "mine"]


def test_names_that_earlier_versions_stored():
    for stored, name in (
        ("fig05_instability", "strongmia_fig05_instability"),
        ("tab07_settings", "strongmia_tab07_settings"),
        ("mace_fig02_progress", "mace_fig02_progress"),
        ("scaling", "scaling"),
        ("/mine/fig05_mine.py", "/mine/fig05_mine.py"),
        ("fig05_mine.py", "fig05_mine.py"),
    ):
        assert current_figure_name(stored) == name


def test_figures_are_named_by_number_or_in_full():
    parsed = parse_argument("figA1,ours_fig02_sizes,fig02,gpu", FEW, "Ours", "ours.py")
    assert parsed == (["ours_figA1_oracle", "ours_fig02_sizes"], "gpu")
    assert parse_argument("cpu", FEW, "Ours", "ours.py") == (FEW, "cpu")


@pytest.mark.parametrize(
    ("arg", "figures", "message"),
    [
        ("figa1,cpu", FEW, "figA1? Name one of fig02, figA1 or tab01"),
        ("fig12,cpu", MANY, "fig01? Name one of fig01 to fig11 or tab01 to tab02"),
    ],
)
def test_unknown_figures(arg: str, figures: list[str], message: str):
    with pytest.raises(UserError) as caught:
        parse_argument(arg, figures, "Ours", "ours.py")
    assert str(caught.value).startswith(f"FIGURE={arg[:5]}: Ours ")
    assert str(caught.value).endswith(f" {message}")


def test_the_setting_comes_last():
    with pytest.raises(UserError, match=r"^SETTING=fig02: .*ours.py:fig02,cpu$"):
        parse_argument("cpu,fig02", FEW, "Ours", "ours.py")


def test_a_sweep_lists_what_differs_from_the_first_recipe():
    first = Config(name="a")
    second = dataclasses.replace(first, name="b", train=Train(epochs=3))
    assert [*sweep_entries([first, second])] == [{"name": "b", "train.epochs": 3}]
