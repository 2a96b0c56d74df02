"""Compares docs/tables.md, and the declarations it is made of, with the tables that are actually written."""

import csv
import dataclasses
import importlib
import itertools
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from slow_model import parameters
from synthetic_figures import folder
from synthetic_scores import SMALL, write_scores
from synthetic_tokens import write_token_tables
from synthetic_workdir import RECIPE, write_workdir
from table_case import compute, set_of_study, working
from unoptimized import without_optimizations

from analysis import comparison, figure_section, io, opening, paper_pages
from analysis.experiments.causal import regression
from analysis.experiments.open import attack_comparison
from lm_mia import config
from lm_mia.attacks.declarations import expand
from lm_mia.data.population import PIECE_COLUMNS, SAMPLE_COLUMNS, open_population
from lm_mia.run import backend, devices, pipeline
from lm_mia.run.sweep import SweepRecipe
from lm_mia.run.workdir import Workdir
from lm_mia.score import scorer
from lm_mia.store import schema

__all__ = ["folder", "without_optimizations"]  # fixtures
PAGE = Path(__file__).resolve().parents[2] / "docs" / "tables.md"
STORE = "recipes/NAME/scores.zarr"
SCHEMES = ("greedy", "sampled", "chosen")
OPTIONAL = {*PIECE_COLUMNS}
"""Columns that exist only if documents are split, which they are not here; `build_split_documents_test` checks them."""

SMALL_REGRESSION = {
    "samples": 128,
    "ridge_dimensions": 4,
    "ridge_trials": 4,
    "ridge_seeds": 1,
    "dp_sgd_dimensions": 4,
    "dp_sgd_trials": 4,
    "dp_sgd_seeds": 1,
}

Documented = Mapping[str, Mapping[str, tuple[str, str]]]
"""Path of a file -> column or field -> (unit, definition), with the placeholders of the page."""


@dataclasses.dataclass(frozen=True)
class Written:
    """A table on disk."""

    path: Path
    columns: list[str]
    placeholders: Mapping[str, Iterable[str]]
    """Placeholder of the page -> its values in this table."""


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|\n ").split(" | ")]


