"""Samples that show what stable and unstable decisions look like, found by explicit rules (StrongMIA Figure 22).

All rules hold at attack.focus_fpr; B is the number of replicas.
"""

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from lm_mia import config
from lm_mia.population import Population
from lm_mia.stats import binomial

_PREVIEW_CHARS = 240


@dataclasses.dataclass(frozen=True)
class _Kind:
    name: str
    rule: str
    """What a sample must satisfy, for a reader."""
    query: str
    """The same, for pandas."""


def find(samples: Path, population: Population, replicas: int, c: config.Attack) -> pd.DataFrame:
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
    kinds = _kinds(replicas, c)
    first: list[dict[str, object]] = [{} for _ in kinds]
    candidates = [0] * len(kinds)
    votes, flip = f"votes_{c.focus_fpr:g}", f"flip_{c.focus_fpr:g}"
    file = pq.ParquetFile(samples)
    for group in range(file.num_row_groups):
        columns = ["id", "member", "separation", votes, flip]
        table = file.read_row_group(group, columns).to_pandas()
        table = table.rename(columns={votes: "votes", flip: "flip"})
        for k, kind in enumerate(kinds):
            found = table.query(kind.query)
            candidates[k] += len(found)
            if len(found) and not first[k]:
                row = found.iloc[0]
                text = population.text(int(row["id"]))[:_PREVIEW_CHARS]
                first[k] = {"id": int(row["id"]), "member": bool(row["member"])}
                first[k] |= {"votes": int(row["votes"]), "flip": row["flip"]}
                first[k] |= {"separation": row["separation"], "text_preview": text}
    empty = dict.fromkeys(("id", "member", "votes", "flip", "separation", "text_preview"))
    rows = [
        {"kind": kind.name, "rule": kind.rule, "candidates": count, "fpr": c.focus_fpr}
        | empty
        | found
        for kind, count, found in zip(kinds, candidates, first, strict=True)
    ]
    return pd.DataFrame(rows).astype({"id": "Int64", "votes": "Int64"})


def _kinds(replicas: int, c: config.Attack) -> list[_Kind]:
    k_low, _ = binomial.coin_flip_cutoff(replicas, c.alpha)
    low = max(k_low, 1)  # with few replicas k_low is 0, but where all agree there is no coin
    clear, ambiguous, stable = c.clear_separation, c.ambiguous_separation, c.stable_flip
    most, few = f"votes > {replicas / 2}", f"votes < {replicas / 2}"
    coin = f"votes >= {low} and votes <= {replicas - low}"
    ratio = functools.partial(np.format_float_positional, trim="-")
    return [
        _Kind(
            "clear stable member",
            f"member, separation >= {ratio(clear)}, flip <= {ratio(stable)}, most replicas say member",
            f"member and separation >= {clear} and flip <= {stable} and {most}",
        ),
        _Kind(
            "clear stable non-member",
            f"non-member, separation >= {ratio(clear)}, flip <= {ratio(stable)}, most replicas say non-member",
            f"not member and separation >= {clear} and flip <= {stable} and {few}",
        ),
        _Kind(
            "ambiguous stable",
            f"|separation| <= {ratio(ambiguous)}, flip <= {ratio(stable)}",
            f"separation.abs() <= {ambiguous} and flip <= {stable}",
        ),
        _Kind(
            "ambiguous unstable",
            f"|separation| <= {ratio(ambiguous)}, like a coin: {low} to {replicas - low} of {replicas} votes",
            f"separation.abs() <= {ambiguous} and {coin}",
        ),
    ]
