"""Figures and page of a synthetic workdir of one recipe, and messages about missing tables."""

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_workdir import (
    ATTACKS,
    LATER,
    NASTY,
    RECIPE,
    RECIPE_FIGURES,
    Page,
    with_tables,
    write_extraction,
    write_workdir,
)

from analysis import (
    archetype_panels,
    io,
    page,
    recipe_section,
    tables,
)
from analysis.experiments.recipe import conditions, exposed, retraining, strength
from analysis.figures import RECIPE_FIGURES as REFUSED_NAMES
from analysis.figures import training
from analysis.io import RecipeResults
from lm_mia.attacks import exports
from lm_mia.attacks.registry import attack_name


def write(recipe: RecipeResults) -> Path:
    """Writes the pages of the recipe's workdir, and returns the path of that with all figures."""
    page.write_page(recipe.recipe_dir.parents[1], None, (), lambda *_: None, lambda _: None)
    return recipe.recipe_dir.parents[1] / "figures.html"


def test_missing_scores_exit_with_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"attacks": ("lira_online", "loss"), "bootstraps": 0}
    recipe = write_workdir(tmp_path, samples=100, references=8, replicas=4, **settings)
    shutil.rmtree(recipe.recipe_dir / "scores.zarr")
    assert page.main([str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"[^\n]*0 of 4 replicas are present[^\n]*`lm-mia run` first\n", err)


FIGURES = (*RECIPE_FIGURES, "pooling", "gaussian_tpr", "probability", "extraction")
OF_REPORT = {
    table.file
    for table in (
        *(
            t.table
            for part in (conditions, exposed, retraining, strength)
            for t in part.ATTACK_TABLES
        ),
        *(table for part in (exposed, strength) for table in part.STUDY.tables),
    )
}
"""Tables of the report page, which the page of all figures does not list."""
ALL_ATTACKS = (*ATTACKS, "min_k", "min_k_plus_plus", "lowercase")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    """A recipe with all attacks and all tables."""
    recipe = write_workdir(
        tmp_path_factory.mktemp("run") / "demo",
        attacks=ALL_ATTACKS,
        resample_references=8,
        leave_one_out=True,
        ambiguous_separation=1.0,
    )
    recipe = write_extraction(recipe, reference=True)
    write(recipe)
    return recipe


@pytest.fixture(scope="module")
def shown(finished: RecipeResults) -> Page:
    return Page((finished.recipe_dir.parents[1] / "figures.html").read_text(encoding="utf-8"))


def test_figures_are_written_as_png_and_pdf(finished: RecipeResults) -> None:
    figures = finished.recipe_dir.parents[1] / "figures"
    assert {p.stem for p in figures.iterdir()} == {f"demo-{name}" for name in FIGURES}
    for name in FIGURES:
        png = (figures / f"demo-{name}.png").read_bytes()
        pdf = (figures / f"demo-{name}.pdf").read_bytes()
        assert png.startswith(b"\x89PNG")
        assert len(png) > 10_000
        assert pdf.startswith(b"%PDF")
        assert len(pdf) > 5_000
        assert b"CreationDate" not in pdf
    assert not list(finished.recipe_dir.rglob("*.part"))


def test_page_is_self_contained(finished: RecipeResults, shown: Page) -> None:
    images = [attrs for tag, attrs in shown.tags if tag == "img"]
    assert len(images) == len(FIGURES)
    assert all(
        (i["src"] or "").startswith("data:image/png;base64,") and len(i["alt"] or "") > 40
        for i in images
    )
    assert shown.text.count(NASTY) == 4  # texts of samples are escaped
    assert not {tag for tag, _ in shown.tags} & {"script", "link", "iframe", "object"}
    assert all("src" not in attrs for tag, attrs in shown.tags if tag != "img")
    workdir, ids = (
        finished.recipe_dir.parents[1],
        [a["id"] or "" for _, a in shown.tags if "id" in a],
    )
    assert len({*ids}) == len(ids)
    hrefs = [attrs["href"] or "" for _, attrs in shown.tags if "href" in attrs]
    inside = [h.removeprefix("#") for h in hrefs if h.startswith("#")]
    assert {"demo/", "demo/trained", "demo/decides", "demo/flips", "made"} <= {*inside}
    assert {*inside} <= {*ids}
    files = [h for h in hrefs if not h.startswith("#")]
    assert all(not re.match(r"[a-z]+:|//|/", h) and (workdir / h).is_file() for h in files)
    table_names = {str(p.relative_to(workdir)) for p in (finished.recipe_dir / "tables").iterdir()}
    other_page = f"recipes/{RECIPE}/samples.html"
    of_report = {f"recipes/{RECIPE}/tables/{name}" for name in OF_REPORT}
    shown_files = {h for h in files if h.startswith("recipes/")}
    assert (table_names - of_report) | {other_page} == shown_files - of_report
    assert "url(" not in (workdir / "figures.html").read_text(encoding="utf-8")


def test_headings_are_nested_and_tables_scroll(finished: RecipeResults, shown: Page) -> None:
    levels = [int(tag[1]) for tag, _ in shown.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert max(np.diff(levels)) <= 1
    html = (finished.recipe_dir.parents[1] / "figures.html").read_text(encoding="utf-8")
    boxed = re.findall(r'<div class="scroll"[^>]*>\s*<table', html)
    assert html.count("<table") == len(boxed) == 22


def test_numbers_of_attacks_match_the_tables(finished: RecipeResults, shown: Page) -> None:
    text = shown.words
    attacks = io.read_table(finished, "attacks.csv")
    lira = max((r for r in attacks if r["attack"] == "lira_online"), key=lambda r: r["references"])
    loss = next(r for r in attacks if r["attack"] == "loss")
    assert f"{lira['auc_mean']:.3f} AUC of LiRA with 16 references" in text
    assert f"{loss['auc_mean']:.3f} AUC of the loss alone" in text
    stacked = max((r for r in attacks if r["attack"] == "stacked"), key=lambda r: r["references"])
    assert f"{stacked['auc_mean']:.3f} AUC of stacked LiRA with 16 references" in text
    assert f"{100 * lira['tpr_at_0.05_mean']:.3g}% of members found at an FPR of 5%" in text
    assert text.count("means over 16 replicas of one target (same training subset") == 1
    assert text.count("± is the standard deviation over these replicas, not over other") == 1
    for row in attacks:
        if row["attack"] == "lira_online" and not np.isnan(row["auc_mean"]):
            cells = f"{row['auc_mean']:.3f} ± {row['auc_std']:.3f}{row['left_out']}"
            dagger = " †" if row["not_shared_fraction"] > 0.01 else ""
            assert f"{row['references']}{dagger}{cells}" in text
    control = io.read_table(finished, "shuffled.csv")
    farthest = max(control, key=lambda row: abs(row["auc_mean"] - 0.5))
    verdict = "Passed" if abs(farthest["auc_mean"] - 0.5) <= 0.03 else "Failed"
    assert f"{verdict}: " in text
    label = f"Farthest from 0.5: {attack_name(farthest['attack'])}"
    assert re.search(rf"{label}[^:]*: {farthest['auc_mean']:.3f}\.", text)
    names = {attack_name(name) for name in ALL_ATTACKS}
    assert len(names) == 13
    assert all(text.count(name) >= 2 for name in names)
    pattern = "In the table but not drawn: ([^.]*)\\."
    undrawn = {"Simple RMIA", "Zlib ratio", "Min-K%", "Min-K%++", "Lowercase"}
    assert set(re.findall(pattern, text)[0].split(", ")) == undrawn
    for row in io.read_table(finished, "error_rates.csv"):
        for rate in ("acc", "fnr", "tpr"):
            assert f"{row[f'{rate}_mean']:.3f} ± {row[f'{rate}_std']:.3f}" in text
    intervals = io.read_table(finished, "intervals.csv")
    assert len(intervals) == (7 + 6) * len(ALL_ATTACKS) + 6
    for row in intervals:
        ends = f"[{row['low']:.3f}, {row['high']:.3f}]"
        is_rate, is_lira = row["metric"].startswith("tpr_at_"), row["attack"] == "lira_online"
        if row["models"] > 1:
            assert math.isnan(row["low"]) or ends in text
        elif is_rate and is_lira:
            found = f"{row['true_positives']:,.0f} of {row['members']:,.0f}"
            star = "*" if row["method"] == "exact" else ""
            shown_row = f"{row['value']:.3f}{ends}{star}{found}"
            assert re.sub(r"\s", "", shown_row) in re.sub(r"\s", "", text)
    of_lira = [row for row in intervals if row["attack"] == "lira_online"]
    assert {row["method"] for row in of_lira} >= {"bootstrap", "exact", "models and samples"}
    assert (
        "The lowest FPR that 150 non-members can show is 0.667%; lower rates are left out." in text
    )


def test_attacks_on_references_match_the_table(finished: RecipeResults, shown: Page) -> None:
    table = finished.view.table("reference_targets.csv")
    assert len(table) == 16
    numbers = f"{table['auc'].mean():.3f} ± {table['auc'].std(ddof=0):.3f}"
    title = "AUC of LiRA over 16 targets of different training subsets"
    assert f"{numbers} {title}" in shown.words
    intervals = finished.view.table("intervals.csv")
    ends = intervals[intervals["role"] == "reference"].set_index("metric")
    assert (ends["method"] == "models and samples").sum() >= 4
    cells = [
        f"{table[name].mean():.3f}± {table[name].std(ddof=0):.3f}"
        + (f"[{ends.low[name]:.3f}, {ends.high[name]:.3f}]" if ends.low.notna()[name] else "–")
        for name in ("auc", *(f"tpr_at_{fpr:g}" for fpr in (0.01, 0.05, 0.1, 0.2, 0.5)))
    ]
    row = f"16 references with different subsets15{''.join(cells)}{table['left_out'].max()}"
    assert row.replace(" ", "") in shown.words.replace(" ", "")
    assert "attacked with 15 others." in shown.words
    assert "its complement" not in shown.words


def test_attacks_on_other_samples_are_marked_and_not_drawn(
    finished: RecipeResults, shown: Page
) -> None:
    rows = io.read_table(finished, "attacks.csv")
    other = {(r["attack"], r["references"]) for r in rows if r["not_shared_fraction"] > 0.01}
    assert ("lira_online", 4) in other
    assert ("rmia_offline", 1) in other
    assert not other & {("lira_online", 16), ("loss", 0), ("rmia_offline", 16)}
    text = shown.words
    not_drawn = "Not drawn, because they score other samples than LiRA with all references"
    assert f"{not_drawn}: LiRA (4 and 8 references). PDF" in text
    assert "Offline RMIA (1, 2 and 4 references)" in text
    assert "† Has scores for other samples than LiRA with all references: more than 1%" in text
    assert "4\N{NO-BREAK SPACE}†" in shown.text
    assert "16\N{NO-BREAK SPACE}†" not in shown.text


def test_numbers_of_decisions_match_the_tables(finished: RecipeResults, shown: Page) -> None:
    text = shown.words
    for row in io.read_table(finished, "flip_shares.csv"):
        assert f"{100 * row['member_fraction']:.1f}%" in text
        assert f"{100 * row['nonmember_fraction']:.1f}%" in text
    for row in tables.coin_flip_rows(tables.read_flip_shares(finished)):
        cells = []
        for name in tables.CLASS_NAMES:
            observed, error, low, high = (
                f"{100 * row[f'{name}_fraction{suffix}']:.1f}%"
                for suffix in ("", "_se", "_127_low", "_127_high")
            )
            cells.append(f"{observed} ± {error}{low} to {high}")
        assert "".join(cells) in text
    assert "when 4 to 12 of them say “member”" in text
    assert "in 40.2% of the cases, and one with probability 0.9 in 6.84%." in text
    assert "Too few replicas" not in text
    card = "of members get a coin-flip decision from 16 replicas (flip rate 0.400 or more) at an FPR of 5%"
    assert card in text
    assert "flip rate of 0.400 or more; the largest possible is 0.533" in text
    for row in io.read_table(finished, "true_positives.csv"):
        assert f"{row['tp_mean']:,.0f} ± {row['tp_std']:,.0f}" in text
        mean, std = (100 * row[f"coin_flip_fraction_{statistic}"] for statistic in ("mean", "std"))
        assert f"{mean:.1f}% ± {std:.1f}%" in text
    areas = io.read_table(finished, "partial_auc.csv")
    for raw, free in zip(areas[::3], areas[1::3], strict=True):
        assert (
            f"{raw['pauc_normalized']:.3f}{free['pauc_normalized']:.3f}{100 * free['mean_tpr_dropped_fraction']:.1f}%"
            f"{raw['lift_normalized']:.3f}{free['lift_normalized']:.3f}{100 * free['lift_retained_fraction']:.1f}%"
        ) in text
    sets = finished.view.table("resampled_references.csv")
    left_out = sets.groupby("sampling")["left_out"].max()
    assert f"Disjoint sets (exact)2 sets of 8 references, {left_out['disjoint']} samples" in text
    assert "With fewer than 6 sets the test has no power." in text
    assert "Subsampled sets (dependent)16 sets of 8 references" in text
    probabilities = finished.view.table("true_positive_probability.parquet")
    scored = probabilities[probabilities["targets"] > 0]
    assert f"{scored['mean'].mean():.3f}, averaged over samples" in text
    assert f"{scored['std'].mean():.3f} between references, averaged over samples" in text
    assert f"{len(probabilities) - len(scored)} left out" in text


def test_archetypes_match_the_table(finished: RecipeResults, shown: Page) -> None:
    named = archetype_panels.read_archetypes(finished)
    assert len(named) == 4
    member_N = io.read_samples(finished, ["member"])["member"]
    for a in named:
        assert a.member == member_N[a.sample]
        assert (len(a.loss_in) + len(a.loss_out), len(a.loss_replicas)) == (16, 16)
        votes = f"sample {a.sample}, a {a.label}; {a.votes} of 16 replicas say “member”"
        assert f"{a.kind.capitalize()}: {votes}" in shown.words
        assert f"{a.rule}. The text begins" in shown.words
    assert [a.label for a in named[:2]] == ["member", "non-member"]
    assert named[0].votes > 8 > named[1].votes
    assert "none found" not in shown.text


def test_page_shows_the_settings_of_its_tables(finished: RecipeResults, shown: Page) -> None:
    printed = json.JSONDecoder().raw_decode(shown.text, shown.text.rindex('{\n  "corpus"'))[0]
    stored = json.loads((finished.recipe_dir / "config.json").read_text())["config"]
    assert printed == stored
    assert stored["attack"].items() >= finished.view.facts("flips")["config"].items()
    assert "Membership inference on 32 language models" in shown.text
    used = "The samples contain 1.25% of the text of their documents (125,000 of 10,000,000 tokens)"
    assert f"{used}; the rest is cut off at population.length_tokens=128" in shown.words


def test_only_models_of_the_tables_are_shown(finished: RecipeResults) -> None:
    """The log also has lines of other models, of an earlier training and of another recipe."""
    log = training.read_log(finished)
    references, replicas = (
        [f"{role}-{i:02}" for i in range(16)] for role in ("reference", "replica")
    )
    assert [*log.curves] == references + replicas
    assert max(max(curve.values()) for _, curve in log.curves.values()) < 10
    medians = training.medians(finished)
    assert medians["seconds"] == pytest.approx(5.1, abs=0.05)
    assert max(medians.values()) < 10
    assert len({e["model"] for e in log.trained}) == 32


@pytest.mark.usefixtures("full_figures")
@pytest.mark.process
def test_page_of_few_replicas_is_reproducible(tmp_path: Path) -> None:
    """The coin-flip test has no power, there are no intervals, and no sample satisfies the rules for clear samples."""
    settings: dict[str, Any] = {"attacks": ("lira_online", "loss"), "bootstraps": 0}
    settings |= {
        "headline": "lira_online",
        "references": 8,
        "replicas": 4,
        "clear_separation": 99.0,
        "ambiguous_separation": 1.5,
    }
    folder = write_workdir(tmp_path / "demo", samples=100, later=(LATER,), **settings)
    workdir = folder.recipe_dir.parents[1]
    (workdir / "metrics.jsonl").unlink()
    figures = workdir / "figures"
    figures.mkdir()
    for name in ("training.png", "coin_flip_share.pdf", "probability.pdf", "roc.png"):
        (figures / f"demo-{name}").write_text("from an earlier report")
    command = [sys.executable, "-W", "error::UserWarning", "-m", "analysis", str(workdir)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    report_path, figures_path = workdir / "report.html", workdir / "figures.html"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{report_path}\n", "")
    drawn = {"roc", "auc_by_subset", "audit", "advantage", "flip_ccdf", "flip_curves", "archetypes"}
    assert {p.stem for p in figures.iterdir()} == {f"demo-{name}" for name in drawn}
    shown = Page(figures_path.read_text(encoding="utf-8"))
    text = shown.words
    assert "The log has no training curve" in text
    rule = "member, separation >= 99"
    assert (
        f"Clear stable member: none found. No sample satisfies the rule at an FPR of 5%: {rule}"
        in text
    )
    assert (
        f"Clear stable non-member: none found. No sample satisfies the rule at an FPR of 5%: non-{rule}"
        in text
    )
    assert shown.text.count(NASTY) == 4 - text.count("none found") == 2
    assert "With 4 replicas the exact two-sided binomial test at level 0.05 has no power" in text
    assert "At least 6 replicas are needed" in text
    assert "coin-flip decision" not in text
    flips = io.read_samples(folder, ["member", "flip_rate_0.05"])
    members = flips["flip_rate_0.05"][flips["member"] & ~np.isnan(flips["flip_rate_0.05"])]
    share = f"{100 * (members > 0).mean():.1f}%"
    assert f"{share} of members get different decisions from the replicas" in text
    assert "bootstrap" not in text.rpartition("How the results were produced")[0].lower()
    assert len([tag for tag, _ in shown.tags if tag == "table"]) == 10
    assert "very stable" not in text
    lira = next(r for r in recipe_section.facts(folder)["attacks"] if r["attack"] == "lira_online")
    row = rf"LiRA8{lira['auc_mean']:.3f}± [^A-Z]*\.\d\d\d{lira['left_out']}\n"
    assert lira["left_out"] > 0
    assert re.search(row, shown.text)
    assert f"{lira['left_out']} samples without a membership score left out" in text
    assert "trained by several versions" in text
    for part in ("0.1.0", "0.2.0", "abc123+", "0.10.2", "9.9.9", "CPU cores96"):
        assert part in shown.text.replace("\n", "")

    def files() -> dict[Path, bytes]:  # without the time of writing
        contents = {p: p.read_bytes() for p in (report_path, figures_path, *figures.iterdir())}
        return {p: re.sub(rb"<time [^<]*</time>", b"", data) for p, data in contents.items()}

    before = files()
    write(folder)
    assert files() == before
    folder = with_tables(folder, archetypes=lambda table: table.assign(id=np.nan))
    assert recipe_section.save(folder, archetype_panels.recipe_figures(folder)) == {}
    assert {p.stem for p in figures.iterdir()} == {f"demo-{n}" for n in drawn - {"archetypes"}}
    shown = Page(
        recipe_section.render(recipe_section.facts(folder), dict.fromkeys(drawn, "data:,"))
    )
    assert shown.words.count("none found") == 4
    assert NASTY not in shown.text


@pytest.mark.usefixtures("undrawn")
def test_missing_models_are_reported_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cutoffs depend on the models that are present; an FPR of 1 and rows with a TPR of 0 are shown."""
    absent = ["reference-03", "replica-00", "replica-07"]
    settings: dict[str, Any] = {"attacks": ("lira_online", "loss"), "fprs": (0.01, 0.05, 1.0)}
    settings |= {"headline": "lira_online"}
    folder = write_workdir(tmp_path / "demo", design="bernoulli", absent=absent, **settings)
    # As if no replica found a member at the lowest rate.
    table = folder.view.table("true_positives.csv")
    counts = [name for name in table.columns if "fraction" not in name and "tp" in name]
    table.loc[0, counts] = 0
    table.loc[0, [name for name in table.columns if "fraction" in name]] = np.nan
    changed = {**exports.TABLES, "true_positives.csv": lambda _: table}
    monkeypatch.setattr(exports, "TABLES", changed)
    folder = io.read_recipe(folder.recipe_dir)
    drawn = {
        name: f
        for module in recipe_section.FIGURES
        for name, f in module.recipe_figures(folder).items()
    }
    assert {*drawn, "roc_targets"} == {*REFUSED_NAMES}
    # LiRA with fewer references has scores for other samples, so the AUC is not drawn against their number.
    assert {name for name, figure in drawn.items() if figure is None} == {
        "auc_references",
        "more_references",
        "attack_flips",  # there is no other attack with references
        "pooling",
        "zero_run",
        "gaussian_tpr",
        "probability",
        "extraction",
    }
    html = write(folder).read_text(encoding="utf-8")
    shown = training.read_log(folder).curves
    assert len(shown) == 29
    assert not set(absent) & set(shown)
    text = Page(html).words
    assert text.count("15 of 16 requested references and 14 of 16 requested replicas") == 1
    assert "15 references and 14 replicas, of 16 and 16 requested" in text
    assert "Membership inference on 29 language models" in text
    assert "With 14 replicas, a decision counts as a coin flip when 3 to 11 of them" in text
    assert "LiRA15" in text.replace(" ", "")
    assert "means over 14 replicas of one target" in text
    assert "Balanced ACC" in text
    no_tpr, _, everyone = io.read_table(folder, "true_positives.csv")
    assert no_tpr["tpr_mean"] == 0
    assert "1%0.000 ± 0.0000 ± 0––0 ± 0–0 ± 0–" in text
    members = everyone["tp_mean"]
    all_found = f"100%1.000 ± 0.000{members:,.0f} ± 0––0 ± 00.0% ± 0.0%0 ± 00.0% ± 0.0%"
    assert all_found in text
