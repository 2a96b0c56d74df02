"""The report page in headless Chromium; browser.sh installs it and runs this file."""

import importlib.util
import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import demo_page
import pytest
import quickstart_like
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from analysis.report import document, recipe_page

SCREENS = [(width, scheme) for width in (1280, 400) for scheme in ("light", "dark")]
ROWS = "[data-samples] tbody tr"
SHOWN_TEXTS = """
return [...document.querySelectorAll("svg.chart")].filter((svg) => svg.checkVisibility()).map((svg) => {
  const [width, height] = svg.getAttribute("viewBox").split(" ").slice(2).map(Number);
  const texts = [...svg.querySelectorAll("text")].map((text) => {
    const box = text.getBBox();
    const isLabel = text.classList.contains("label");
    return [text.textContent, isLabel, box.x, box.x + box.width, box.y, box.y + box.height];
  });
  const size = parseFloat(getComputedStyle(svg.querySelector("text")).fontSize);
  const scale = svg.getBoundingClientRect().width / width;
  return [width, height, size * scale, texts];
});
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(demo_page.html(), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: webdriver.Chrome, path: Path) -> Iterator[webdriver.Chrome]:
    """The page in a window of 1280 px."""
    show(browser, path, 1280, "light")
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def show(browser: webdriver.Chrome, path: Path, width: int, scheme: str) -> None:
    size: dict[str, Any] = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get("about:blank")
    browser.get(path.as_uri())


def find(page: webdriver.Chrome, selector: str) -> WebElement:
    return page.find_element(By.CSS_SELECTOR, selector)


def column(page: webdriver.Chrome, selector: str) -> list[str]:
    """Returns the texts of a cell of each row of the first table of samples."""
    script = """
    const rows = document.querySelector("[data-samples] tbody").rows;
    return [...rows].map((row) => row.querySelector(arguments[0]).textContent);
    """
    return page.execute_script(script, selector)


def ids(page: webdriver.Chrome) -> list[str]:
    return column(page, "button.open")


def members(filter_: str) -> list[str]:
    return [s.id for s in demo_page.samples_table().samples if filter_ in s.filters]


def press(page: webdriver.Chrome, key: str) -> None:
    page.switch_to.active_element.send_keys(key)


def wait_for_focus(page: webdriver.Chrome, text: str) -> None:
    """Waits until the element with a text has the focus: browsers tell the page of a closed dialog a little later."""
    WebDriverWait(page, 10).until(lambda _: page.switch_to.active_element.text == text)


def open_details(page: webdriver.Chrome) -> None:
    page.execute_script(
        "document.querySelectorAll('details').forEach((part) => (part.open = true))"
    )


def test_loads_without_errors_or_requests(page: webdriver.Chrome):
    assert page.title == "demo <&>: membership inference report"
    assert ids(page) == members("exposed")[:8]
    assert column(page, "td.text")[0].startswith("</script><script>document.title")
    lines = [json.loads(line["message"])["message"] for line in page.get_log("performance")]
    sent = [
        line["params"]["request"]["url"]
        for line in lines
        if line["method"] == "Network.requestWillBeSent"
    ]
    assert {url.partition(":")[0] for url in sent} <= {"file", "about"}
    assert [line["message"] for line in page.get_log("browser")] == []


def test_rows_are_the_same_with_and_without_script(browser: webdriver.Chrome, path: Path):
    script = """
    return [...document.querySelectorAll("[data-samples] tbody")].map((body) =>
      [...body.rows].map((row) => row.innerText.split(/\\s+/).join(" ").trim()));
    """
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    show(browser, path, 1280, "light")
    open_details(browser)
    without = browser.execute_script(script)
    status = find(browser, "[data-samples] [role=status]").text
    assert not find(browser, ".choices").is_displayed()
    assert not browser.find_elements(By.CSS_SELECTOR, "th button, tbody button")
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    show(browser, path, 1280, "light")
    open_details(browser)
    assert browser.execute_script(script) == without
    assert [len(rows) for rows in without] == [8, 5]
    assert find(browser, "[data-samples] [role=status]").text.startswith(status)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 1000, 700, 400])
def test_nothing_is_wider_than_the_window(
    page: webdriver.Chrome, path: Path, width: int, scheme: str
):
    show(page, path, width, scheme)
    open_details(page)
    assert page.execute_script("return document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("width", [1280, 1160, 1100, 1000, 780, 700, 400])
def test_texts_of_charts_are_13_px_and_apart(page: webdriver.Chrome, path: Path, width: int):
    show(page, path, width, "light")
    open_details(page)
    shown = page.execute_script(SHOWN_TEXTS)
    assert len(shown) == 8, "each chart is shown once"
    for chart_width, height, size, texts in shown:
        assert size == pytest.approx(13)
        for text, _, left, right, top, bottom in texts:
            # The style sheet lets texts of wide fonts end a little outside.
            assert left >= -4, text
            assert right <= chart_width + 4, text
            assert top >= -4, text
            assert bottom <= height + 4, text
        labels = [text[2:] for text in texts if text[1]]
        for i, (left, right, top, bottom) in enumerate(labels):
            for other in labels[:i]:
                is_apart = right <= other[0] or other[1] <= left
                assert is_apart or bottom <= other[2] + 4 or other[3] <= top + 4


def test_page_is_not_long(page: webdriver.Chrome, path: Path):
    for width, screens in ((1280, 6), (400, 10)):
        show(page, path, width, "light")
        height = page.execute_script("return document.documentElement.scrollHeight")
        assert height <= 900 * screens


def test_the_page_of_an_attack_is_not_long(browser: webdriver.Chrome, tmp_path: Path):
    """With as many models and as long texts as the quickstart."""
    path = tmp_path / "report.html"
    recipe = quickstart_like.write(tmp_path / "w")
    path.write_text(document.render(recipe_page.page(recipe)), encoding="utf-8")
    for width, screens in ((1280, 6), (400, 10)):
        show(browser, path, width, "light")
        script = (
            "const root = document.documentElement; return [root.scrollHeight, root.scrollWidth];"
        )
        height, across = browser.execute_script(script)
        assert height <= 900 * screens
        assert across <= width
    assert [line["message"] for line in browser.get_log("browser")] == []


def test_sorts_by_keyboard(page: webdriver.Chrome):
    samples = [s for s in demo_page.samples_table().samples if "exposed" in s.filters]
    assert find(page, "th[data-sort=score]").get_attribute("aria-sort") == "descending"
    find(page, "th[data-sort=votes] button").send_keys(Keys.ENTER)
    assert find(page, "th[data-sort=votes]").get_attribute("aria-sort") == "descending"
    assert find(page, "th[data-sort=score]").get_attribute("aria-sort") == "none"
    assert page.switch_to.active_element == find(page, "th[data-sort=votes] button")
    press(page, Keys.ENTER)
    assert find(page, "th[data-sort=votes]").get_attribute("aria-sort") == "ascending"
    fewest = sorted(samples, key=lambda sample: sample.votes or 0)
    assert ids(page) == [sample.id for sample in fewest[:8]]
    find(page, "th[data-sort=score] button").click()
    find(page, "th[data-sort=score] button").click()
    assert ids(page) == [sample.id for sample in reversed(samples[-8:])]


def test_filters_and_shows_more(page: webdriver.Chrome):
    status = find(page, "[data-samples] [role=status]")
    total = len(members("exposed"))
    assert status.text.startswith(f"8 of 1,024 shown (this page has {total}")
    more = find(page, "button.more")
    assert more.text == "Show 25 more"
    more.send_keys(Keys.ENTER)
    assert ids(page) == members("exposed")[:33]
    assert page.switch_to.active_element.text == members("exposed")[8], "the first new row"
    while more.is_displayed():
        more.click()
    assert ids(page) == members("exposed")
    find(page, "[data-filter=alarms]").click()
    assert find(page, "[data-filter=alarms]").get_attribute("aria-pressed") == "true"
    assert find(page, "[data-filter=exposed]").get_attribute("aria-pressed") == "false"
    assert ids(page) == members("alarms")[:8]
    assert status.text == f"8 of {len(members('alarms'))} shown"
    find(page, "[data-filter=coin]").click()
    assert {text.split(" trainings")[0][-9:] for text in column(page, "td.votes")} >= {"coin flip"}


def test_reads_samples_with_the_keyboard(page: webdriver.Chrome):
    shown = members("exposed")[:8]
    page.find_elements(By.CSS_SELECTOR, "button.open")[0].send_keys(Keys.ENTER)
    dialog = find(page, "dialog")
    title = dialog.find_element(By.TAG_NAME, "h3")
    assert title.text == f"Sample {shown[0]}"
    assert page.switch_to.active_element == title
    text = find(page, "dialog blockquote").get_property("textContent")
    assert text == demo_page.HOSTILE.replace("\x00", "\ufffd")
    assert page.title.startswith("demo"), "the text of the sample was run as a script"
    assert "found in 16 of 16 trainings" in find(page, "dialog p.facts").text
    assert find(page, "dialog .previous").get_attribute("aria-disabled") == "true"
    assert len(dialog.find_elements(By.CSS_SELECTOR, ".losses circle")) == 48
    label = find(page, "dialog svg.chart").get_attribute("aria-label") or ""
    assert "References with this text: median 4." in label
    press(page, Keys.ARROW_LEFT)
    assert title.text == f"Sample {shown[0]}"
    for sample in shown[1:]:
        press(page, Keys.ARROW_RIGHT)
        assert title.text == f"Sample {sample}"
    press(page, Keys.ARROW_RIGHT)
    assert title.text == f"Sample {shown[-1]}", "the last of the rows that are shown"
    assert find(page, "dialog blockquote").get_property("textContent") == demo_page.LONG
    assert column(page, "td.text")[-1] == "\U0001f600 word " * 17 + "\U0001f600 …"
    assert find(page, "dialog .next").get_attribute("aria-disabled") == "true"
    find(page, "dialog .previous").click()
    assert title.text == f"Sample {shown[-2]}"
    press(page, Keys.ESCAPE)
    assert not dialog.is_displayed()
    wait_for_focus(page, shown[-2])
    press(page, Keys.ENTER)
    find(page, "dialog .close").click()
    wait_for_focus(page, shown[-2])


def test_losses_of_a_sample_without_references(page: webdriver.Chrome):
    open_details(page)
    row = page.find_elements(By.CSS_SELECTOR, "[data-samples]")[1]
    row.find_element(By.CSS_SELECTOR, "button.open").click()
    dialog = row.find_element(By.TAG_NAME, "dialog")
    names = [text.text for text in dialog.find_elements(By.CSS_SELECTOR, "svg text")][:2]
    assert names == ["Base model", "This model"]
    assert "trainings" not in dialog.find_element(By.CSS_SELECTOR, "p.facts").text


def test_links_open_folded_parts(page: webdriver.Chrome):
    assert find(page, "#d-attacks").get_attribute("open") is None
    find(page, 'a[href="#d-attacks"]').click()
    # The event comes after the click has returned.
    WebDriverWait(page, 10).until(lambda _: find(page, "#d-attacks").get_attribute("open"))
    page.get(page.current_url.partition("#")[0] + "#d-attacks")
    assert find(page, "#d-attacks").get_attribute("open") is not None


@pytest.mark.skipif(
    importlib.util.find_spec("axe_core_python") is None, reason="needs the package axe-core-python"
)
@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("with_reader", [False, True])
def test_axe_finds_nothing(
    page: webdriver.Chrome, path: Path, width: int, scheme: str, with_reader: bool
):
    show(page, path, width, scheme)
    open_details(page)
    if with_reader:
        find(page, "button.open").click()
    page.execute_script(
        resources.files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")
    )
    result = page.execute_async_script("axe.run(document).then(arguments[arguments.length - 1])")
    found = {v["id"]: [node["html"][:120] for node in v["nodes"]] for v in result["violations"]}
    assert found == {}


@pytest.mark.parametrize("media", ["light", "dark"])
def test_prints_folded_parts_as_lines(page: webdriver.Chrome, path: Path, media: str):
    show(page, path, 1280, media)
    feature = {"name": "prefers-color-scheme", "value": media}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": [feature]})
    assert not find(page, "header nav").is_displayed()
    assert not find(page, ".choices").is_displayed()
    assert page.execute_script("return getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)"
    )
