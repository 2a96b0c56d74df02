"""The values of all evaluations and tables on a tiny store, which guard RESULTS_FORMAT."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
from synthetic_scores import SMALL, write_scores
from views import view_of

from lm_mia.attacks import evaluations, registry, runner
from lm_mia.attacks.results import RESULTS_FORMAT
from lm_mia.attacks.spec import AttackSpec, RecipeNeeds, Request

C = dataclasses.replace(
    SMALL,
    attacks=tuple(name for name in registry.ATTACKS if name != "base_calibrated"),
    headline="stacked",
    references=16,
    replicas=3,
    targets=2,
    resample_references=4,
    leave_one_out=True,
    zero_run=("graded",),
)
GOLDEN = {
    "archetype_losses": "c33198373801",
    "archetypes": "9d92f9e68a34",
    "attack_flips": "92abbbb5da3d",
    "attacked_models": "402bf8df930f",
    "audit_curve": "e157929dca6e",
    "coin_free_roc": "969ff35cca2e",
    "decision_jackknife.parquet": "b117f4ada2ad",
    "effects.parquet": "7f202c6af375",
    "epsilon_audit": "d54e7e60d785",
    "epsilons": "e9d923796c62",
    "error_rates": "1ab5f26b09ac",
    "exposed.csv": "b9c01152067a",
    "flip_curves": "842dc4954778",
    "flip_parts": "e1fc291c6cb1",
    "flip_shares": "fcdc2faac350",
    "flip_shares_by_replicas": "5b60cc6ef495",
    "found_again": "3c228376dc52",
    "found_by_text": "bbb7e0dfe3e1",
    "halved_rates": "f66c6f675797",
    "headline_roc": "f2592516dac7",
    "headline_samples": "5a9d6a0f8dd0",
    "interference.csv": "24dfe57cbf11",
    "lira_flips": "33d1cc511e7f",
    "membership_advantage": "20f23aa559fb",
    "missing_scores": "036c4f7db0d8",
    "models.csv": "50f342ff5db7",
    "more_references.csv": "e509b6df4743",
    "operating_points": "70bbf89d0efb",
    "page_samples": "007dc70b48a4",
    "partial_auc": "06685d4bc5c2",
    "pooling.csv": "c24f8be2de3b",
    "pooling_jackknife.parquet": "c9051c56c23d",
    "rate_intervals": "bb6ef14a5639",
    "reference_intervals.csv": "3a11407bd26c",
    "reference_targets.csv": "9974570ea5fc",
    "replica_true_positives": "2ed0647dd4fb",
    "resampled_references.csv": "18d118dc3e77",
    "sample_fpr.csv": "a1c230a876af",
    "sample_losses.csv": "0938954663dd",
    "sample_scores": "632a4d86e0bd",
    "samples": "bbe569908a00",
    "shown_samples": "af5994efd3c6",
    "shuffled.csv": "a603f8dc4086",
    "stored_scores": "a4bbc95bc195",
    "strength.csv": "fc5aec3ef460",
    "strength_parts": "ca0623a1c1e5",
    "thresholds": "76894bf81d95",
    "true_positive_probability.parquet": "4cc39e5c99fc",
    "true_positives": "f613d9518776",
    "vulnerability.parquet": "33d7d4597f2e",
    "zero_run.csv": "4021c0599f4b",
    "zero_run_curves.csv": "eee0ab6886ac",
    "zero_run_samples.parquet": "e721334dab2d",
}


def digest(path: Path) -> str:
    """Returns a digest of the columns and values of a piece."""
    table = pd.read_parquet(path)
    # Rounded, since sums differ in the last digits between versions of NumPy and processors.
    for name in table.select_dtypes("float").columns:
        table[name] = table[name].round(9)
    return hashlib.sha256(table.to_csv(index=False, float_format="%.7g").encode()).hexdigest()


def test_golden_values(tmp_path: Path):
    """If this fails because numbers or columns changed: raise RESULTS_FORMAT, and replace the digests."""
    scores = write_scores(tmp_path, C, 80, "balanced", statistics=registry.statistics_of(C.attacks))
    lira = AttackSpec("lira_online", False, (0, 1), tuple(range(2, 16)))
    half = dataclasses.replace(lira, references=(2, 3, 6, 7, 10, 11), reference_part=0)
    requests = [
        Request(lira, evaluations.operating_points),
        Request(lira, evaluations.halved_rates, (half,)),
        Request(lira, evaluations.epsilons, (half,)),
        Request(lira, evaluations.sample_scores),
    ]
    needs = RecipeNeeds(requests, (), (3, 5))
    view = view_of(scores.store, scores.population, C, tmp_path / "pieces", needs)
    runner.run(view, tmp_path / "tables")
    by_name: dict[str, list[str]] = {}
    for path in (tmp_path / "pieces").glob("*.parquet"):
        key = json.loads(pq.read_metadata(path).metadata[b"lm_mia"])["key"]
        name = key.get("table", key["what"])
        if name:  # facts about tables, which are in no table, have no name
            by_name.setdefault(name, []).append(digest(path))
    found = {
        name: hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()[:12]
        for name, digests in sorted(by_name.items())
    }
    assert (RESULTS_FORMAT, found) == (1, GOLDEN)
