"""A synthetic workdir: LiRA on Gaussian losses, in tables shaped like those of lm_mia.attack.

There is more in it than the tables are about: rows of an attack that was larger, another recipe, and an earlier
training of the first row. All of these have losses that no row of the tables comes near.
"""

import csv
import dataclasses
import json
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy import special, stats

FPRS, FOCUS = (0.01, 0.05, 0.1, 0.2, 0.5), 0.05
RECIPE, OTHER_RECIPE = "recipe_0123abcd", "recipe_00000000"
FAR, TARGET_SEED = 77.0, 2**31
LATER = {"lm_mia": "0.2.0", "packages": {"jax": "9.9.9"}, "commit": "abc123+", "cpu_cores": 96}
NASTY = "<script>alert('x & y')</script>\n\"quoted\", " + "long" * 40
_BINS = ("very stable", "low/mid", "mid/high", "very unstable", "coin flip")


@dataclasses.dataclass(frozen=True)
class World:
    """Losses of M rows (references, then replicas) on N samples."""

    loss_MxN: np.ndarray
    member_MxN: np.ndarray
    references: int
    fprs: tuple[float, ...]

    @property
    def target_N(self) -> np.ndarray:
        return self.member_MxN[-1]

    @property
    def replicas(self) -> int:
        return len(self.loss_MxN) - self.references

    @property
    def rows(self) -> list[tuple[str, int, int, int]]:
        """Role and seeds."""
        return [("reference", i, i, i) for i in range(self.references)] + [
            ("replica", TARGET_SEED, TARGET_SEED, b) for b in range(self.replicas)
        ]

    @property
    def larger(self) -> list[tuple[str, int, int, int]]:
        """Rows of an attack of earlier that had more of both roles."""
        count = self.references
        return [("reference", i, i, i) for i in range(count, count + 4)] + [
            ("replica", TARGET_SEED, TARGET_SEED, self.replicas)
        ]


