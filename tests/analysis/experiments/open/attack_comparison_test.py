"""An attack of the user is compared with built-in ones under equal conditions."""

import dataclasses
from pathlib import Path

import pandas as pd
from synthetic_scores import SMALL, write_scores
from table_case import compute, set_of_study, working

from analysis.experiments.open import attack_comparison
from lm_mia import config
from lm_mia.attacks.spec import Need, Variant

ATTACK = """
def noise_or_loss(block):
    return -block.loss_TxC
"""
C = dataclasses.replace(SMALL, references=10, replicas=2, attacks=("lira_online", "loss"))


def check(tmp_path: Path, c: config.Attack) -> list[str]:
    scores = write_scores(tmp_path, c, 200)
    with working(tmp_path) as (work, _):
        study = attack_comparison.STUDY
        return compute(set_of_study(study, scores.store, scores.population, c, work), tmp_path)


def test_shuffled_labels_show_chance_and_cost(tmp_path: Path):
    (tmp_path / "mine.py").write_text(ATTACK)
    attacks = (*C.attacks, f"{tmp_path / 'mine.py'}:noise_or_loss")
    assert check(tmp_path, dataclasses.replace(C, attacks=attacks)) == [
        attack_comparison.CHECK,
        "attack_check.json",
    ]
    table = pd.read_csv(tmp_path / attack_comparison.CHECK).set_index("attack")
    assert [*table.index] == ["lira_online", "loss", "noise_or_loss"]
    assert (abs(table["auc_mean"] - 0.5) < 5 * table["auc_se"]).all()
    assert table["auc_mean"]["noise_or_loss"] == table["auc_mean"]["loss"]
    assert (table["seconds_per_million_scores"] > 0).all()


def test_too_few_references_are_a_reason(tmp_path: Path):
    assert check(tmp_path, dataclasses.replace(C, references=3)) == ["attack_check.json"]


def test_the_experiment_reads_the_attack_and_the_built_in_ones(tmp_path: Path):
    (tmp_path / "mine.py").write_text(ATTACK)
    own = f"{tmp_path / 'mine.py'}:noise_or_loss"
    experiment = attack_comparison.against(own, ["loss"])
    [need, _] = experiment.reads
    assert isinstance(need, Need)
    assert need.attacks == (Variant(own).attack, "loss")
    assert experiment.statements == ("Noise or loss has a higher AUC than Loss.",)
    assert experiment.title.startswith("Noise or loss against")
