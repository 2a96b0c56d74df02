"""Draws every figure of a finished workdir and writes WORKDIR/report.html, a page on its own."""

import base64
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import archetypes
import findings
import flips
import jinja2
import numpy as np
import references
import roc
import training
import workdir
from workdir import Record, percent

from lm_mia.workdir import write_atomically

TABLES = {
    "attacks.csv": "every attack at every number of references",
    "roc.csv": "ROC curves",
    "shuffled.csv": "the control with shuffled labels",
    "error_rates.csv": "error rates at each FPR",
    "flip_shares.csv": "shares of flip rates at each FPR",
    "samples.parquet": "one row a sample: votes and flip rates",
    "archetypes.csv": "the samples of the archetype figure",
    "flips.json": "recipe and settings of the attack, coin-flip cutoff",
}
_RATES = ("acc", "fnr", "fpr", "tnr", "tpr")


def write(folder: Path) -> Path:
    """Draws the figures, writes the page, returns its path.

    Raises:
      workdir.WorkdirError: a table or the store is missing or unreadable; nothing is written.
    """
    page_facts = facts(folder)
    drawn = {}
    for module in (training, roc, references, flips, archetypes):
        drawn |= module.figures(folder)
    images = {
        name: "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()
        for name, png in workdir.save(folder, drawn).items()
    }
    page = render(page_facts, images)
    path = folder / "report.html"
    write_atomically(path, page)
    return path


def render(page_facts: Mapping[str, Any], images: Mapping[str, str]) -> str:
    """The page: report.html.j2 filled with facts() and with data URIs of the figures there are."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).resolve().parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(images=images, **page_facts)


def facts(folder: Path) -> dict[str, Any]:
    """Everything that the template shows, apart from the images."""
    run, flip_facts = workdir.run(folder), workdir.flip_facts(folder)
    attack = flip_facts["config"]
    config = run["config"] | {"attack": attack}
    fprs, focus = attack["fprs"], attack["focus_fpr"]
    at_fprs = [f"tpr_at_{f:g}_{what}" for f in fprs for what in ("mean", "std")]
    needed = (*references.COLUMNS, "targets", *at_fprs, "left_out")
    attacks = workdir.table(folder, "attacks.csv", needed)
    shuffled = workdir.table(
        folder,
        "shuffled.csv",
        ("attack", "references", "shuffles", "auc_mean", "auc_min", "auc_max", "left_out"),
    )
    rates = workdir.table(
        folder,
        "error_rates.csv",
        ("fpr", "left_out", *(f"{r}_{what}" for r in _RATES for what in ("mean", "std"))),
    )
    shares = workdir.table(folder, "flip_shares.csv", flips.SHARE_COLUMNS)
    votes, flip = f"votes_{focus:g}", f"flip_{focus:g}"
    samples = workdir.samples(folder, ["id", "member", "tokens", votes, flip])
    member_N = samples["member"].astype(bool)
    flip_N, votes_N = samples[flip].astype(float), samples[votes].astype(float)
    decides = workdir.decides(flip_facts)
    log = training.read(folder)
    manifest_path = folder / "population" / "manifest.json"
    manifest = (
        workdir.read_json(folder, "population/manifest.json") if manifest_path.is_file() else {}
    )
    details = {k: v for k, v in manifest.items() if isinstance(v, dict | list)}
    passed, verdict = findings.control(shuffled)
    strongest = findings.full(attacks)
    order = {r["attack"]: i for i, r in enumerate(strongest)}
    return {
        "name": folder.resolve().name,
        "lira": findings.pick(strongest, "lira_online"),
        "loss": findings.pick(strongest, "loss"),
        "few": any(r["left_out"] for r in attacks),
        "some_left_out": any(r["left_out"] for r in strongest),
        "errors_left_out": max((int(r["left_out"]) for r in rates), default=0),
        "shuffled_left_out": any(r["left_out"] for r in shuffled),
        "decides": decides,
        "unstable": archetypes.unstable_kind(flip_facts),
        "focus": focus,
        "focus_row": next(
            (r for r in shares if r["bin"] == "coin flip" and math.isclose(r["fpr"], focus)), None
        ),
        "attacks": strongest,
        "fprs": fprs,
        "error_rates": rates,
        "rates": _RATES,
        "shuffled": sorted(findings.full(shuffled), key=lambda r: order.get(r["attack"], 99)),
        "shares": _by_fpr(shares),
        "bins": _bins(shares),
        "flips": flip_facts,
        "attack": attack,
        "passed": passed,
        "verdict": verdict,
        "said": {
            "lira": findings.lira_against_loss(attacks, len(member_N)),
            "ahead": findings.ahead_of_lira(attacks),
            "tpr": findings.focus_tpr(attacks, focus),
            "growth": findings.growth(attacks, len(member_N)),
            "left_out": findings.left_out(attacks),
            "cutoff": findings.cutoff(flip_facts),
            "spread": findings.spread(attack["replicas"]),
            "coin": findings.coin_flips(shares, focus)
            if decides
            else findings.disagreement(flip_N, member_N, focus),
            "hits": findings.unstable_hits(votes_N, flip_N, member_N, flip_facts, focus)
            if decides
            else "",
            "training": findings.training(log.curves, log.trained, log.scored),
        },
        "population": _population(config, manifest, samples["tokens"], member_N),
        "model": config["model"],
        "block_parameters": 12 * config["model"]["layers"] * config["model"]["width"] ** 2,
        "train": config["train"],
        "archetypes": archetypes.read(folder),
        "config": json.dumps(config, indent=2),
        "recipe": flip_facts["recipe"],
        "commands": _commands(run),
        "manifest": {k: v for k, v in manifest.items() if not isinstance(v, dict | list)},
        "manifest_details": json.dumps(details, indent=2) if details else "",
        "nan": math.nan,
        "tables": {
            name: what for name, what in TABLES.items() if (folder / "tables" / name).is_file()
        },
        "attack_name": workdir.attack_name,
        "percent": percent,
        "plus_minus": findings.plus_minus,
        "plural": findings.plural,
    }


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


def _bins(shares: Sequence[Record]) -> list[Record]:
    """Bins in table order, each once."""
    return list({r["bin"]: {k: r[k] for k in ("bin", "low", "high")} for r in shares}.values())


def _by_fpr(shares: Sequence[Record]) -> dict[float, dict[str, Record]]:
    rows: dict[float, dict[str, Record]] = {}
    for row in shares:
        rows.setdefault(row["fpr"], {})[row["bin"]] = row
    return dict(sorted(rows.items()))


def main() -> int:
    """Entry point: 0, or 2 with one line on stderr."""
    folder = workdir.parse_workdir(__doc__)
    try:
        path = write(folder)
    except workdir.WorkdirError as error:
        print(error, file=sys.stderr)
        return 2
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
