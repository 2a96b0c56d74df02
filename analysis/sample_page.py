"""The page of single samples, WORKDIR/recipes/NAME/samples.html: a table to search, sort and filter, and one sample.

The page needs no server and no other files: it contains the data and two libraries, DataTables for the table and
Vega-Lite for the losses of tokens, all compressed and encoded, so that no text of a sample can be mistaken for markup.
Samples open in the reader of the report page.

F: false positive rates, M: references, B: replicas, S: shown samples.
"""

import base64
import functools
import gzip
import json
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from analysis import io, plotting, provenance
from analysis.formatting import percent, plural
from analysis.io import RecipeResults, Record
from analysis.report import document
from lm_mia.atomic import write_atomically
from lm_mia.attacks.registry import attack_name

PAGE = "samples.html"
"""Name of the page in the folder of the recipe."""
TABLE, TOKEN_TABLE = "shown_samples.parquet", "shown_tokens.parquet"
HEADLINE_TABLE = "headline_samples.parquet"
_PROPERTIES = {
    "above": ("Above non-members, %", 1),
    "flip_rate": ("Flip rate", 3),
    "votes": ("Votes", 0),
    "mean_score": ("LiRA score", 2),
    "tokens": ("Tokens", 0),
    "tfidf": ("TF-IDF", 2),
    "unk": ("Unknown tokens", 0),
}
"""Column -> title and number of decimals; flip rates and votes depend on the selected FPR."""
_BUNDLE = "import sys, vl_convert; sys.stdout.write(vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed'))"


def write(recipe: RecipeResults) -> Path:
    """Writes the page of a recipe from its tables and returns its path.

    Raises:
      Unavailable: the recipe has no tables of decisions; nothing is written.
    """
    facts = recipe.view.facts("flips")
    data = _read(recipe, facts)
    is_complete = {*data["chosen_by"]} == {"all"}
    num_samples = len(io.read_samples(recipe, ["id"])["id"])
    html = (
        document.environment()
        .get_template("sample_page.html.j2")
        .render(
            name=recipe.name,
            css=document.asset("page.css") + document.asset("sample_page.css"),
            reader_script=document.asset("reader.js"),
            script=document.asset("sample_page.js"),
            report="../../report.html",
            facts=facts,
            headline=attack_name(recipe.view.c.headline),
            samples=num_samples,
            shown=len(data["id"]),
            is_complete=is_complete,
            focus=percent(facts["config"]["focus_fpr"]),
            fprs=data["fprs"],
            properties=data["properties"],
            has_token_losses=bool(data["token_losses"]),
            plural=plural,
            version=provenance.version(),
            data=_pack(json.dumps(data, allow_nan=False)),
            datatables=_pack(_itables("dt_bundle.js")),
            datatables_css=_pack(_itables("dt_bundle.css")),
            vega=_pack(start_bundling().result()) if data["token_losses"] else "",
        )
    )
    write_atomically(recipe.recipe_dir / PAGE, html)
    return recipe.recipe_dir / PAGE


@functools.cache
def start_bundling() -> "Future[str]":
    """Starts to assemble the JavaScript of Vega-Lite, once; returns the future result.

    This takes a second, and runs in another process because the library would block all threads of this one.
    """
    executor = ThreadPoolExecutor(1)
    command = [sys.executable, "-P", "-c", _BUNDLE]
    # In a process group of its own, so that Ctrl-C does not interrupt it, which would print a traceback.
    future = executor.submit(subprocess.check_output, command, encoding="utf-8", process_group=0)
    executor.shutdown(wait=False)
    return future


def _itables(name: str) -> str:
    return resources.files("itables").joinpath("html", name).read_text("utf-8")


