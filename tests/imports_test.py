"""The arrows between modules go one way; what must not load JAX does not; files stay small."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Who may import whom inside the package. A new arrow is a decision: it is made here.
ALLOWED = {
    "errors": set(),
    "seeds": set(),
    "config": set(),
    "identity": {"config"},
    "points": {"config"},
    "flops": set(),
    "trackers": {"errors"},
    "costs": {"config", "errors", "flops", "identity", "points"},
    "plan": {
        *("config", "costs", "errors", "flops", "identity", "parse", "population", "presence"),
        *("sweep", "workdir"),
    },
    "extract_rules": {"config"},
    "rules": {"config", "extract_rules", "points"},
    "parse": {"config", "errors", "rules"},
    "tokenizer": {"errors"},
    "docstrings": {"errors"},
    "duplicates": set(),
    "files": {"errors"},
    "documents": set(),
    "parallel": {"errors"},
    "c4": {"documents", "errors"},
    "hf_shards": {"c4", "documents", "errors", "parallel"},
    "vocabulary": {"documents", "errors", "seeds", "tokenizer"},
    "prefixes": {"documents"},
    "tokenise": {"documents", "parallel", "prefixes"},
    "draw": {"documents", "parallel", "prefixes", "seeds", "tokenise"},
    "assemble": {"documents", "tokenise"},
    "frequencies": {"documents", "seeds"},
    "manifest": {"errors"},
    "population": {
        *("assemble", "documents", "draw", "errors", "frequencies", "manifest", "prefixes"),
        "tokenise",
    },
    "corpus": {
        *("c4", "config", "docstrings", "documents", "duplicates", "errors", "files", "population"),
        *("tokenizer", "vocabulary"),
    },
    "subsets": {"seeds"},
    "packing": set(),
    "batches": {"packing", "population", "seeds"},
    "attention": {"errors", "rules"},
    "model": {"attention", "config"},
    "sharding": set(),
    "compute": {"attention", "config", "model"},
    "loss": {"min_k"},
    "optimizer": {"config", "errors"},
    "checkpoint": {"errors", "model", "seeds", "sharding"},
    "update": {
        *("batches", "checkpoint", "compute", "config", "loss", "model", "optimizer", "sharding"),
    },
    "train": {
        *("batches", "checkpoint", "compute", "config", "errors", "flops", "model", "optimizer"),
        *("packing", "population", "subsets", "update"),
    },
    "min_k": set(),
    "windows": {"packing", "population"},
    "generate": {"model", "stats"},
    "extract": {
        *("config", "documents", "errors", "generate", "model", "population", "seeds", "stats"),
        *("tables", "workdir"),
    },
    "chosen": {"population"},
    "lowercase": {"population"},
    "score": {
        *("checkpoint", "chosen", "errors", "loss", "lowercase", "min_k", "model", "population"),
        *("sharding", "subsets", "windows"),
    },
    "block_reader": {"errors"},
    "store_format": set(),
    "store_table": {"errors", "store_format", "subsets"},
    "store_keys": {"block_reader"},
    "store": {
        *("block_reader", "errors", "store_format", "store_keys", "store_table", "subsets"),
    },
    "store_check": {"block_reader", "store", "subsets"},
    "workdir": {"config", "errors", "identity"},
    "tables": {"config", "stats", "workdir"},
    "score_file": set(),
    "scores": {"config", "score_file", "seeds", "stats", "store", "subsets"},
    "instability": {"config", "score_file", "scores", "stats", "tables", "workdir"},
    "diagnostics": {
        *("config", "errors", "score_file", "scores", "seeds", "stats", "tables", "workdir"),
    },
    "archetypes": {"config", "population", "stats"},
    "attack": {
        *("archetypes", "config", "diagnostics", "errors", "instability", "population", "seeds"),
        *("score_file", "scores", "stats", "store", "subsets", "tables", "workdir"),
    },
    "presence": {
        *("batches", "config", "points", "store", "store_format", "store_table", "subsets"),
    },
    "devices": set(),
    "backend": {"devices", "errors", "sharding"},
    "preemption": {"errors"},
    "worker": {
        *("backend", "compute", "config", "errors", "model", "points", "population", "preemption"),
        *("presence", "score", "store", "subsets", "train", "workdir"),
    },
    "workers": {"config", "devices", "errors", "presence", "subsets", "worker"},
    "progress": set(),
    "status": {
        *("config", "errors", "identity", "population", "presence", "progress", "store_check"),
        *("subsets", "workdir"),
    },
    "report": {"config", "errors", "progress"},
    "sweep": {*("config", "costs", "errors", "identity", "population", "subsets", "workdir")},
    "sweep_job": {
        *("config", "corpus", "costs", "errors", "identity", "job", "population", "presence"),
        *("progress", "report", "status", "store_check", "sweep", "trackers", "workers"),
    },
    "job": {
        *("attack", "backend", "chosen", "config", "corpus", "devices", "errors", "extract"),
        *(
            "hf_shards",
            "identity",
            "model",
            "population",
            "presence",
            "progress",
            "report",
            "score",
        ),
        *("status", "store", "store_check", "subsets", "trackers", "workdir", "workers"),
    },
    "cli": {
        *("config", "costs", "errors", "job", "parse", "plan", "status", "sweep", "sweep_job"),
        "workdir",
    },
    "stats": {"stats"},
    "__init__": set(),
}
WITHOUT_JAX = (
    *("assemble", "c4", "documents", "draw", "frequencies", "hf_shards", "manifest", "parallel"),
    *("prefixes", "tokenise", "vocabulary"),
    *("packing", "presence", "devices", "worker", "workers"),
    *(
        "config",
        "points",
        *("flops", "costs", "plan", "trackers"),
        *("extract_rules", "rules"),
        "parse",
        "population",
        "corpus",
        "lowercase",
        "subsets",
        "batches",
    ),
    *(
        "store",
        "store_format",
        "store_table",
        "store_check",
        "windows",
        "block_reader",
        "scores",
        "score_file",
        "instability",
        "diagnostics",
        "tables",
    ),
    *("archetypes", "attack", "cli", "stats.baselines", "stats.binomial", "stats.bootstrap"),
    *("stats.contributions", "stats.flips", "stats.lira", "stats.moments", "stats.per_sample"),
    *(
        "stats.extraction",
        "stats.ranking",
        "stats.resampling",
        "stats.rmia",
        "stats.roc",
        "stats.search",
        "stats.voting",
    ),
)
# Tests of what several modules do together, and checks of the repository.
OF_NO_MODULE = {
    *("analysis", "imports", "stats_coverage", "stats_noise", "stats_paper", "stats_partial_auc"),
    *("store_points", "train_events", "multi_process", "stopped", "extract_stage"),
    *(
        "configs",
        "corpus_vocabulary",
        "rules_attack",
        "parse_sweep",
        "parse_tuples",
        "launch_leases_race",
        "launch_disk",
    ),
}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "manager"}


def python_files(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Full names of what a file imports, at any depth of its code."""
    names = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def arrows(path: Path) -> set[str]:
    """Modules of the package that a file imports."""
    return {name.split(".")[1] for name in imported(path) if name.startswith("lm_mia.")}


