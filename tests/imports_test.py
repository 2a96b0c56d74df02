"""The structure of the source tree: allowed imports, what loads without JAX, and how files are named."""

import ast
import functools
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# The allowed imports, one line per package. All packages may import those of BELOW_ALL. A name with a dot allows
# that one module. A new dependency is a design decision and is made here.
ALLOWED_IMPORTS = {
    "config": "",
    "stats": "",
    "data": "config",
    "model": "stats",
    "store": "config data.subsets data.zarr_metadata",
    "train": "config data model",
    "score": "config data model stats train",
    "attacks": "config data stats store",
    "run": "attacks config data model score store train",
    "plan": "attacks config model run stats",
    "audits": "attacks config data run stats store",
    "hf": "config.hf_checkpoint data run",
    "launch": "config data plan run",
    "analysis": "attacks config data model.flops model.memory stats",
    "api": "analysis attacks audits config data run store",
    "cli": "analysis attacks audits config data.canaries data.texts hf launch plan run",
    "__main__": "cli",
    "errors": "",
    "interrupts": "",
    "seeds": "",
    "atomic": "",
    "events": "",
    "printing": "",
    "machine": "",
    "user_files": "",
    "top_level": "",
}
BELOW_ALL = {
    "errors",
    "interrupts",
    "seeds",
    "atomic",
    "events",
    "printing",
    "machine",
    "user_files",
    "top_level",
}
WITHOUT_JAX = (
    "config",
    "data",
    "store",
    "stats",
    "attacks",
    "launch",
    "analysis",
    "hf",
    "api",
    "cli",
    *BELOW_ALL,
)
# Modules of other packages that load no JAX, since commands that train nothing need them.
ALSO_WITHOUT_JAX = (
    "lm_mia.model.flops",
    "lm_mia.model.memory",
    "lm_mia.audits.audit",
    "lm_mia.audits.table",
    "lm_mia.run.devices",
    "lm_mia.run.inventory",
    "lm_mia.run.model_sizes",
    "lm_mia.run.pipeline",
    "lm_mia.plan.plan",
    "lm_mia.run.supervisor",
    "lm_mia.run.sweep",
    "lm_mia.run.trackers",
    "lm_mia.run.worker",
)
# Packages of the extra "hf". Only lm_mia.hf imports them, and only inside functions: all else works without them.
PACKAGES_OF_HF = {"torch", "transformers", "peft", "huggingface_hub"}
# A package that is loaded only where a file is read by it.
IMPORTS_TOKENIZERS = {"lm_mia/data/tokenizer.py", "lm_mia/hf/models.py"}
# Libraries of single modules of lm_mia.stats, which otherwise need only NumPy and SciPy.
LIBRARIES_OF_STATISTICS = {"similarity": {"rapidfuzz"}}
# Test files that cover more than one module of their package, or a page.
TESTS_OF_SEVERAL_MODULES = {
    "stats": {"coverage", "noise", "paper", "public_names"},
    "score": {"token_samples"},
    "docs": {"notebooks", "pages", "shapes", "tables"},
    "analysis": {"papers"},
    "analysis/experiments": {"studies"},
}
# Benchmarks that bind a process to some of its cores, and hence ask which ones it may use.
BIND_TO_CORES = {"benchmarks/causal.py", "benchmarks/sweep.py"}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "manager"}