def names_in(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def documented(text: str) -> Documented:
    """Parses the page: level-2 headings end with the folder of the tables, those below are file names or groups."""
    columns_by_file: dict[str, dict[str, tuple[str, str]]] = {}
    columns: dict[str, tuple[str, str]] = {}
    common: dict[str, tuple[str, str]] = {}
    keys: list[tuple[dict[str, tuple[str, str]], list[str]]] = []
    directory, is_listed = "", False
    for line in text.splitlines():
        if line.startswith("#"):
            is_listed = line == "## Common columns"
            columns = common if is_listed else {}
        if line.startswith("## "):
            directory = "".join(names_in(line)[-1:])
        elif line.startswith("#"):
            columns_by_file |= {f"{directory}{name}": columns for name in names_in(line)}
        elif line.startswith(("Key: ", "Fields.", "Variables.")):
            is_listed = True
            key, _, shared = line.partition("[Common]")
            columns.update({name: common[name] for name in names_in(shared)})
            keys.append((columns, names_in(key)))
        elif is_listed and line.startswith("- `"):
            found = re.fullmatch(r"- ((?:`[^`]+`(?:, )?)+)(?: \(([a-zA-Z ]+)\))?: (.+)", line)
            assert found, line
            names, unit, definition = found.groups()
            for name in names_in(names):
                assert name not in columns, f"{name} is documented twice: {line}"
                columns[name] = unit or "none", definition
    for columns, key in keys:
        columns.update({name: common[name] for name in key if name not in columns})
    return columns_by_file


def units(text: str) -> set[str]:
    """Returns the units that the page lists."""
    lines = text.partition("| unit | meaning |\n")[2].partition("\n\n")[0].splitlines()
    return {cells(line)[0] for line in lines[1:]}


def find_differences(on_page: Documented, written: Mapping[str, list[Written]]) -> list[str]:
    """Returns lines that describe how the page differs from the written tables."""
    differences = [
        f"{name}: written, but not documented" for name in written if name not in on_page
    ]
    for name, columns in on_page.items():
        if name not in written and name != STORE:
            differences.append(f"{name}: documented, but not written")
        for table in written.get(name, []) if columns else []:
            expected = expand(columns, table.placeholders)
            if name.endswith(
                "membership_scores.parquet"
            ):  # It has one kind of columns of membership.
                kinds = [
                    {c for c in expected if c == "member"},
                    {c for c in expected if c[:7] == "member/"},
                ]
                assert sum(kind <= {*table.columns} for kind in kinds) == 1
                expected -= {c for kind in kinds for c in kind - {*table.columns}}
            for column in sorted(expected.symmetric_difference(table.columns) - OPTIONAL):
                state = "not written" if column in expected else "not documented"
                differences.append(f"{name}: {column} is {state} (in {table.path})")
    return differences


def read_columns(path: Path) -> list[str]:
    if path.suffix == ".parquet":
        return pq.read_schema(path).names
    if path.suffix == ".json":
        return [*json.loads(path.read_text())]
    with path.open(newline="") as file:
        return next(csv.reader(file)) if path.suffix == ".csv" else []


def find_tables(workdir: Path) -> dict[str, list[Written]]:
    """Returns all tables of a workdir, by their paths on the page."""
    tables: dict[str, list[Written]] = {}
    for path in sorted(workdir.rglob("*")):
        name = path.relative_to(workdir).as_posix()
        if not re.match(r"(recipes/[^/]+/|)tables/|populations/.*[.]parquet$", name):
            continue
        if not path.is_file():
            continue
        name = re.sub(r"^recipes/[^/]+/", "recipes/NAME/", name)
        name = re.sub(r"^populations/[^/]+/", "populations/HASH/", name)
        name = re.sub(r"^tables/[a-z]+_(fig|tab)\d\d_\w+", r"tables/PAPER_\1NN_*", name)
        placeholders: dict[str, Iterable[str]] = {"SCHEME": SCHEMES, "HALF": map(str, range(14))}
        rates = path.parent / "target_roc.parquet"
        if rates.is_file():
            points = pd.read_parquet(rates, columns=["on_curve", "fpr"])
            placeholders["FPR"] = [f"{f:g}" for f in points["fpr"][~points["on_curve"]].unique()]
        columns = read_columns(path)
        if path.name == "membership_scores.parquet":
            scores = [column.split("/") for column in columns if "/" in column]
            placeholders |= {
                "ATTACK": {attack for attack, _ in scores} - {"member"},
                "TARGET": {target for _, target in scores},
            }
        tables.setdefault(name, []).append(Written(path, columns, placeholders))
    return tables


@pytest.fixture(scope="module")
def tables_page() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PAGE.parent)
        yield importlib.import_module("tables_page")


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workdir of one recipe with all optional tables of decisions."""
    workdir = tmp_path_factory.mktemp("synthetic")
    settings: dict[str, Any] = {"resample_references": 4, "leave_one_out": True, "bootstraps": 5}
    settings |= {"zero_run": ("graded",), "zero_run_strengths": (0.5,)}
    settings |= {"replica_inits": 2, "orders_per_init": 2, "variance": "pooled"}
    attacks = ("lira_online", "rmia", "loss")
    write_workdir(workdir, samples=100, attacks=attacks, replicas=8, **settings)
    tokens = workdir / "recipes" / "tokens" / "tables"
    tokens.mkdir(parents=True)
    for name in ("shown_samples.parquet", "target_roc.parquet"):
        shutil.copy(workdir / "recipes" / RECIPE / "tables" / name, tokens)
    write_token_tables(tokens)
    shutil.rmtree(workdir / "populations")  # written by hand
    return workdir


@pytest.fixture(scope="module")
def report_tables(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of a report on two recipes and three figures of the synthetic sweep."""
    output_dir = tmp_path_factory.mktemp("page")
    recipes = opening.read_recipes(folder)
    decided = [r for r in recipes.recipes if (r.recipe_dir / "tables" / "flips.json").is_file()]
    others = [r for r in recipes.recipes if r not in decided]
    selected = opening.read_recipes(folder, [decided[0].name, others[0].name])
    comparison.write(output_dir, [*map(comparison.summarize, selected.recipes)])
    shown = [figure_section.make_section("scaling", selected, output_dir)]
    for name in ("strongmia_fig08_statistic", "strongmia_tab03_flip_shares_140m"):
        shown.append(figure_section.make_section(name, recipes, output_dir))
    assert not any(figure.missing for figure in shown)
    paper_pages.write(output_dir, shown)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regression, "SIZES", SMALL_REGRESSION)
        regression.load(io.SweepResults([], output_dir))
    return output_dir


@pytest.fixture(scope="module")
def extracted(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, without_optimizations: None
) -> Path:
    """A workdir of one recipe after extraction, from a model with random parameters in place of a checkpoint."""
    workdir = tmp_path_factory.mktemp("extracted")
    with_replicas = [r for r in opening.read_recipes(folder).recipes if r.config.attack.replicas]
    recipe = min(with_replicas, key=lambda r: r.parameters)
    extract = config.Extract(samples=3, prefix_tokens=4, suffix_tokens=3, reference=True)
    task = SweepRecipe(
        Workdir(workdir), recipe.name, dataclasses.replace(recipe.config, extract=extract)
    )
    for name in ("tables", "pieces"):
        shutil.copytree(recipe.recipe_dir / name, task.folder / name)
    (task.folder / "scores.zarr").symlink_to(recipe.recipe_dir / "scores.zarr")
    display: Any = SimpleNamespace(update=lambda *_: None, say=lambda _: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "assign", lambda *_: devices.WorkerDevices([{}], 1, 1, 0))
        patch.setattr(backend, "start", lambda _: SimpleNamespace(mesh=None, local_mesh=None))
        patch.setattr(
            scorer, "restore_params", lambda model_seeds, step, model, *_: parameters(model.config)
        )
        pipeline.extract(task, open_population(recipe.population_dir), display)
    return workdir


