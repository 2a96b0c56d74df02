"""The tables of per-sample instability: what the decisions of many replicas say of classes and of samples.

T: targets (replicas), N2: samples of the population (2N), F: false positive rates.
"""

import numpy as np
import pandas as pd

from lm_mia import config
from lm_mia.population import Population
from lm_mia.stats import binomial, flips, lira, roc

_PREVIEW_CHARS = 240


def error_rates(score_TxN: np.ndarray, member_N: np.ndarray, c: config.Attack) -> pd.DataFrame:
    """StrongMIA Table 1."""
    rates = flips.error_rates(score_TxN, member_N, c.fprs)
    table = pd.DataFrame({"attack": "lira_online", "fpr": rates.nominal_fpr_F})
    for name in ("acc", "fnr", "fpr", "tnr", "tpr"):
        rate: roc.MeanStd = getattr(rates, name)
        table[f"{name}_mean"], table[f"{name}_std"] = rate.mean_F, rate.std_F
    return table.assign(left_out=int(rates.left_out_T.max()))


def votes(score_TxN: np.ndarray, member_N: np.ndarray, c: config.Attack) -> np.ndarray:
    """votes_FxN at thresholds that each replica calibrates on its own non-members."""
    points = roc.tpr_at_fpr(score_TxN, member_N, c.fprs)
    return np.stack(
        [flips.votes(score_TxN, threshold_T).votes_N for threshold_T in points.threshold_TxF.T]
    )


def flip_shares(votes_FxN: np.ndarray, member_N: np.ndarray, c: config.Attack) -> pd.DataFrame:
    """StrongMIA Table 3, one row a (rate, bin)."""
    shares = flips.flip_shares(votes_FxN, member_N, c.replicas, c.alpha)
    rows = []
    for f, fpr in enumerate(c.fprs):
        for b, label in enumerate(flips.BIN_NAMES):
            member, nonmember = shares.member_Fx5[f, b], shares.nonmember_Fx5[f, b]
            rows.append(
                {"fpr": fpr, "bin": label, "low": shares.edges_6[b], "high": shares.edges_6[b + 1]}
                | {"members_percent": 100 * member, "nonmembers_percent": 100 * nonmember}
                | {"members": round(member * shares.members_F[f])}
                | {"nonmembers": round(nonmember * shares.nonmembers_F[f])}
                | {"left_out": shares.left_out_F[f]}
            )
    return pd.DataFrame(rows)


def samples(
    votes_FxN: np.ndarray,
    score_TxN: np.ndarray,
    member_N: np.ndarray,
    population: Population,
    c: config.Attack,
) -> pd.DataFrame:
    """What the replicas say of every sample of the population."""
    table = pd.DataFrame({"id": np.arange(len(population)), "member": member_N})
    table["tokens"] = population.lengths_N
    table["mean_score"] = score_TxN.mean(axis=0)
    table["mean_posterior"] = lira.posterior(score_TxN).mean(axis=0)
    for fpr, votes_N in zip(c.fprs, votes_FxN, strict=True):
        table[f"votes_{fpr:g}"] = votes_N
        table[f"flip_{fpr:g}"] = flips.flip_rate(votes_N, c.replicas)
    return table


def archetypes(samples: pd.DataFrame, population: Population, c: config.Attack) -> pd.DataFrame:
    """One member that every replica finds, and one whose decision is as even as a coin, at the focus rate.

    Of the members with all votes, the one whose mean score is the median; of those nearest an even split, the one whose
    mean score is the median. A kind with no sample is left out.
    """
    votes, flip = f"votes_{c.focus_fpr:g}", f"flip_{c.focus_fpr:g}"
    k_low, _ = binomial.coin_flip_cutoff(c.replicas, c.alpha)
    members = samples[samples["member"] & samples[votes].notna()]
    uneven = (members[votes] - c.replicas / 2).abs()
    low = max(k_low, 1)  # with few replicas k_low is 0, but where all agree there is no coin
    coins = members[(uneven == uneven.min()) & members[votes].between(low, c.replicas - low)]
    found = []
    for kind, group in (
        ("stable member", members[members[votes] == c.replicas]),
        ("coin flip", coins),
    ):
        if len(group):
            chosen = group.sort_values(["mean_score", "id"]).iloc[len(group) // 2]
            sample = int(chosen["id"])
            found.append(
                {
                    "kind": kind,
                    "id": sample,
                    "fpr": c.focus_fpr,
                    "votes": int(chosen[votes]),
                    "flip": chosen[flip],
                }
                | {"text_preview": population.text(sample)[:_PREVIEW_CHARS]}
            )
    return pd.DataFrame(found, columns=["kind", "id", "fpr", "votes", "flip", "text_preview"])