@pytest.mark.parametrize("path", python_files("lm_mia"), ids=str)
def test_package_imports_only_what_it_may(path):
    module = path.relative_to(ROOT / "lm_mia").parts[0].removesuffix(".py")
    assert module in ALLOWED, f"{module}: say in ALLOWED what it may import"
    assert arrows(path) <= ALLOWED[module], f"new arrows: {arrows(path) - ALLOWED[module]}"
    outside = {name.split(".")[0] for name in imported(path)}
    assert not outside & {"analysis", "configs", "launch", "tests", "tensorflow"}
    if module == "stats":
        assert outside <= set(sys.stdlib_module_names) | {"numpy", "scipy", "lm_mia"}


def test_the_table_has_no_arrow_that_nothing_uses_and_no_cycle():
    used: dict[str, set[str]] = {module: set() for module in ALLOWED}
    for path in python_files("lm_mia"):
        used[path.relative_to(ROOT / "lm_mia").parts[0].removesuffix(".py")] |= arrows(path)
    assert used == ALLOWED
    left = {module: needs - {module} for module, needs in ALLOWED.items()}
    while left:
        free = {module for module, needs in left.items() if not needs & left.keys()}
        assert free, f"a cycle among {sorted(left)}"
        left = {module: needs for module, needs in left.items() if module not in free}


def test_all_of_stats_is_to_load_without_jax():
    stats = {f"stats.{p.stem}" for p in python_files("lm_mia/stats")} - {"stats.__init__"}
    assert stats == {name for name in WITHOUT_JAX if name.startswith("stats.")}


def test_jax_is_not_loaded_where_it_is_not_needed():
    code = "".join(f"import lm_mia.{name}\n" for name in WITHOUT_JAX)
    code += "import sys; loaded = {'jax', 'tensorflow', 'torch'} & set(sys.modules)\n"
    code += "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_analysis_configs_and_launch_load_no_jax():
    for path in python_files("analysis", "configs", "launch"):
        assert not {name.split(".")[0] for name in imported(path)} & {"jax", "optax", "orbax"}


OURS = python_files("lm_mia", "launch", "configs", "analysis", "benchmarks", "tests")


@pytest.mark.parametrize("path", OURS, ids=str)
def test_files_are_small_and_well_named(path):
    assert len(path.read_text().splitlines()) <= 300
    assert path.stem not in FORBIDDEN_NAMES
    assert len(path.relative_to(ROOT).parts) <= 3


def test_every_test_file_has_its_module():
    package = python_files("lm_mia")
    modules = {"_".join(p.relative_to(ROOT / "lm_mia").with_suffix("").parts) for p in package}
    modules |= {
        f"{p.parent.name}_{p.stem}" for p in python_files("analysis", "benchmarks", "launch")
    }
    for path in (ROOT / "tests").glob("*_test.py"):
        name = path.stem.removesuffix("_test")
        about = name.removesuffix("_damage")
        assert about in modules | OF_NO_MODULE, path.name
