"""The page of single samples, WORKDIR/recipes/NAME/samples.html: a table to search, sort and filter, and one sample.

With replicas and references, it shows votes and flip rates under LiRA, too; otherwise, all replicas or the first target
under the headline attack.

The page needs no server and no other files: it contains the data and two libraries, DataTables for the table and
Vega-Lite for the losses of tokens, all compressed and encoded, so that no text of a sample can be mistaken for markup.
Samples open in the reader of the report page.

F: false positive rates, M: references, B: replicas, S: shown samples.
"""

import base64
import functools
import gzip
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from analysis import io, plotting, provenance
from analysis.formatting import percent
from analysis.io import RecipeResults, Record
from analysis.report import document
from lm_mia.atomic import write_atomically
from lm_mia.attacks.registry import attack_name
from lm_mia.attacks.shown_samples import MAX_CHARS, MAX_SAMPLES
from lm_mia.printing import plural
from lm_mia.seeds import draw

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
_PROPERTIES_OF_HEADLINE = {
    "above": ("Above non-members, %", 1),
    "score": ("Score", 2),
    "flip_rate": ("Flip rate", 3),
    "votes": ("Votes", 0),
    "called_at": ("Called at, %", 1),
    "tokens": ("Tokens", 0),
    "tfidf": ("TF-IDF", 2),
    "unk": ("Unknown tokens", 0),
}
"""The same without LiRA: flip rates and votes of replicas at the focus FPR, or the rate of a target."""
_BUNDLE = "import sys, vl_convert; sys.stdout.write(vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed'))"


def write(recipe: RecipeResults) -> Path:
    """Writes the page of a recipe from its tables and returns its path.

    Raises:
      Unavailable: no sample has a score of the headline attack; nothing is written.
    """
    facts = recipe.view.facts("flips") if recipe.view.has("flips.json") else {}
    if not facts.get("references"):
        facts = {}  # there is no LiRA
    data = _read(recipe, facts) if facts else _read_headline(recipe)
    is_complete = {*data["chosen_by"]} == {"all"}
    num_samples = len(recipe.view.attacked)
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
            trainings=data["trainings"],
            attacked_fpr=percent(recipe.view.c.focus),
            headline=attack_name(recipe.view.c.headline),
            samples=num_samples,
            shown=len(data["id"]),
            is_complete=is_complete,
            focus=percent(facts["config"]["focus_fpr"]) if facts else "",
            targets=len(recipe.targets),
            rules=sorted({*data["chosen_by"]}),
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
    trainings = len(facts["replica_models"])
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
        "trainings": trainings,
        "out_title": "References without it",
        "loss_note": (
            "Loss of this text under the references that were trained on it, under those that were not, and under the "
            "replicas (filled: “member”)."
        ),
        "colors": {"in": plotting.MEMBER, "out": plotting.NONMEMBER},
        "id": shown["id"].tolist(),
        "member": values["member"].tolist(),
        "chosen_by": shown["chosen_by"].tolist(),
        "text": shown["text"].tolist(),
        "source": _sources(recipe, shown["id"]),
        "above": _percentages_above(above_S),
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
    data["properties"] = _known(data, _PROPERTIES)
    return data


def _known(data: Record, titles: Mapping[str, tuple[str, int]]) -> list[Record]:
    """Returns the columns that have a value for some sample."""
    return [
        {"name": name, "title": title, "decimals": decimals}
        for name, (title, decimals) in titles.items()
        if any(v is not None for v in np.ravel(np.array(data[name], object)))
    ]


def _percentages_above(above_S: np.ndarray) -> list[Any]:
    """Returns the percentages of non-members with lower scores, rounded down, so that 100 means all of them."""
    return _numbers(np.floor(1000 * above_S + 1e-6) / 10, 1)


def _read_headline(recipe: RecipeResults) -> dict[str, Any]:
    """Returns all data for the script of the page of a recipe without LiRA's decisions, as `_read`.

    Losses are those of the samples that the report page shows.
    """
    trainings = len(recipe.replicas) if recipe.config.attack.replicas else 1
    columns = ["id", "member", "score", "above", "votes", "flip_rate", "called_at"]
    table = recipe.view.table(HEADLINE_TABLE, columns)
    position_S, chosen_by_S = _choose(table["score"].to_numpy(float))
    table = table.iloc[position_S]
    id_S, population = table["id"].to_numpy(), recipe.population
    has_references = bool(recipe.references)
    on_page = recipe.view.table("page_samples.parquet").to_dict("records")
    data: dict[str, Any] = {
        "fprs": [],
        "focus": 0,
        "reference_models": [],
        "replica_models": [],
        "trainings": trainings,
        "out_title": "References without it" if has_references else "Base model",
        "loss_note": (
            "Loss of this text under the references that were trained on it, under those that were not, and under the "
            "model under attack."
            if has_references
            else "Loss of this text under the base model, if there is one, and under the model under attack"
            + (" in each training (filled: “member”)." if trainings > 1 else ".")
        ),
        "id": id_S.tolist(),
        "member": table["member"].tolist(),
        "chosen_by": chosen_by_S.tolist(),
        "text": [text[:MAX_CHARS] for text in population.texts(id_S)],
        "source": _sources(recipe, id_S),
        "above": _percentages_above(table["above"].to_numpy(float)),
        "score": _numbers(table["score"].to_numpy(float), 4),
        "no_text": document.NO_TEXT,
        "losses": {
            str(row["id"]): {
                "in": _numbers(row["in_loss_nats"], 4),
                "out": _numbers(row["out_loss_nats"], 4),
                "model": _numbers(row["model_loss_nats"], 4),
                "called": "".join("1" if called else "0" for called in row["called"]),
            }
            for row in on_page
        },
        "token_losses": {},
    }
    if trainings > 1:
        data |= {n: [_numbers(table[n].to_numpy(float), 4)] for n in ("votes", "flip_rate")}
    else:
        data["called_at"] = _numbers(100 * table["called_at"].to_numpy(float), 4)
    for name in ("tokens", "tfidf", "unk"):
        value_N = population.column(name)[id_S] if name in population.column_names else math.nan
        data[name] = _numbers(np.broadcast_to(value_N, len(id_S)), 4)
    data["properties"] = _known(
        data, {name: title for name, title in _PROPERTIES_OF_HEADLINE.items() if name in data}
    )
    return data


def _choose(score_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the positions of the samples on the page of a target, ascending, and the rule that chose each of them.

    Of more than `MAX_SAMPLES`, half are random, and the others have the highest scores.
    """
    if score_N.size <= MAX_SAMPLES:
        return np.arange(score_N.size), np.full(score_N.size, "all")
    random = draw(0, "samples that the page shows", score_N.size, MAX_SAMPLES // 2)
    chosen_by = dict.fromkeys(random.tolist(), "random")
    for position in np.argsort(-score_N, kind="stable").tolist():  # missing scores are last
        if len(chosen_by) == MAX_SAMPLES:
            break
        chosen_by.setdefault(position, "score")
    position_S = np.array(sorted(chosen_by))
    return position_S, np.array([chosen_by[p] for p in position_S.tolist()])


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
