"""The page of single samples in headless Chromium; browser.sh installs it and runs this file."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait
from synthetic_workdir import FOCUS, FPRS, with_files, write_workdir

from analysis import sample_page

SAMPLES = 200
TEXTS = [f'text number {i} with <b>tags</b> &amp; "quotes"' for i in range(SAMPLES)]
TEXTS[7] = (
    "</script><script>document.title = 'injected'</script> <!-- <script> \u2028 \u2029 \x00 é 漢 end of seven"
)
PIECES = ["▁first", "</script>", "▁third"]
FEW = {"samples": SAMPLES, "attacks": ("lira_online",), "bootstraps": 0}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = write_workdir(tmp_path_factory.mktemp("run") / "demo", texts=TEXTS, **FEW)
    tokens = pd.DataFrame({"id": 7, "position": [1, 2, 3], "piece": PIECES})
    tokens = tokens.assign(in_loss_nats=[1.0, 2.0, 3.0], out_loss_nats=[1.5, 2.0, float("nan")])
    sample_page.write(with_files(recipe, {"shown_tokens.parquet": tokens}))
    return recipe.recipe_dir


@pytest.fixture
def page(browser: webdriver.Chrome, recipe: Path) -> webdriver.Chrome:
    """The page as opened from its file, after its table is filled."""
    browser.get("about:blank")
    browser.get((recipe / sample_page.PAGE).as_uri())
    wait(browser, lambda: "Loading" not in text(browser, "#count"))
    return browser


def wait(browser: webdriver.Chrome, condition: Callable[[], object]) -> None:
    WebDriverWait(browser, 60, 0.05).until(lambda _: condition())


def text(browser: webdriver.Chrome, selector: str) -> str:
    return browser.find_element(By.CSS_SELECTOR, selector).text


def field(browser: webdriver.Chrome, name: str, end: str) -> WebElement:
    selector = f'input[data-property="{name}"][data-end="{end}"]'
    return browser.find_element(By.CSS_SELECTOR, selector)


def select(browser: webdriver.Chrome, name: str, option: str) -> None:
    browser.find_element(By.XPATH, f'//select[@id="{name}"]/option[text()="{option}"]').click()


def column(browser: webdriver.Chrome, number: int) -> list[str]:
    """Returns the texts of a column, from 1, of the visible rows."""
    script = "return [...document.querySelectorAll(arguments[0])].map((cell) => cell.textContent)"
    return browser.execute_script(script, f"#samples tbody tr > :nth-child({number})")


def count(browser: webdriver.Chrome) -> int:
    return int(text(browser, "#count").split()[0])


def samples(recipe: Path) -> pd.DataFrame:
    return pd.read_parquet(recipe / "tables" / "samples.parquet")


def by_exposure(recipe: Path) -> pd.DataFrame:
    """Returns the table of samples in the order in which the page begins: the most exposed ones first."""
    exposure = pd.read_parquet(recipe / "tables" / "headline_samples.parquet")
    exposure["above"] = np.floor(1000 * exposure["above"] + 1e-6) / 10
    exposure = exposure.sort_values(["above", "score"], ascending=False, kind="stable")
    exposure = exposure.set_index("id")[["above"]]
    return samples(recipe).set_index("id").loc[exposure.index].join(exposure).reset_index()


def open_sample(browser: webdriver.Chrome, sample: int, fpr: str = "5%") -> None:
    """Waits until the reader shows the sample, and its pictures are drawn."""
    reader = browser.find_element(By.TAG_NAME, "dialog")
    wait(browser, lambda: reader.get_attribute("data-shown") == f"{sample} {fpr}")
    assert text(browser, "dialog h3") == f"Sample {sample}"


def press(browser: webdriver.Chrome, key: str) -> None:
    browser.switch_to.active_element.send_keys(key)


def test_loads_all_samples_without_errors_or_requests(page: webdriver.Chrome, recipe: Path):
    assert page.title == "Single samples: demo"
    assert text(page, "#count") == f"{SAMPLES} of {SAMPLES} samples"
    table = by_exposure(recipe)
    assert column(page, 1) == [*map(str, table["id"][:25])]
    assert column(page, 2) == ["yes" if m else "no" for m in table["member"][:25]]
    assert column(page, 3) == [f"{above:.1f}" for above in table["above"][:25]]
    assert column(page, 4) == [f"{rate:.3f}" for rate in table[f"flip_rate_{FOCUS:g}"][:25]]
    page.find_element(By.ID, "search").send_keys("end of seven")
    assert column(page, 10) == [TEXTS[7][:120]]
    events = [json.loads(line["message"])["message"] for line in page.get_log("performance")]
    sent = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    assert {url.partition(":")[0] for url in sent} <= {"file", "blob", "data", "about"}


def test_sorts_by_keyboard(page: webdriver.Chrome, recipe: Path):
    header = page.find_element(By.CSS_SELECTOR, "#samples thead th:nth-child(6)")
    header.find_element(By.CSS_SELECTOR, "[tabindex]").send_keys(Keys.ENTER, Keys.ENTER)
    wait(page, lambda: header.get_attribute("aria-sort") == "descending")
    best = samples(recipe).sort_values("mean_score", ascending=False)["id"][:25]
    assert column(page, 1) == [*map(str, best)]


def test_filters_and_searches(page: webdriver.Chrome, recipe: Path):
    table = by_exposure(recipe)
    select(page, "membership", "non-members")
    assert count(page) == (~table["member"]).sum()
    field(page, "tokens", "low").send_keys("60")
    field(page, "tokens", "high").send_keys("90")
    kept = table[~table["member"] & table["tokens"].between(60, 90)]
    assert count(page) == len(kept) > 0
    select(page, "fpr", "20%")
    field(page, "flip_rate", "low").send_keys("0.1")
    kept = kept[kept["flip_rate_0.2"].round(4) >= 0.1]
    assert count(page) == len(kept) > 0
    first_rows = kept[:25]
    assert column(page, 1) == [*map(str, first_rows["id"])]
    assert column(page, 4) == [f"{rate:.3f}" for rate in first_rows["flip_rate_0.2"]]
    page.find_element(By.CSS_SELECTOR, "button[type=reset]").click()
    wait(page, lambda: count(page) == SAMPLES)
    page.find_element(By.ID, "search").send_keys("SEVEN end")
    assert column(page, 1) == ["7"]
    field(page, "tfidf", "low").send_keys("99")
    assert count(page) == 0
    assert "No sample satisfies the conditions" in text(page, "#samples")


def test_shows_a_sample(page: webdriver.Chrome, recipe: Path):
    table, shown = (
        pd.read_parquet(recipe / "tables" / f"{name}.parquet")
        for name in ("samples", "shown_samples")
    )
    row = shown.loc[7]
    ids = by_exposure(recipe)["id"].tolist()
    following = ids[ids.index(7) + 1]
    page.execute_script("location.hash = 'sample-7'")
    open_sample(page, 7)
    assert page.current_url.endswith("#sample-7")
    facts = text(page, "dialog p.facts")
    assert facts.startswith("Member" if table["member"][7] else "Not a member")
    assert f"found in {table[f'votes_{FOCUS:g}'][7]} of 16 trainings" in facts
    above = by_exposure(recipe).set_index("id")["above"][7]
    assert f"higher than {above:.1f} % of the non-members" in facts or above == 100
    assert page.find_element(By.TAG_NAME, "blockquote").get_property("textContent") == TEXTS[7]
    assert page.title == "Single samples: demo", "the text of the sample was run as a script"
    # A dot for each reference and each replica.
    dots = page.find_elements(By.CSS_SELECTOR, "dialog .losses circle")
    assert len(dots) == len(row["reference_loss_nats"]) + len(row["replica_loss_nats"])
    assert page.find_elements(By.CSS_SELECTOR, "#token-losses svg .mark-line path")
    cells: list[list[str]] = page.execute_script(
        "return [...document.querySelectorAll('#decisions tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    for b, (name, loss, *decisions) in enumerate(cells):
        assert name == f"replica-{b:02d}"
        assert float(loss) == pytest.approx(row["replica_loss_nats"][b], abs=6e-5)
        # A rate that the non-members cannot show has no decisions.
        called = [row[f"decisions_{fpr:g}"] for fpr in FPRS]
        expected = ["–" if c[b] is None else "yes" if c[b] else "no" for c in called]
        assert decisions == expected
    assert len(cells) == 16
    press(page, Keys.ARROW_RIGHT)
    open_sample(page, following)  # has no losses of tokens
    assert page.current_url.endswith(f"#sample-{following}")
    assert not page.find_element(By.ID, "tokens").is_displayed()
    press(page, Keys.ESCAPE)
    assert not page.find_element(By.TAG_NAME, "dialog").is_displayed()
    # Browsers tell the page of a closed dialog a little later.
    wait(page, lambda: page.switch_to.active_element.text == str(following))
    assert "#" not in page.current_url
    select(page, "fpr", "50%")
    page.execute_script(f"location.hash = 'sample-{following}'")
    open_sample(page, following, "50%")
    assert f"Votes: {table['votes_0.5'][following]} of 16" in text(page, "#properties")


def test_arrow_keys_follow_the_order_and_the_conditions_of_the_table(
    page: webdriver.Chrome, recipe: Path
):
    table = by_exposure(recipe)
    select(page, "membership", "members")
    shown = [*map(int, column(page, 1))]
    assert shown == table[table["member"]]["id"][:25].tolist()
    page.find_element(By.CSS_SELECTOR, f'#samples tr[data-sample="{shown[23]}"] a').click()
    open_sample(page, shown[23])
    following = table[table["member"]]["id"].tolist()
    for sample in following[24:27]:  # the last two are on the next part of the table
        press(page, Keys.ARROW_RIGHT)
        open_sample(page, sample)
    press(page, Keys.ESCAPE)
    wait(page, lambda: page.switch_to.active_element.text == str(following[26]))
    # A link to a sample that the conditions leave out opens it alone.
    other = int(table[~table["member"]]["id"].iloc[0])
    page.execute_script(f"location.hash = 'sample-{other}'")
    open_sample(page, other)
    for side in ("previous", "next"):
        button = page.find_element(By.CSS_SELECTOR, f"dialog .{side}")
        assert button.get_attribute("aria-disabled") == "true"


@pytest.mark.skipif(
    importlib.util.find_spec("axe_core_python") is None, reason="needs the package axe-core-python"
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("with_reader", [False, True])
def test_axe_finds_nothing(page: webdriver.Chrome, scheme: str, with_reader: bool):
    feature = {"name": "prefers-color-scheme", "value": scheme}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    if with_reader:
        page.execute_script("location.hash = 'sample-7'")
        open_sample(page, 7)
        page.execute_script("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    from axe_core_python.selenium import Axe

    found = Axe().run(page)["violations"]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    assert [(v["id"], v["nodes"][0]["html"][:200]) for v in found] == []


def test_fits_a_narrow_screen(page: webdriver.Chrome):
    size: dict[str, Any] = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.execute_script("location.hash = 'sample-7'")
    open_sample(page, 7)
    width = page.execute_script("return document.documentElement.scrollWidth")
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert width == 400
    assert [line["message"] for line in page.get_log("browser")] == []


def test_without_replicas_samples_are_shown(browser: webdriver.Chrome, tmp_path: Path):
    settings: dict[str, Any] = FEW | {"replicas": 0, "targets": 1}
    recipe = write_workdir(tmp_path / "demo", texts=TEXTS, **settings)
    browser.get("about:blank")
    browser.get(sample_page.write(recipe).as_uri())
    wait(browser, lambda: text(browser, "#count") == f"{SAMPLES} of {SAMPLES} samples")
    table = recipe.view.table("headline_samples.parquet")
    best = table["above"].max()
    assert float(column(browser, 3)[0]) == pytest.approx(100 * best, abs=0.1)
    shown = recipe.view.table("page_samples.parquet")
    browser.execute_script(f"location.hash = 'sample-{shown['id'][0]}'")
    open_sample(browser, shown["id"][0], "")
    dots = browser.find_elements(By.CSS_SELECTOR, "dialog .losses circle")
    assert len(dots) == sum(len(shown[f"{kind}_loss_nats"][0]) for kind in ("in", "out", "model"))
    press(browser, Keys.ARROW_RIGHT)
    wait(browser, lambda: text(browser, "dialog h3") != f"Sample {shown['id'][0]}")
    press(browser, Keys.ESCAPE)
    select(browser, "membership", "non-members")
    assert count(browser) == (~table["member"]).sum()
