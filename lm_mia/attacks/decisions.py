"""The tables of decisions of many replicas, per class and per sample (StrongMIA Section 5, Appendix E.2).

The scores of the targets are read once, in blocks of samples. Counts are added over blocks, and the results per sample
are appended to samples.parquet. The archetypes are then selected from that table by explicit rules: example samples
with stable and with unstable decisions (StrongMIA Figure 22).

T: targets (B replicas), F: false positive rates of the config, K: these rates and then those of the curve, C: samples
of a block, P: those of one class, N2: samples of the population (2N), 5: bins of flip rates.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia import config, stats
from lm_mia.atomic import replacing, write_csv
from lm_mia.attacks import registry, tables
from lm_mia.attacks.inputs import AttackInputs, Block
from lm_mia.attacks.score_matrix import MembershipScoreFile, map_in_order
from lm_mia.data.population import Population

Votes = Mapping[str, stats.VoteHistograms]
"""Votes on members ("member") and on non-members ("nonmember")."""

_ROW_GROUP = 2**17  # number of samples per row group of samples.parquet
_BINS = 50  # number of bins of the curves of flip rate against distance and posterior
_FEWEST_REPLICAS = 8  # The coin-flip test has little power with fewer.
_PREVIEW_CHARS = 240


@dataclasses.dataclass(frozen=True)
class DecisionCounts:
    """The decisions of all replicas under online LiRA, at the rates of the config."""

    bin_counts: stats.FlipBinCounts
    """The number of samples in each bin of flip rates, as in StrongMIA Tables 3 and 4."""
    votes: Votes
    coin_flips: pd.DataFrame
    """The result of `tables.coin_flip_shares` for these votes."""


def write_decision_tables(
    inputs: AttackInputs,
    scatter_2x2: np.ndarray | None,
    file: MembershipScoreFile,
    points: stats.OperatingPoints,
    sample_columns: Mapping[str, np.ndarray],
    c: config.Attack,
    folder: Path,
    pool: ThreadPoolExecutor,
) -> DecisionCounts:
    """Writes the tables of decisions of online LiRA (StrongMIA Tables 1-6, Figures 25-30) and samples.parquet.

    Args:
      inputs: the models; the means and variances of the references' losses give the separation.
      scatter_2x2: the fit of online LiRA, for pooled variances.
      file: online LiRA scores of the replicas.
      points: operating points of the replicas at attack.fprs, and then at the points of the curve.
      sample_columns: name -> value_N2, additional columns of samples.parquet. If documents are split, "document" is one
        of them, and uncertainties are over documents.
      c: settings of the recipe.
      folder: folder of the tables.
      pool: threads that process parts of the samples.
    """
    num_fprs, replicas = len(c.fprs), len(inputs.targets)
    points_at_fprs = tables.select_fprs(points, slice(num_fprs))
    write_csv(folder / "error_rates.csv", tables.error_rates(points_at_fprs))
    order_seeds = [model.order_seed for model in inputs.targets]
    write_csv(folder / "thresholds.csv", tables.thresholds(points_at_fprs, order_seeds))

    analysis = _DecisionAnalysis(file, points, scatter_2x2, inputs, sample_columns, c)
    # The scores of the targets are in the file, so their losses are not read again.
    references = dataclasses.replace(inputs, targets=inputs.targets[:1])
    parts = (part for block in references.blocks() for part in block.split())
    path = folder / "samples.parquet"
    total = _write_samples(path, map_in_order(pool, analysis.analyze, parts))

    shares = tables.flip_shares(total.bin_counts, replicas, c.fprs, c.alpha)
    coin_flips = tables.coin_flip_shares(total.votes[replicas], c.fprs, c.alpha)
    write_csv(folder / "flip_shares.csv", tables.with_uncertainty(shares, coin_flips))
    by_replicas = [
        tables.coin_flip_shares(votes, [c.focus_fpr], c.alpha)
        for count, votes in total.votes.items()
        if count < replicas
    ]
    by_replicas.append(coin_flips[coin_flips["fpr"] == c.focus_fpr])
    write_csv(folder / "flip_shares_by_replicas.csv", pd.concat(by_replicas))
    positives = tables.true_positives(total.true_positives_TxFx5, total.bin_counts, c.fprs)
    write_csv(folder / "true_positives.csv", positives)
    by_replica = tables.replica_true_positives(
        total.true_positives_TxFx5, order_seeds, c.fprs, tables.has_decisions(points_at_fprs)
    )
    write_csv(folder / "replica_true_positives.csv", by_replica)
    curves = tables.coin_free_roc(points.fpr_F[num_fprs:], total.vote_counts, replicas)
    write_csv(folder / "coin_free_roc.csv", curves)
    write_csv(folder / "partial_auc.csv", tables.partial_auc(curves, c.band))
    write_csv(folder / "flip_curves.csv", _flip_curves(path, c, pool))
    return DecisionCounts(total.bin_counts, total.votes[replicas], coin_flips)


@dataclasses.dataclass(frozen=True)
class _BlockDecisions:
    """Counts of decisions on the samples of a block, and the rows of samples.parquet."""

    bin_counts: stats.FlipBinCounts
    true_positives_TxFx5: np.ndarray
    vote_counts: stats.MemberVoteCounts
    """At the points of the curve."""
    votes: Mapping[int, Votes]
    """Votes of the first replicas, by their number: of all replicas at all rates, and of fewer replicas at
    the focus FPR."""
    sample_table: pa.Table

    def __add__(self, other: "_BlockDecisions") -> "_BlockDecisions":
        """Adds the counts; keeps the rows of the other block only."""
        return _BlockDecisions(
            self.bin_counts + other.bin_counts,
            self.true_positives_TxFx5 + other.true_positives_TxFx5,
            self.vote_counts + other.vote_counts,
            {count: add_votes(votes, other.votes[count]) for count, votes in self.votes.items()},
            other.sample_table,
        )


@dataclasses.dataclass(frozen=True)
class _DecisionAnalysis:
    """What determines the decisions of all replicas on a sample; arguments as of `write_decision_tables`."""

    file: MembershipScoreFile
    points: stats.OperatingPoints
    scatter_2x2: np.ndarray | None
    inputs: AttackInputs
    sample_columns: Mapping[str, np.ndarray]
    c: config.Attack

    @property
    def member_N2(self) -> np.ndarray:
        """Membership in the training subset of the replicas."""
        return self.inputs.target_member_TxN2[0]

    @property
    def has_decisions_F(self) -> np.ndarray:
        """The result of `tables.has_decisions` at the rates of the config."""
        return tables.has_decisions(self.points)[: len(self.c.fprs)]

    def analyze(self, block: Block) -> _BlockDecisions:
        """Returns the decisions on a block of samples; runs in a thread."""
        num_fprs, replicas, alpha = len(self.c.fprs), self.file.num_targets, self.c.alpha
        member_C = self.member_N2[block.at]
        score_TxC = self.file.read_samples(block.at)
        votes_KxC = stats.count_votes(score_TxC, self.points.threshold_TxF).votes_FxN
        votes_FxC = votes_KxC[:num_fprs]
        votes_FxC[~self.has_decisions_F] = np.nan
        bin_FxC = stats.flip_bins(votes_FxC, replicas, alpha)
        return _BlockDecisions(
            bin_counts=stats.count_flip_bins(votes_FxC, member_C, replicas, alpha),
            true_positives_TxFx5=stats.count_true_positives(
                score_TxC, self.points.threshold_TxF[:, :num_fprs], bin_FxC, member_C
            ),
            vote_counts=stats.count_member_votes(votes_KxC[num_fprs:], member_C, replicas, alpha),
            votes=self._votes(score_TxC, block.at),
            sample_table=self._sample_table(block, score_TxC, votes_FxC),
        )

    def _votes(self, score_TxC: np.ndarray, sample_slice: slice) -> Mapping[int, Votes]:
        """Returns `_BlockDecisions.votes`."""
        threshold_TxF = self.points.threshold_TxF[:, : len(self.c.fprs)]
        focus, replicas = [self.c.fprs.index(self.c.focus_fpr)], self.file.num_targets
        document_N2 = self.sample_columns.get("document")
        document_C = None if document_N2 is None else document_N2[sample_slice]
        return {
            count: count_votes_by_class(
                score_TxC[:count],
                threshold_TxF if count == replicas else threshold_TxF[:count, focus],
                self.has_decisions_F if count == replicas else self.has_decisions_F[focus],
                self.member_N2[sample_slice],
                document_C,
            )
            for count in _replica_counts(replicas)
        }

    def _sample_table(self, block: Block, score_TxC: np.ndarray, votes_FxC: np.ndarray) -> pa.Table:
        """Returns the rows of samples.parquet."""
        at, replicas = block.at, self.file.num_targets
        posterior_TxC = stats.posterior(score_TxC)
        threshold_posterior_TxF = stats.posterior(self.points.threshold_TxF[:, : len(self.c.fprs)])
        distance_FxC = stats.mean_distance_to_threshold(posterior_TxC, threshold_posterior_TxF)
        distance_FxC[~self.has_decisions_F] = np.nan
        columns = {"id": self.inputs.ids(at), "member": self.member_N2[at]}
        columns |= {name: column_N2[at] for name, column_N2 in self.sample_columns.items()}
        columns["score"] = score_TxC[0]
        columns["mean_score"] = score_TxC.mean(axis=0)
        columns["mean_posterior"] = posterior_TxC.mean(axis=0)
        columns["separation"] = registry.separation(
            block, self.scatter_2x2, finite_population=self.c.finite_population
        )
        for f, fpr in enumerate(self.c.fprs):
            columns[f"votes_{fpr:g}"] = pa.array(
                votes_FxC[f].astype(np.float32), mask=np.isnan(votes_FxC[f])
            ).cast(pa.int16())
            columns[f"flip_rate_{fpr:g}"] = stats.flip_rate(votes_FxC[f], replicas)
            columns[f"p_value_{fpr:g}"] = stats.p_value(votes_FxC[f], replicas)
            columns[f"distance_{fpr:g}"] = distance_FxC[f].astype(np.float32)
        return pa.table(columns)


def count_votes_by_class(
    score_TxC: np.ndarray,
    threshold_TxF: np.ndarray,
    has_decisions_F: np.ndarray,
    member_C: np.ndarray,
    document_C: np.ndarray | None,
) -> Votes:
    """Returns the votes on the members and on the non-members of a block.

    Args:
      score_TxC: membership scores of the replicas.
      threshold_TxF: their thresholds.
      has_decisions_F: the result of `tables.has_decisions`; at the other rates, no sample has votes.
      member_C: membership in the training subset of the replicas.
      document_C: document of each sample, or None if documents are not split.
    """
    votes = {
        name: stats.count_vote_histograms(
            score_TxC[:, class_C],
            threshold_TxF,
            None if document_C is None else document_C[class_C],
        )
        for name, class_C in (("member", member_C), ("nonmember", ~member_C))
    }
    has_decisions_Fx1x1 = has_decisions_F[:, None, None]
    return {
        name: stats.VoteHistograms(
            histograms.samples_FxGxK * has_decisions_Fx1x1,
            histograms.called_FxRxK * has_decisions_Fx1x1,
        )
        for name, histograms in votes.items()
    }


def add_votes(first: Votes, second: Votes) -> Votes:
    """Returns the votes on the samples of two blocks."""
    return {name: votes + second[name] for name, votes in first.items()}


def _replica_counts(replicas: int) -> list[int]:
    """Returns the numbers of replicas whose votes are counted: 8, 16, 32, ... and all."""
    fewer = (_FEWEST_REPLICAS * 2**i for i in range(replicas.bit_length()))
    return [*(count for count in fewer if count < replicas), replicas]


def _write_samples(path: Path, blocks: Iterable[_BlockDecisions]) -> _BlockDecisions:
    """Writes the rows of all blocks to samples.parquet, and returns the sums of their counts."""
    total, pending, writer = None, [], None
    with replacing(path) as temporary:
        for block in blocks:
            total = block if total is None else total + block
            pending.append(block.sample_table)
            writer = writer or pq.ParquetWriter(temporary, block.sample_table.schema)
            if len(pending) * len(block.sample_table) >= _ROW_GROUP:
                writer.write_table(pa.concat_tables(pending))
                pending.clear()
        assert total is not None
        assert writer is not None
        if pending:
            writer.write_table(pa.concat_tables(pending))
        writer.close()
    return total


def _flip_curves(path: Path, c: config.Attack, pool: ThreadPoolExecutor) -> pd.DataFrame:
    """Returns mean flip rates in equal-count bins of mean distance and of mean posterior (Figures 26 and 27)."""

    def column(name: str) -> np.ndarray:
        # By row groups, since a table of the whole column would need several times its size in memory.
        with pq.ParquetFile(path) as file:
            dtype = file.schema_arrow.field(name).type.to_pandas_dtype()
            value_N2, low = np.empty(file.metadata.num_rows, dtype), 0
            for group in range(file.num_row_groups):
                part_C = file.read_row_group(group, [name])[name].to_numpy()
                value_N2[low : low + len(part_C)] = part_C
                low += len(part_C)
        return value_N2

    member_N2 = column("member")

    def bin_samples(curve: tuple[float, str]) -> pd.DataFrame:
        fpr, binned_by = curve
        x_N2 = column(f"distance_{fpr:g}" if binned_by == "distance" else "mean_posterior")
        flip_rate_N2 = column(f"flip_rate_{fpr:g}")
        parts = []
        for class_N2, name in ((member_N2, "members"), (~member_N2, "nonmembers")):
            bins = stats.equal_count_bins(x_N2[class_N2], flip_rate_N2[class_N2], _BINS)
            parts.append(
                pd.DataFrame(
                    {"fpr": fpr, "binned_by": binned_by, "class": name, "x_mean": bins.x_mean_K}
                    | {"flip_rate_mean": bins.y_mean_K, "samples": bins.count_K}
                    | {"left_out": bins.left_out}
                )
            )
        return pd.concat(parts)

    curves = [(fpr, name) for fpr in c.fprs for name in ("distance", "posterior")]
    return pd.concat(list(map_in_order(pool, bin_samples, curves)))


@dataclasses.dataclass(frozen=True)
class _ArchetypeRule:
    kind: str
    description: str
    """What a sample must satisfy, in words."""
    query: str
    """The same as a pandas query."""


def find_archetypes(
    samples: Path, population: Population, replicas: int, c: config.Attack
) -> pd.DataFrame:
    """Returns archetypes.csv: for each kind, its rule, the number of candidates and the first candidate.

    The documents of the population are in random order, so the first candidate is a random one. Rules are never
    relaxed: a kind without a candidate has an empty id. The numbers in the rules are attack.clear_separation,
    ambiguous_separation, stable_flip and, for clear members, stable_member_flip.

    Args:
      samples: path of samples.parquet.
      population: provides the texts.
      replicas: number of replicas that were attacked, B.
      c: settings of the recipe.
    """
    rules = _archetype_rules(replicas, c)
    first: list[dict[str, object]] = [{} for _ in rules]
    candidates = [0] * len(rules)
    votes, flip_rate = f"votes_{c.focus_fpr:g}", f"flip_rate_{c.focus_fpr:g}"
    file = pq.ParquetFile(samples)
    for group in range(file.num_row_groups):
        columns = ["id", "member", "separation", votes, flip_rate]
        table = file.read_row_group(group, columns).to_pandas()
        table = table.rename(columns={votes: "votes", flip_rate: "flip_rate"})
        for k, rule in enumerate(rules):
            matches = table.query(rule.query)
            candidates[k] += len(matches)
            if len(matches) and not first[k]:
                row = matches.iloc[0]
                text = population.text(int(row["id"]) - population.first_id)[:_PREVIEW_CHARS]
                first[k] = {"id": int(row["id"]), "member": bool(row["member"])}
                first[k] |= {"votes": int(row["votes"]), "flip_rate": row["flip_rate"]}
                first[k] |= {"separation": row["separation"], "text_preview": text}
    empty = dict.fromkeys(("id", "member", "votes", "flip_rate", "separation", "text_preview"))
    rows = [
        {"kind": rule.kind, "rule": rule.description, "candidates": count, "fpr": c.focus_fpr}
        | empty
        | sample
        for rule, count, sample in zip(rules, candidates, first, strict=True)
    ]
    return pd.DataFrame(rows).astype({"id": "Int64", "votes": "Int64"})


def _archetype_rules(replicas: int, c: config.Attack) -> list[_ArchetypeRule]:
    k_low, _ = stats.coin_flip_cutoff(replicas, c.alpha)
    # With few replicas k_low is 0, but a unanimous decision is never a coin flip.
    low = max(k_low, 1)
    clear, ambiguous = c.clear_separation, c.ambiguous_separation
    stable, stable_member = c.stable_flip, c.stable_member_flip
    majority, minority = f"votes > {replicas / 2}", f"votes < {replicas / 2}"
    coin_flip = f"votes >= {low} and votes <= {replicas - low}"
    number = functools.partial(np.format_float_positional, trim="-")
    return [
        _ArchetypeRule(
            "clear stable member",
            f"member, separation >= {number(clear)}, flip rate <= {number(stable_member)}, "
            "most replicas decide member",
            f"member and separation >= {clear} and flip_rate <= {stable_member} and {majority}",
        ),
        _ArchetypeRule(
            "clear stable non-member",
            f"non-member, separation >= {number(clear)}, flip rate <= {number(stable)}, "
            "most replicas decide non-member",
            f"not member and separation >= {clear} and flip_rate <= {stable} and {minority}",
        ),
        _ArchetypeRule(
            "ambiguous stable",
            f"|separation| <= {number(ambiguous)}, flip rate <= {number(stable)}",
            f"separation.abs() <= {ambiguous} and flip_rate <= {stable}",
        ),
        _ArchetypeRule(
            "ambiguous unstable",
            f"|separation| <= {number(ambiguous)}, coin flip: {low} to {replicas - low} of {replicas} votes",
            f"separation.abs() <= {ambiguous} and {coin_flip}",
        ),
    ]
