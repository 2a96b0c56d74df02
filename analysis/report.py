"""Draws every figure of a finished workdir and writes WORKDIR/report.html, a page on its own."""

import argparse
import base64
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from matplotlib.figure import Figure

from analysis import archetype_panels, flip_panels, io, plotting, sentences, tables, vulnerability
from analysis.figures import extraction, references, samples, training
from analysis.io import Record, percent
from lm_mia.atomic import write_atomically

TABLES = {
    "attacks.csv": "every attack at every number of references",
    "roc.csv": "ROC curves",
    "shuffled.csv": "the control with shuffled labels",
    "error_rates.csv": "error rates at each FPR",
    "thresholds.csv": "every replica's threshold at each FPR",
    "flip_shares.csv": "shares of flip rates at each FPR",
    "true_positives.csv": "true positives by flip rate",
    "coin_free_roc.csv": "the mean ROC curve with and without coin flips",
    "partial_auc.csv": "partial areas and lifts of both",
    "flip_curves.csv": "flip rate against distance and posterior",
    "samples.parquet": "one row a sample: scores, votes, flip rates, distances",
    "archetypes.csv": "the samples of the archetype figure and their rules",
    "flips.json": "recipe, rows and settings of the attack, coin-flip cutoff",
}
MORE_TABLES = {
    "intervals.csv": "95% intervals of the first replica, bootstrap and Clopper-Pearson",
    "resampled_references.csv": "flip rates over sets of references, for one target",
    "true_positive_probability.parquet": "every reference as a target: one row a sample",
    "extraction.csv": "the highest scores: probabilities of suffixes, and what was written",
    "extraction_curves.csv": "shares of these samples that can be extracted, by queries",
    "extraction.json": "who was asked, and how",
}
"""Made when attack.bootstraps, resample_references, leave_one_out and extract.samples ask for them."""
FIGURES = (
    training,
    references,
    flip_panels,
    samples,
    archetype_panels,
    vulnerability,
    extraction,
)
"""Modules with figures of a run."""


def write(folder: Path) -> Path:
    """Draws the figures, writes the page, returns its path.

    Raises:
      io.WorkdirError: a table or the store is missing or unreadable; nothing is written.
    """
    page_facts = facts(folder)
    drawn = {}
    for module in FIGURES:
        drawn |= module.run_figures(folder)
    images = {
        name: "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()
        for name, png in save(folder, drawn).items()
    }
    page = render(page_facts, images)
    path = folder / "report.html"
    write_atomically(path, page)
    return path