def python_files(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


def modules() -> dict[Path, str]:
    """Returns {file: full module name} of all packages."""
    files = [
        p.relative_to(ROOT).with_suffix("") for p in python_files("lm_mia", "launch", "analysis")
    ]
    return {ROOT / f"{f}.py": ".".join(f.parts).removesuffix(".__init__") for f in files}


def location(module: str) -> list[str]:
    """Returns [package, module]: [config, schema] for lm_mia.config.schema.Config, [cli] for lm_mia.cli."""
    first, *rest = module.split(".")
    return rest[:2] if first == "lm_mia" and rest else [first, *rest[:1]]


def package_of(module: str) -> str:
    """Returns the package: config for lm_mia.config.schema, cli for lm_mia.cli, launch for launch.slurm."""
    return location(module)[0]


@functools.cache
def imported_names(path: Path) -> frozenset[str]:
    """Returns the full names of all imports of a file, including those inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def imported_modules(path: Path, ours: Collection[str]) -> set[str]:
    """Returns our modules that a file imports, except under TYPE_CHECKING."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & set(ours) or {node.module}
    return found & set(ours)


@functools.cache
def package_imports() -> dict[str, set[str]]:
    """Returns the imports of each package from our other packages, as PACKAGE.MODULE."""
    imports: dict[str, set[str]] = {}
    for path, module in modules().items():
        package = package_of(module)
        ours = [
            n for n in imported_names(path) if n.split(".")[0] in ("lm_mia", "launch", "analysis")
        ]
        others = {".".join(location(n)) for n in ours if package_of(n) not in {package, *BELOW_ALL}}
        imports.setdefault(package, set()).update(others)
    return imports


def allowed_imports() -> dict[str, set[str]]:
    return {package: {*line.split()} for package, line in ALLOWED_IMPORTS.items()}


def test_packages_import_only_what_they_may():
    imports = {
        package: names for package, names in package_imports().items() if package != "lm_mia"
    }
    assert imports.keys() == ALLOWED_IMPORTS.keys()
    for package, allowed in allowed_imports().items():
        for name in imports[package]:
            assert {name, name.split(".")[0]} & allowed, f"{package} imports {name}"


def test_every_allowed_import_is_used():
    for package, allowed in allowed_imports().items():
        used = {
            *package_imports()[package],
            *(name.split(".")[0] for name in package_imports()[package]),
        }
        assert allowed <= used, f"{package} no longer imports {allowed - used}"


def test_packages_form_no_cycle():
    left = {
        package: {n.split(".")[0] for n in names} for package, names in allowed_imports().items()
    }
    while left:
        free = {package for package, needs in left.items() if not needs & left.keys()}
        assert free, f"a cycle among {sorted(left)}"
        left = {package: needs for package, needs in left.items() if package not in free}


def test_modules_form_no_cycle():
    """Also through imports inside functions, but not those that only types need."""
    paths = {module: path for path, module in modules().items()}
    left = {module: imported_modules(path, paths.keys()) for module, path in paths.items()}
    while left:
        free = {module for module, needs in left.items() if not needs & left.keys() - {module}}
        assert free, f"a cycle among {sorted(left)}"
        left = {module: needs for module, needs in left.items() if module not in free}


def test_packages_import_no_scripts_or_heavy_libraries():
    for path, module in modules().items():
        outside = {name.split(".")[0] for name in imported_names(path)}
        assert not outside & {"configs", "tests", "benchmarks", "tensorflow"}, path
        assert not outside & PACKAGES_OF_HF or package_of(module) == "hf", path
        assert "tokenizers" not in outside or str(path.relative_to(ROOT)) in IMPORTS_TOKENIZERS
        if package_of(module) == "stats":
            allowed = {*sys.stdlib_module_names, "numpy", "scipy", "lm_mia"}
            assert outside <= allowed | LIBRARIES_OF_STATISTICS.get(path.stem, set()), path


def test_no_experiment_imports_another():
    for path in python_files("analysis/experiments"):
        if path.name == "__init__.py":  # which lists them
            continue
        assert not {n for n in imported_names(path) if n.startswith("analysis.experiments.")}, path


def test_cores_and_memory_are_counted_in_one_place():
    """lm_mia.machine also works on macOS, which lacks some functions of Linux."""
    for path in python_files("lm_mia", "launch", "analysis", "configs", "benchmarks"):
        name = str(path.relative_to(ROOT))
        banned = {"cpu_count", "process_cpu_count", "sched_getaffinity"}
        banned |= {"sysconf"} if name.startswith(("lm_mia/", "launch/", "analysis/")) else set()
        if name in BIND_TO_CORES:
            banned -= {"sched_getaffinity"}
        text = path.read_text(encoding="utf-8")
        if name == "lm_mia/machine.py" or not any(word in text for word in banned):
            continue
        names = {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
        names |= {name.rpartition(".")[2] for name in imported_names(path)}
        assert not names & banned, path


@pytest.mark.process
def test_importing_loads_no_jax_and_sets_nothing_of_matplotlib():
    light = [m for m in modules().values() if package_of(m) in WITHOUT_JAX and "__main__" not in m]
    names = ", ".join([*light, *ALSO_WITHOUT_JAX])
    code = "import matplotlib, sys\nsettings = dict(matplotlib.rcParams)\n"
    code += f"import {names}\n"
    code += "assert dict(matplotlib.rcParams) == settings, 'settings of matplotlib changed'\n"
    code += (
        f"loaded = { ({'jax', 'tensorflow', 'tokenizers'} | PACKAGES_OF_HF)!r} & set(sys.modules)\n"
    )
    code += "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_statistics_load_no_slow_part_of_scipy():
    """Each worker loads them, and scipy.stats takes a second."""
    code = "import sys, lm_mia.stats; sys.exit('scipy.stats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_configs_load_no_jax():
    for path in python_files("configs"):
        assert not {name.split(".")[0] for name in imported_names(path)} & {
            "jax",
            "optax",
            "orbax",
        }, path


def test_files_are_well_named_and_do_not_import_tests():
    ours = python_files("lm_mia", "launch", "configs", "analysis", "benchmarks", "tests")
    for path in ours:
        assert path.stem not in FORBIDDEN_NAMES, path
        imports = {name.split(".")[0] for name in imported_names(path)}
        assert not {name for name in imports if name.endswith("_test")}, path


def test_every_test_file_names_what_it_tests():
    """tests/PACKAGE/MODULE_test.py, or MODULE_ASPECT_test.py, tests PACKAGE/MODULE.py."""
    for path in python_files("tests"):
        if not path.stem.endswith("_test"):
            continue
        folder, name = path.relative_to(ROOT / "tests").parent, path.stem.removesuffix("_test")
        if folder == Path("process"):  # tests that start processes cover several modules
            continue
        folders = [ROOT / "lm_mia" / folder, ROOT / folder]
        stems = {p.stem for f in folders for p in f.glob("*.py")} - {"__init__"}
        stems |= (
            {"imports"} if folder == Path() else TESTS_OF_SEVERAL_MODULES.get(str(folder), set())
        )
        assert any(name == stem or name.startswith(f"{stem}_") for stem in stems), path
