import base64
import concurrent.futures
import dataclasses
import gzip
import html.parser
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_workdir import with_files, write_workdir

from analysis import sample_page
from analysis.io import SweepResults

TEXT = "</script><script>alert(1)</script> <!-- <script>"


class Scripts(html.parser.HTMLParser):
    """Collects the content of the script elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.contents: list[str] = []
        self.ids: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self.ids.append(dict(attrs).get("id"))
            self.contents.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.contents[-1] += data


def data_of(page: Path) -> dict[str, Any]:
    """Returns the data of a page without losses of tokens, which has no plot that needs a library."""
    scripts = Scripts()
    scripts.feed(page.read_text())
    assert scripts.ids == ["data", "datatables", "datatables-css", None, None]
    text = gzip.decompress(base64.b64decode(scripts.contents[0])).decode()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not valid JSON")

    return json.loads(text, parse_constant=refuse)


def test_page_holds_missing_values_no_members_and_texts_with_markup(
    recipes: SweepResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe = recipes["flip-302M"]
    table = recipe.view.table("samples.parquet").assign(member=False, mean_score=np.inf)
    lists = recipe.view.table("shown_samples.parquet")
    for name in ("reference_loss_nats", "replica_loss_nats"):
        first, second, *others = lists[name]
        lists[name] = [np.full_like(first, np.nan), np.full_like(second, np.inf), *others]
    tables = {"samples.parquet": table, "shown_samples.parquet": lists.assign(text=TEXT)}
    changed = dataclasses.replace(with_files(recipe, tables), recipe_dir=tmp_path)
    vars(changed)["view"] = with_files(recipe, tables).view
    bundle = concurrent.futures.Future[str]()
    bundle.set_result("")
    monkeypatch.setattr(sample_page, "start_bundling", lambda: bundle)
    data = data_of(sample_page.write(changed))
    assert set(data["text"]) == {TEXT}
    assert not any(data["member"])
    assert set(data["mean_score"]) == {None}
    assert len(data["above"]) == len(data["score"]) == len(data["id"])
    for row in range(2):
        assert set(data["reference_loss_nats"][row] + data["replica_loss_nats"][row]) == {None}
    assert None not in data["reference_loss_nats"][2]


def test_without_replicas_the_page_has_the_scores_of_the_first_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings: dict[str, Any] = {"replicas": 0, "targets": 2, "attacks": ("lira_online", "loss")}
    recipe = write_workdir(tmp_path / "w", samples=100, bootstraps=0, **settings)
    table = recipe.view.table("headline_samples.parquet")
    data = data_of(sample_page.write(recipe))
    assert data["id"] == table["id"].tolist()
    assert data["member"] == table["member"].tolist()
    assert np.array(data["score"], float) == pytest.approx(table["score"], abs=1e-4, nan_ok=True)
    assert {*data["chosen_by"]} == {"all"}
    assert {"score", "above"} <= {column["name"] for column in data["properties"]}
    shown = recipe.view.table("page_samples.parquet").set_index("id")
    assert {*data["losses"]} == {*map(str, shown.index)}
    some = shown.index[0]
    assert data["losses"][str(some)]["in"] == pytest.approx(shown["in_loss_nats"][some], abs=1e-4)
    monkeypatch.setattr(sample_page, "MAX_SAMPLES", 20)
    few = data_of(sample_page.write(recipe))
    assert len(few["id"]) == 20
    best = table.nlargest(5, "score")["id"]
    assert {*best} <= {*few["id"]}
    assert few["chosen_by"].count("random") == 10