def render(page_facts: Mapping[str, Any], images: Mapping[str, str]) -> str:
    """The page: report.html.j2 filled with facts() and with data URIs of the figures there are."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).resolve().parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(images=images, **page_facts)


def facts(folder: Path) -> dict[str, Any]:
    """Everything that the template shows, apart from the images."""
    run, flip_facts = io.run(folder), io.flip_facts(folder)
    io.require(folder, TABLES)
    attack = flip_facts["config"]
    extracted = extraction.read(folder)
    config = run["config"] | {"attack": attack}
    if extracted:  # of their own commands, which may be later than the one that config.json is of
        config |= {"extract": extracted.facts["config"]}
    samples = io.samples(folder, ["member", "tokens"])
    member_N = samples["member"].astype(bool)
    found, said = _attacks(folder, flip_facts, len(member_N))
    log = training.read_log(folder)
    shown, also_said = _decisions(folder, flip_facts, member_N)
    hidden = () if extracted else (extraction.TABLE, extraction.CURVES, extraction.FACTS)
    more = {k: v for k, v in MORE_TABLES.items() if io.has(folder, k) and k not in hidden}
    manifest_path = folder / "population" / "manifest.json"
    manifest = io.read_json(folder, "population/manifest.json") if manifest_path.is_file() else {}
    details = {k: v for k, v in manifest.items() if isinstance(v, dict | list)}
    page = {
        "name": folder.resolve().name,
        "focus": attack["focus_fpr"],
        "fprs": attack["fprs"],
        "flips": flip_facts,
        "attack": attack,
        "said": said
        | also_said
        | {
            "rows": sentences.rows_there(flip_facts),
            "training": sentences.training(log.curves, log.trained, log.scored),
            "vulnerable": [found.sentence() for found in vulnerability.read(folder)],
            "extraction": extracted.sentences() if extracted else [],
            "old_extraction": extraction.OLD if hidden and extraction.there(folder) else "",
        },
        "population": _population(config, manifest, samples["tokens"], member_N),
        "model": config["model"],
        "block_parameters": 12 * config["model"]["layers"] * config["model"]["width"] ** 2,
        "train": config["train"],
        "config": json.dumps(config, indent=2),
        "recipe": flip_facts["recipe"],
        "commands": _commands(run),
        "manifest": {k: v for k, v in manifest.items() if not isinstance(v, dict | list)},
        "manifest_details": json.dumps(details, indent=2) if details else "",
        "nan": math.nan,
        "tables": TABLES | more,
        "extractable": bool(extracted and extracted.extractable),
        "attack_name": io.attack_name,
        "percent": percent,
        "plus_minus": sentences.plus_minus,
        "plural": sentences.plural,
        "rate": tables.rate,
        "count": tables.count,
        "share": tables.share,
    }
    return page | found | shown


def _attacks(folder: Path, facts: Record, samples: int) -> tuple[dict[str, Any], dict[str, str]]:
    """What the page shows and says of attacks and their error rates."""
    fprs, focus = facts["config"]["fprs"], facts["config"]["focus_fpr"]
    at_fprs = [f"tpr_at_{f:g}_{what}" for f in fprs for what in ("mean", "std")]
    needed = (*references.AUC_COLUMNS, "targets", *at_fprs, "left_out")
    attacks = io.table(folder, "attacks.csv", needed)
    columns = ("shuffles", "auc_mean", "auc_min", "auc_max", "left_out")
    shuffled = io.table(folder, "shuffled.csv", ("attack", "references", *columns))
    rates = tables.error_rates(folder)
    intervals = tables.intervals(folder, facts)
    of_lira = [r for r in intervals if r["attack"] == "lira_online"]
    passed, verdict = sentences.control(shuffled)
    strongest = sentences.full(attacks)
    order = {r["attack"]: i for i, r in enumerate(strongest)}
    names = [io.attack_name(n) for n in order if n not in plotting.ATTACKS]
    shown = {
        "lira": sentences.pick(strongest, "lira_online"),
        "loss": sentences.pick(strongest, "loss"),
        "few": any(r["left_out"] for r in attacks if r["attack"] in ("lira_online", "loss")),
        "few_points": any(r["left_out"] for r in attacks),
        "some_left_out": any(r["left_out"] for r in strongest),
        "errors_left_out": max((int(r["left_out"]) for r in rates), default=0),
        "shuffled_left_out": any(r["left_out"] for r in shuffled),
        "attacks": strongest,
        "not_drawn": names,
        "intervals": bool(intervals),
        "auc_intervals": tables.of_metric(intervals, "auc"),
        "tpr_intervals": {f: r for f in fprs for r in of_lira if r["metric"] == f"tpr_at_{f:g}"},
        "error_rates": rates,
        "unequal": any(round(r["acc_mean"] - r["balanced_acc_mean"], 3) for r in rates),
        "shuffled": sorted(sentences.full(shuffled), key=lambda r: order.get(r["attack"], 99)),
        "passed": passed,
        "verdict": verdict,
    }
    return shown, {
        "lira": sentences.lira_against_loss(attacks, samples),
        "ahead": sentences.ahead_of_lira(attacks),
        "tpr": sentences.focus_tpr(attacks, focus),
        "growth": sentences.growth(attacks, samples),
        "left_out": sentences.left_out(attacks),
        "spread": sentences.spread(facts["replicas"]),
        "interval": sentences.interval(intervals),
    }


def _decisions(
    folder: Path, facts: Record, member_N: np.ndarray
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the page shows and says of decisions and their stability."""
    attack, decides = facts["config"], io.decides(facts)
    focus = attack["focus_fpr"]
    shares = io.table(folder, "flip_shares.csv", tables.SHARE_COLUMNS)
    positives = tables.true_positives(folder)
    areas = io.table(folder, "partial_auc.csv", flip_panels.AREA_COLUMNS)
    curves = io.table(folder, "flip_curves.csv", flip_panels.CURVE_COLUMNS)
    resampled, found = tables.resampled(folder), samples.read_probabilities(folder)
    bins = tables.bins(shares)
    said: dict[str, Any] = {
        "cutoff": sentences.cutoff(facts),
        "resampled": sentences.resampled(resampled, attack["alpha"], len(member_N)),
        "probability": found.sentence() if found else "",
    }
    if decides:
        said["coin"] = sentences.coin_flips(shares, focus)
        said["hits"] = sentences.hits(positives, focus)
        said["coin_free"] = sentences.without_coins(areas, attack["band"])
    else:
        flip_N = io.samples(folder, [f"flip_{focus:g}"])[f"flip_{focus:g}"]
        said["coin"] = sentences.disagreement(flip_N.astype(float), member_N, focus)
    coins = (r for r in shares if r["bin"] == "coin flip" and math.isclose(r["fpr"], focus))
    shown = {
        "decides": decides,
        "focus_row": next(coins, None),
        "shares": tables.by_fpr(shares),
        "bins": bins,
        "parts": tables.parts(bins),
        "positives": positives,
        "bin_sizes": flip_panels.bin_sizes(flip_panels.curves_at(curves, focus)),
        "resampled": resampled,
        "archetypes": archetype_panels.read(folder),
        "none_found": archetype_panels.none_found(folder),
    }
    return shown, said