class Page(HTMLParser):
    """Collects tags with their attributes, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def write_workdir(
    folder: Path,
    *,
    samples: int = 300,
    references: int = 16,
    replicas: int = 16,
    coin_flip: bool = True,
    effect: float = 0.6,
    fprs: tuple[float, ...] = FPRS,
    later: tuple[dict[str, Any], ...] = (),
) -> Path:
    """A workdir as after lm-mia attack; training on a sample lowers its loss by ``effect``."""
    rng = np.random.default_rng(0)
    (folder / "tables").mkdir(parents=True)
    (folder / "population").mkdir()
    halves = [rng.permutation(samples) < samples // 2 for _ in range(references + 1)]
    member_MxN = np.stack(halves + [halves[-1]] * (replicas - 1))
    level_N, gain_N = rng.normal(4, 0.6, samples), effect * rng.gamma(2, 0.5, samples)
    loss_MxN = level_N - gain_N * member_MxN + rng.normal(0, 0.25, member_MxN.shape)
    world = World(loss_MxN, member_MxN, references, fprs)
    _write_store(folder / RECIPE / "scores.zarr", world)
    _write_store(
        folder / OTHER_RECIPE / "scores.zarr", dataclasses.replace(world, loss_MxN=loss_MxN + FAR)
    )
    _write_attacks(folder / "tables", world, rng)
    _write_flips(folder / "tables", world, coin_flip)
    _write_config(folder, world, later)
    _write_log(folder / "metrics.jsonl", world, rng)
    return folder


def _scores(world: World, attack: str, count: int) -> np.ndarray:
    """score_TxN, NaN where there are too few references."""
    refs, member = world.loss_MxN[:count], world.member_MxN[:count]
    target = world.loss_MxN[world.references :]
    if attack == "loss":
        return -target
    if attack == "reference_calibrated":
        return refs.mean(0) - target
    logs = []
    for side in (member, ~member):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of samples without references
            part = np.where(side, refs, np.nan)
            mean, sd = np.nanmean(part, 0), np.nanstd(part, 0, ddof=1)
        sd[side.sum(0) < 2] = np.nan
        logs.append(stats.norm.logpdf(target, mean, sd))
    return logs[0] - logs[1] if attack == "lira_online" else -logs[1]


def _write_attacks(tables: Path, world: World, rng: np.random.Generator) -> None:
    counts = [c for c in (1, 2, 4, 8, 16, 32) if c <= world.references]
    wanted = [("loss", 0)]
    for attack in ("lira_online", "lira_offline", "reference_calibrated"):
        wanted += [(attack, count) for count in counts]
    attacks, shuffled, roc = [], [], []
    grid = np.geomspace(1 / (~world.target_N).sum(), 1, 40)
    for attack, count in wanted:
        score_TxN = _scores(world, attack, count)
        kept = ~np.isnan(score_TxN).any(0)
        member = world.target_N[kept]
        if not member.any() or member.all():
            continue
        name = {"attack": attack, "references": count}
        auc = np.array([_auc(s[kept], member) for s in score_TxN])
        row = {"targets": world.replicas, "auc_mean": auc.mean(), "auc_std": auc.std()}
        at = np.stack([_tpr(s[kept], member, np.array(world.fprs)) for s in score_TxN])
        for i, fpr in enumerate(world.fprs):
            row |= {f"tpr_at_{fpr:g}_mean": at[:, i].mean(), f"tpr_at_{fpr:g}_std": at[:, i].std()}
        attacks.append(name | row | {"left_out": int((~kept).sum())})
        tpr = np.stack([_tpr(s[kept], member, grid) for s in score_TxN])
        curve = {"fpr": grid, "tpr_mean": tpr.mean(0), "tpr_std": tpr.std(0)}
        curve |= {"left_out": int((~kept).sum())}
        roc += pd.DataFrame({**name, **curve}).to_dict("records")
        null = np.array([_auc(score_TxN[0][kept], rng.permutation(member)) for _ in range(10)])
        null_row = {f"auc_{n}": getattr(null, n)() for n in ("mean", "std", "min", "max")}
        if count in (0, world.references):
            left_out = {"left_out": int((~kept).sum())}
            shuffled.append({**name, "shuffles": 10, **null_row, **left_out})
    _write(tables / "attacks.csv", attacks)
    _write(tables / "shuffled.csv", shuffled)
    _write(tables / "roc.csv", roc)


def _write_flips(tables: Path, world: World, coin_flip: bool) -> None:
    target_N, replicas = world.target_N, world.replicas
    score_TxN = _scores(world, "lira_online", world.references)
    kept_N = ~np.isnan(score_TxN).any(0)
    left_out = int((~kept_N).sum())
    low = next(k for k in range(replicas) if stats.binom.cdf(k, replicas, 0.5) >= 0.025)
    pairs, half = replicas * (replicas - 1), replicas // 2
    cutoff, top = 2 * low * (replicas - low) / pairs, 2 * half * (replicas - half) / pairs
    facts = {"attack": "lira_online", "references": world.references, "replicas": replicas}
    facts |= {"alpha": 0.05, "k_low": low, "cutoff": cutoff, "max_flip_rate": top}
    facts |= {"left_out": left_out, "recipe": RECIPE, "config": _attack(world)}
    (tables / "flips.json").write_text(json.dumps(facts))
    samples = pd.DataFrame({"id": np.arange(len(target_N)), "member": target_N})
    samples["tokens"] = 20 + samples["id"] % 108
    samples["mean_score"] = score_TxN.mean(0)
    samples["mean_posterior"] = special.expit(score_TxN).mean(0)
    shares, errors = [], []
    edges = np.array([0, *np.minimum([0.1, 0.25, 0.4], cutoff), cutoff, top])
    for f in world.fprs:
        tau_T = np.nanquantile(score_TxN[:, ~target_N], 1 - f, axis=1, method="higher")
        votes_TxN = score_TxN > tau_T[:, None]
        votes = np.where(kept_N, votes_TxN.sum(0), np.nan)
        flip = 2 * votes * (replicas - votes) / pairs
        samples[f"votes_{f:g}"], samples[f"flip_{f:g}"] = votes, flip
        tpr, fpr = (votes_TxN[:, side & kept_N].mean(1) for side in (target_N, ~target_N))
        rates = {"acc": (tpr + 1 - fpr) / 2, "fnr": 1 - tpr, "fpr": fpr, "tnr": 1 - fpr, "tpr": tpr}
        spread = {f"{k}_{n}": getattr(v, n)() for k, v in rates.items() for n in ("mean", "std")}
        errors.append({"attack": "lira_online", "fpr": f, **spread, "left_out": left_out})
        bin_N = np.searchsorted(edges[1:5], flip + 1e-9, side="right")
        for b, name in enumerate(_BINS):
            row: dict[str, Any] = {"fpr": f, "bin": name, "low": edges[b], "high": edges[b + 1]}
            for label, side in (("members", target_N & kept_N), ("nonmembers", ~target_N & kept_N)):
                count = int((bin_N[side] == b).sum())
                row |= {f"{label}_percent": 100 * count / side.sum(), label: count}
            shares.append(row | {"left_out": left_out})
    _write(tables / "error_rates.csv", errors)
    _write(tables / "flip_shares.csv", shares)
    samples.to_parquet(tables / "samples.parquet", index=False)
    votes = samples[f"votes_{FOCUS:g}"].to_numpy()
    chosen = {"stable member": np.nanargmax(votes * target_N)}
    if coin_flip:
        chosen["coin flip"] = np.nanargmin(np.abs(votes - replicas / 2) + ~target_N * replicas)
    _write(
        tables / "archetypes.csv",
        [
            {"kind": kind, "id": int(i), "fpr": FOCUS, "votes": int(votes[i])}
            | {"flip": samples[f"flip_{FOCUS:g}"][int(i)], "text_preview": NASTY}
            for kind, i in chosen.items()
        ],
    )


def _attack(world: World) -> dict[str, Any]:
    attack = {"references": world.references, "replicas": world.replicas, "focus_fpr": FOCUS}
    return attack | {"fprs": world.fprs, "alpha": 0.05, "variance": "per_sample"}


def _write_config(folder: Path, world: World, later: tuple[dict[str, Any], ...]) -> None:
    samples = len(world.target_N)
    older = {"references": 777, "replicas": 888, "focus_fpr": 0.125, "fprs": [0.125], "alpha": 0.9}
    config = {
        "corpus": {"source": "docstrings", "path": ""},
        "tokenizer": {"path": "", "vocab_size": 1024},
        "population": {"samples": samples, "seed": 0, "length_tokens": 128},
        "model": {"layers": 2, "width": 64, "heads": 4, "dtype": "float32"},
        "train": {"subset": "exact", "batch_size": 16, "epochs": 4},
        "attack": older | {"variance": "pooled"},
    }
    run = {"config": config, "packages": {"jax": "0.10.2"}, "lm_mia": "0.1.0", "commit": None}
    run |= {"cpu_cores": 2, "later": later}
    (folder / "config.json").write_text(json.dumps(run))
    manifest = {"sha256": "f" * 64, "vocab_size": 1024, "provenance": {"corpus_sha256": "0" * 64}}
    (folder / "population" / "manifest.json").write_text(json.dumps(manifest))


def _write_log(path: Path, world: World, rng: np.random.Generator) -> None:
    steps = 4 * -(-len(world.target_N) // 2 // 16)
    with path.open("w") as log:

        def write(names: dict[str, Any], loss: float, member: float, nonmember: float) -> None:
            row = {"time": "2026-01-01T00:00:00", **names}
            for t in [*range(0, steps - 1, 5), steps - 1]:
                now = loss + 4 * np.exp(-3 * t / steps) + rng.normal(0, 0.1)
                event = {"event": "train", "step": t, "steps": steps, "loss_nats": now}
                log.write(json.dumps(row | event) + "\n")
            log.write(json.dumps(row | {"event": "row_trained", "seconds": 1.7 * loss}) + "\n")
            means = {"member_loss_nats": member, "nonmember_loss_nats": nonmember}
            log.write(json.dumps(row | {"event": "row_scored"} | means) + "\n")

        named = [
            {"row": "_".join(map(str, row)), "role": row[0]} for row in world.rows + world.larger
        ]
        for names in (named[0], *named[len(world.rows) :]):  # the first is trained again below
            write(names | {"recipe": RECIPE}, FAR, FAR, FAR)
        for names, loss_N, member_N in zip(named, world.loss_MxN, world.member_MxN, strict=False):
            mine = names | {"recipe": RECIPE}
            write(mine, 3, loss_N[member_N].mean(), loss_N[~member_N].mean())
            write(names | {"recipe": OTHER_RECIPE}, FAR, FAR, FAR)
        log.write('{"event": "worker_lost"}\n{"event": "waiting", "rows": 3}\n')
        log.write('{"event": "train", "row": "refer')


def _write_store(path: Path, world: World) -> None:
    """As lm_mia.store lays it out, a file a row, with the rows of the larger attack at the end."""
    role, *seeds = zip(*world.rows, *world.larger, strict=True)
    more = ((0, len(world.larger)), (0, 0))
    loss = np.pad(world.loss_MxN, more, constant_values=FAR)
    member = np.pad(world.member_MxN, more, constant_values=True)
    dims, chunks = ("row", "sample"), (1, loss.shape[1])
    columns = dict(zip(("subset_seed", "init_seed", "order_seed"), seeds, strict=True))
    data = xr.Dataset(
        {"loss": (dims, loss.astype(np.float32)), "member": (dims, member)},
        {"role": ("row", np.array(role, object))}
        | {name: ("row", np.array(column)) for name, column in columns.items()},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that consolidated metadata and text are extensions
        encoding = {"loss": {"chunks": chunks}, "member": {"chunks": chunks}}
        data.to_zarr(path, consolidated=True, zarr_format=3, encoding=encoding)


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def _auc(score: np.ndarray, member: np.ndarray) -> float:
    above = stats.mannwhitneyu(score[member], score[~member]).statistic
    return float(above / (member.sum() * (~member).sum()))


def _tpr(score: np.ndarray, member: np.ndarray, fprs: np.ndarray) -> np.ndarray:
    thresholds = np.quantile(score[~member], 1 - fprs, method="higher")
    return (score[member][:, None] > thresholds).mean(0)