def _pack(text: str) -> str:
    """Compresses a text by gzip and encodes it in base64; the script of the page reverses this."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _read(recipe: RecipeResults, facts: Record) -> dict[str, Any]:
    """Returns all data for the script of the page; missing and infinite numbers are None."""
    fprs = facts["config"]["fprs"]
    shown = _read_lists(recipe, fprs)
    exposure = io.read_samples(recipe, ["id", "score", "above"], HEADLINE_TABLE)
    names = ["member", "mean_score", "tokens", "tfidf", "unk"]
    names += [f"{name}_{fpr:g}" for fpr in fprs for name in ("flip_rate", "votes")]
    all_samples = io.read_samples(recipe, ["id", *names])
    # The ids of both tables are in ascending order.
    index_S = np.searchsorted(all_samples["id"], shown["id"])
    values = {name: all_samples[name][index_S] for name in names}
    exposure_S = np.searchsorted(exposure["id"], shown["id"])
    above_S = np.asarray(exposure["above"], float)[exposure_S]
    data: dict[str, Any] = {
        "fprs": [percent(fpr) for fpr in fprs],
        "focus": fprs.index(facts["config"]["focus_fpr"]),
        "reference_models": facts["reference_models"],
        "replica_models": facts["replica_models"],
        "colors": {"in": plotting.MEMBER, "out": plotting.NONMEMBER},
        "id": shown["id"].tolist(),
        "member": values["member"].tolist(),
        "chosen_by": shown["chosen_by"].tolist(),
        "text": shown["text"].tolist(),
        "source": _sources(recipe, shown["id"]),
        # Rounded down, so that 100 means all non-members.
        "above": _numbers(np.floor(1000 * above_S + 1e-6) / 10, 1),
        "score": _numbers(np.asarray(exposure["score"], float)[exposure_S], 4),
        "no_text": document.NO_TEXT,
        "mean_score": _numbers(values["mean_score"], 4),
    }
    for name in ("tokens", "tfidf", "unk"):
        data[name] = _numbers(values[name], 4)
    for name in ("flip_rate", "votes"):
        data[name] = [_numbers(values[f"{name}_{fpr:g}"], 4) for fpr in fprs]
    for name in ("reference_loss_nats", "replica_loss_nats"):
        data[name] = _numbers(shown[name], 4)
    data["reference_member"] = _characters(shown["reference_member"])
    data["decisions"] = [_characters(shown[f"decisions_{fpr:g}"]) for fpr in fprs]
    data["token_losses"] = _read_token_losses(recipe, shown["id"])
    data["properties"] = [
        {"name": name, "title": title, "decimals": decimals}
        for name, (title, decimals) in _PROPERTIES.items()
        if any(v is not None for v in np.ravel(np.array(data[name], object)))
    ]
    return data


def _sources(recipe: RecipeResults, id_S: np.ndarray) -> list[str]:
    """Returns the name of each sample or, without one, where it is from; empty if neither is known."""
    population, sources = recipe.population, [""] * len(id_S)
    for column in ("source", "name"):
        if column in population.column_names:
            values = population.column(column)[id_S].astype(str).tolist()
            sources = [value or source for value, source in zip(values, sources, strict=True)]
    return sources


def _read_lists(recipe: RecipeResults, fprs: list[float]) -> dict[str, np.ndarray]:
    """Reads shown_samples.parquet; columns of lists are arrays with one row per sample and one column per model."""
    names = ["id", "chosen_by", "text", "reference_loss_nats", "reference_member"]
    names += ["replica_loss_nats", *(f"decisions_{fpr:g}" for fpr in fprs)]
    return {
        name: np.stack([*column]) if name not in names[:3] else column
        for name, column in io.read_samples(recipe, names, TABLE).items()
    }


def _read_token_losses(recipe: RecipeResults, id_S: np.ndarray) -> dict[str, dict[str, Any]]:
    """Returns id -> pieces and mean losses under IN and OUT references, for samples with stored token losses."""
    if not recipe.view.has(TOKEN_TABLE):
        return {}
    names = ["id", "position", "piece", "in_loss_nats", "out_loss_nats"]
    table = io.read_samples(recipe, names, TOKEN_TABLE)
    starts = np.flatnonzero(np.diff(table["id"], prepend=-1))
    shown = {*id_S.tolist()}
    token_losses = {}
    for low, high in zip(starts, [*starts[1:], len(table["id"])], strict=True):
        if (i := int(table["id"][low])) in shown:
            token_losses[str(i)] = {
                "piece": table["piece"][low:high].tolist(),
                "in": _numbers(table["in_loss_nats"][low:high], 4),
                "out": _numbers(table["out_loss_nats"][low:high], 4),
            }
    return token_losses


def _numbers(value: np.ndarray, decimals: int) -> list[Any]:
    """Returns rounded numbers as a list, of lists if the array has two dimensions; None if a number is not finite."""
    value = np.asarray(value, np.float64)
    rounded = np.round(value, decimals).astype(object)
    rounded[~np.isfinite(value)] = None
    return rounded.tolist()


def _characters(value_SxB: np.ndarray) -> list[str]:
    """Returns a string per sample with a character per model: "1" for true, "0" for false, "-" for missing."""
    character = {True: "1", False: "0", None: "-"}
    return ["".join(character[value] for value in row) for row in value_SxB.tolist()]
