"""The decisions of many replicas, per class and per sample: StrongMIA Section 5, Appendix E.2.

The scores of the targets are read once, in blocks of samples: counts are summed over blocks, and what is known of each
sample is appended to samples.parquet. Explicit rules then select the archetypes from that table: example samples with
stable and with unstable decisions (StrongMIA Figure 22).

T: targets (B replicas), F: false positive rates of the config, G: points of the curve, C: samples of a block, N2:
samples of the population.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia import config, stats
from lm_mia.atomic import replacing, write_csv
from lm_mia.attacks import signals, tables
from lm_mia.attacks.score_matrix import MembershipScoreFile, map_in_order
from lm_mia.data.population import Population

_ROW_GROUP = 2**17  # samples of samples.parquet written at once
_BINS = 50  # of the curves of flip rate against distance and posterior

_PREVIEW_CHARS = 240


@dataclasses.dataclass(frozen=True)
class _BlockDecisions:
    counts: stats.FlipBinCounts
    tp_TxFx5: np.ndarray
    curve: stats.MemberVoteCounts
    samples: pa.Table


def write_decision_tables(
    inputs: signals.AttackInputs,
    attack_fit: signals.AttackFit,
    file: MembershipScoreFile,
    points: stats.OperatingPoints,
    sample_columns: Mapping[str, np.ndarray],
    c: config.Attack,
    folder: Path,
    pool: ThreadPoolExecutor,
    progress: Callable[[float], None] = lambda share: None,
) -> stats.FlipBinCounts:
    """Writes every table of decisions (StrongMIA Tables 1-6, Figures 25-30) and samples.parquet.

    Args:
      source, fitted: the rows, for the references' means and variances.
      file: online LiRA scores of the targets.
      points: their operating points, at attack.fprs first and then at the points of the curve.
      sample_columns: further columns of samples.parquet, each of shape N2.
      c: rates and levels.
      folder: of the tables.
      progress: called with the share done.

    Returns:
      The counts behind Tables 3 and 4.
    """
    rates = len(c.fprs)
    of_fprs = tables.select_fprs(points, slice(rates))
    write_csv(folder / "error_rates.csv", tables.error_rates(of_fprs))
    seeds = [row.order_seed for row in inputs.targets]
    write_csv(folder / "thresholds.csv", tables.thresholds(of_fprs, seeds))
    replicas, member_N2 = len(inputs.targets), inputs.target_member_TxN2[0]
    threshold_posterior_TxF = stats.posterior(of_fprs.threshold_TxF)

    def work(block: signals.SampleBlock) -> _BlockDecisions:
        at = block.sample_slice
        score_TxC, member_C = file.read_samples(at), member_N2[at]
        votes_KxC = stats.count_votes(score_TxC, points.threshold_TxF).votes_FxN
        votes_FxC = votes_KxC[:rates]
        posterior_TxC = stats.posterior(score_TxC)
        distance_FxC = stats.mean_distance_to_threshold(posterior_TxC, threshold_posterior_TxF)
        columns = {"id": np.arange(at.start, at.stop), "member": member_C}
        columns |= {name: column_N2[at] for name, column_N2 in sample_columns.items()}
        columns["score"] = score_TxC[0]
        columns["mean_score"] = score_TxC.mean(axis=0)
        columns["mean_posterior"] = posterior_TxC.mean(axis=0)
        columns["separation"] = signals.separation(block, attack_fit, c)
        for f, fpr in enumerate(c.fprs):
            columns[f"votes_{fpr:g}"] = pa.array(
                votes_FxC[f].astype(np.float32), mask=np.isnan(votes_FxC[f])
            ).cast(pa.int16())
            columns[f"flip_rate_{fpr:g}"] = stats.flip_rate(votes_FxC[f], replicas)
            columns[f"p_value_{fpr:g}"] = stats.p_value(votes_FxC[f], replicas)
            columns[f"distance_{fpr:g}"] = distance_FxC[f].astype(np.float32)
        bin_FxC = stats.flip_bins(votes_FxC, replicas, c.alpha)
        return _BlockDecisions(
            counts=stats.count_flip_bins(votes_FxC, member_C, replicas, c.alpha),
            tp_TxFx5=stats.count_true_positives(
                score_TxC, of_fprs.threshold_TxF, bin_FxC, member_C
            ),
            curve=stats.count_member_votes(votes_KxC[rates:], member_C, replicas, c.alpha),
            samples=pa.table(columns),
        )

    references = dataclasses.replace(inputs, targets=inputs.targets[:1])  # scores are on file
    parts = (part for block in references.blocks() for part in block.split())
    total, waiting, rows, writer = None, [], 0, None
    path = folder / "samples.parquet"
    with replacing(path) as temporary:
        for part in map_in_order(pool, work, parts):
            total = part if total is None else _add(total, part)
            waiting.append(part.samples)
            rows += len(part.samples)
            writer = writer or pq.ParquetWriter(temporary, part.samples.schema)
            if len(waiting) * len(part.samples) >= _ROW_GROUP:
                writer.write_table(pa.concat_tables(waiting))
                waiting.clear()
            progress(0.8 * rows / len(member_N2))
        assert total is not None
        assert writer is not None
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
        writer.close()

    shares = tables.flip_shares(total.counts, replicas, c.fprs, c.alpha)
    write_csv(folder / "flip_shares.csv", shares)
    positives = tables.true_positives(total.tp_TxFx5, total.counts, c.fprs)
    write_csv(folder / "true_positives.csv", positives)
    curves = tables.coin_free_roc(points.fpr_F[rates:], total.curve, replicas)
    write_csv(folder / "coin_free_roc.csv", curves)
    write_csv(folder / "partial_auc.csv", tables.partial_auc(curves, c.band))
    write_csv(folder / "flip_curves.csv", _flip_curves(path, c, pool))
    progress(1)
    return total.counts


def _add(total: _BlockDecisions, part: _BlockDecisions) -> _BlockDecisions:
    return _BlockDecisions(
        total.counts + part.counts,
        total.tp_TxFx5 + part.tp_TxFx5,
        total.curve + part.curve,
        part.samples,
    )


def _flip_curves(path: Path, c: config.Attack, pool: ThreadPoolExecutor) -> pd.DataFrame:
    """Mean flip rate in equal-count bins of mean distance and of mean posterior, by class (Figures 26 and 27)."""

    def column(name: str) -> np.ndarray:
        # Group by group: a table of the whole column would take several times its size.
        with pq.ParquetFile(path) as file:
            dtype = file.schema_arrow.field(name).type.to_pandas_dtype()
            value_N2, low = np.empty(file.metadata.num_rows, dtype), 0
            for group in range(file.num_row_groups):
                part_C = file.read_row_group(group, [name])[name].to_numpy()
                value_N2[low : low + len(part_C)] = part_C
                low += len(part_C)
        return value_N2

    member_N2 = column("member")

    def one(wanted: tuple[float, str]) -> pd.DataFrame:
        fpr, binned_by = wanted
        x = f"distance_{fpr:g}" if binned_by == "distance" else "mean_posterior"
        y = f"flip_rate_{fpr:g}"
        x_N2, y_N2 = column(x), column(y)
        found = []
        for of_N2, kind in ((member_N2, "members"), (~member_N2, "nonmembers")):
            bins = stats.equal_count_bins(x_N2[of_N2], y_N2[of_N2], _BINS)
            found.append(
                pd.DataFrame(
                    {"fpr": fpr, "binned_by": binned_by, "class": kind, "x_mean": bins.x_mean_K}
                    | {"flip_rate_mean": bins.y_mean_K, "samples": bins.count_K}
                    | {"left_out": bins.left_out}
                )
            )
        return pd.concat(found)

    wanted = [(fpr, name) for fpr in c.fprs for name in ("distance", "posterior")]
    return pd.concat(list(map_in_order(pool, one, wanted)))


@dataclasses.dataclass(frozen=True)
class _ArchetypeRule:
    name: str
    rule: str
    """What a sample must satisfy, for a reader."""
    query: str
    """The same, for pandas."""


def find_archetypes(
    samples: Path, population: Population, replicas: int, c: config.Attack
) -> pd.DataFrame:
    """One row a kind: the first sample, in population order, that satisfies its rule, and how many do.

    The population is numbered in the order of a random draw, so the first is a fair pick. Nothing is relaxed: a kind
    without a candidate has an empty id. The rules' numbers are attack.clear_separation, ambiguous_separation and
    stable_flip; separation is (OUT mean - IN mean) over the root of the mean of both variances.

    Args:
      samples: samples.parquet.
      population: for the texts.
      replicas: B, those that are there.
      c: settings of the attack.
    """
    kinds = _archetype_rules(replicas, c)
    first: list[dict[str, object]] = [{} for _ in kinds]
    candidates = [0] * len(kinds)
    votes, flip_rate = f"votes_{c.focus_fpr:g}", f"flip_rate_{c.focus_fpr:g}"
    file = pq.ParquetFile(samples)
    for group in range(file.num_row_groups):
        columns = ["id", "member", "separation", votes, flip_rate]
        table = file.read_row_group(group, columns).to_pandas()
        table = table.rename(columns={votes: "votes", flip_rate: "flip_rate"})
        for k, kind in enumerate(kinds):
            found = table.query(kind.query)
            candidates[k] += len(found)
            if len(found) and not first[k]:
                row = found.iloc[0]
                text = population.text(int(row["id"]))[:_PREVIEW_CHARS]
                first[k] = {"id": int(row["id"]), "member": bool(row["member"])}
                first[k] |= {"votes": int(row["votes"]), "flip_rate": row["flip_rate"]}
                first[k] |= {"separation": row["separation"], "text_preview": text}
    empty = dict.fromkeys(("id", "member", "votes", "flip_rate", "separation", "text_preview"))
    rows = [
        {"kind": kind.name, "rule": kind.rule, "candidates": count, "fpr": c.focus_fpr}
        | empty
        | found
        for kind, count, found in zip(kinds, candidates, first, strict=True)
    ]
    return pd.DataFrame(rows).astype({"id": "Int64", "votes": "Int64"})


def _archetype_rules(replicas: int, c: config.Attack) -> list[_ArchetypeRule]:
    k_low, _ = stats.coin_flip_cutoff(replicas, c.alpha)
    low = max(k_low, 1)  # with few replicas k_low is 0, but where all agree there is no coin
    clear, ambiguous, stable = c.clear_separation, c.ambiguous_separation, c.stable_flip
    most, few = f"votes > {replicas / 2}", f"votes < {replicas / 2}"
    coin = f"votes >= {low} and votes <= {replicas - low}"
    ratio = functools.partial(np.format_float_positional, trim="-")
    return [
        _ArchetypeRule(
            "clear stable member",
            f"member, separation >= {ratio(clear)}, flip rate <= {ratio(stable)}, most replicas say member",
            f"member and separation >= {clear} and flip_rate <= {stable} and {most}",
        ),
        _ArchetypeRule(
            "clear stable non-member",
            f"non-member, separation >= {ratio(clear)}, flip rate <= {ratio(stable)}, most replicas say non-member",
            f"not member and separation >= {clear} and flip_rate <= {stable} and {few}",
        ),
        _ArchetypeRule(
            "ambiguous stable",
            f"|separation| <= {ratio(ambiguous)}, flip rate <= {ratio(stable)}",
            f"separation.abs() <= {ambiguous} and flip_rate <= {stable}",
        ),
        _ArchetypeRule(
            "ambiguous unstable",
            f"|separation| <= {ratio(ambiguous)}, like a coin: {low} to {replicas - low} of {replicas} votes",
            f"separation.abs() <= {ambiguous} and {coin}",
        ),
    ]