@pytest.fixture(scope="module")
def own_attack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workdir with the table of the experiment that compares an attack of the user with others."""
    workdir = tmp_path_factory.mktemp("own_attack")
    tables = workdir / "recipes" / "compared" / "tables"
    tables.mkdir(parents=True)
    c = dataclasses.replace(SMALL, attacks=("loss",))
    scores = write_scores(tmp_path_factory.mktemp("scores"), c, 200)
    with working(workdir) as (work, _):
        study = attack_comparison.STUDY
        compute(set_of_study(study, scores.store, scores.population, c, work), tables)
    # Commands export no file of facts of a study that declares none.
    (tables / "attack_check.json").unlink()
    return workdir


@pytest.fixture(scope="module")
def written(
    folder: Path, synthetic: Path, report_tables: Path, extracted: Path, own_attack: Path
) -> dict[str, list[Written]]:
    all_tables: dict[str, list[Written]] = {}
    for workdir in (folder, synthetic, report_tables, extracted, own_attack):
        for name, tables in find_tables(workdir).items():
            all_tables.setdefault(name, []).extend(tables)
    return all_tables


def test_page_documents_all_written_tables(written: dict[str, list[Written]]):
    differences = find_differences(documented(PAGE.read_text(encoding="utf-8")), written)
    assert not differences, "docs/tables.md:\n" + "\n".join(differences)


def test_the_page_is_generated_from_the_declarations(tables_page: ModuleType):
    text = PAGE.read_text(encoding="utf-8")
    assert text == tables_page.page_text(), "run python docs/tables_page.py"


def test_rows_are_identified_and_ordered_by_the_key(
    written: dict[str, list[Written]], tables_page: ModuleType
):
    declared = {f"recipes/NAME/tables/{table.file}": table for table in tables_page.of_recipe()}
    declared |= {f"tables/{table.file}": table for table in tables_page.OF_WORKDIR}
    for name, table in declared.items():
        assert bool(table.key) != name.endswith(".json"), name
        for path in {w.path for w in written.get(name, []) if table.key}:
            rows = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
            rows = rows[[*table.key]].astype(object).where(rows[[*table.key]].notna(), None)
            rows = [*rows.itertuples(index=False, name=None)]
            for k in range(1, len(table.key) + 1):
                starts = [row[:k] for row, _ in itertools.groupby(rows, key=lambda row: row[:k])]
                assert len(starts) == len({*starts}), f"{path}: {table.key[:k]}"
            assert len({*rows}) == len(rows), f"{path}: {table.key}"


def test_columns_have_a_unit_and_a_definition():
    text = PAGE.read_text(encoding="utf-8")
    for name, columns in documented(text).items():
        for column, (unit, definition) in columns.items():
            assert unit in units(text), f"{name}: {column}: {unit} is not in the list of units"
            assert definition, f"{name}: {column}"


def test_page_documents_the_score_store(folder: Path):
    on_page = documented(PAGE.read_text(encoding="utf-8"))[STORE]
    sample_coordinates = ("sample", *SAMPLE_COLUMNS, *PIECE_COLUMNS)
    coordinates = (
        "model",
        "role",
        *schema.SEEDS,
        schema.DIGEST,
        schema.COMPUTATION,
        schema.DETAILS,
        "step",
        *sample_coordinates,
        *schema.TOKEN_COLUMNS,
    )
    assert {*on_page} == {*schema.VARIABLES, *coordinates}
    for name, (_, _, unit) in schema.VARIABLES.items():
        expected = {"": "none", "share of tokens": "fraction"}.get(unit, unit)
        assert on_page[name][0] == expected, name
    names: set[str] = set()
    for path in folder.glob("recipes/*/scores.zarr"):
        table = schema.read_contents(path)
        assert table is not None
        names |= table.names
    assert {"member", "loss", "step", "prefix_group"} <= names <= {*on_page}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("### `roc.csv`", "### `curves.csv`", "roc.csv: written, but not documented"),
        ("### `roc.csv`", "### `curves.csv`", "curves.csv: documented, but not written"),
        (
            "- `one_run_epsilon_mean`,",
            "- `epsilon_mean`,",
            "shuffled.csv: one_run_epsilon_mean is not documented",
        ),
        (
            "- `one_run_epsilon_mean`,",
            "- `epsilon_mean`,",
            "shuffled.csv: epsilon_mean is not written",
        ),
        (
            "- `flip_rate_FPR` ",
            "- `rate_FPR` ",
            "samples.parquet: flip_rate_0.05 is not documented",
        ),
        ("- `k_low` ", "- `low` ", "flips.json: k_low is not documented"),
        (
            "Key: `sampling`, `fpr`, `bin`. [Common](#common-columns): `left_out`.",
            "Key: `sampling`, `fpr`, `bin`.",
            "resampled_references.csv: left_out is not documented",
        ),
    ],
)
def test_differences_are_reported(
    written: dict[str, list[Written]], old: str, new: str, message: str
):
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(old) == 1
    differences = find_differences(documented(text.replace(old, new)), written)
    assert any(f"recipes/NAME/tables/{message}" in line for line in differences), differences