def _population(
    config: Record, manifest: Record, tokens_N: np.ndarray, member_N: np.ndarray
) -> Record:
    return {
        "samples": len(member_N),
        "members": int(member_N.sum()),
        "source": config["corpus"]["source"],
        "path": config["corpus"]["path"],
        "length_tokens": config["population"]["length_tokens"],
        "vocabulary": manifest.get("vocab_size") or config["tokenizer"]["vocab_size"],
        "tokens": int(tokens_N.sum()),
        "median_tokens": float(np.median(tokens_N)) if len(tokens_N) else 0.0,
    }


def _commands(run: Record) -> list[Record]:
    """What the first command and later ones that differed ran on."""
    found = []
    for i, entry in enumerate([run, *run["later"]]):
        cores = entry.get("cpu_cores")
        found.append(
            {
                "who": f"Later command {i}" if i else "First command",
                "version": entry.get("lm_mia") or "not recorded",
                "commit": entry.get("commit") or "not recorded",
                "cores": "not recorded" if cores is None else cores,
                "packages": entry.get("packages") or {},
            }
        )
    return found


def save(workdir: Path, drawn: Mapping[str, Figure | None]) -> dict[str, Path]:
    """Writes WORKDIR/figures and returns the PNGs; takes away older files of a figure that is None."""
    written = {}
    for name, figure in drawn.items():
        if figure is None:
            plotting.remove(workdir / "figures", name)
        else:
            written[name] = plotting.save(figure, workdir / "figures", name)
    return written


def parse_workdir(description: str | None) -> Path:
    """The one argument."""
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description=description)
    parser.add_argument("workdir", type=Path, help="a workdir in which lm-mia attack has finished")
    return parser.parse_args().workdir


def main() -> int:
    """Entry point: 0, or 2 with one line on stderr."""
    folder = parse_workdir(__doc__)
    try:
        path = write(folder)
    except io.WorkdirError as error:
        print(error, file=sys.stderr)
        return 2
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
