"""Damaged populations, and processes that are killed while they write one."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from docstring_population import content, write

from lm_mia.data import tokenize
from lm_mia.data.population import SAMPLE_FILES, Population, open_population
from lm_mia.errors import UserError


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Population:
    return write(tmp_path_factory.mktemp("workdir") / "population")


@pytest.mark.parametrize("name", [*SAMPLE_FILES, "tokenizer.model", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip first", "flip middle", "flip last", "cut", "delete"])
def test_damaged_files_are_named(written: Population, tmp_path: Path, name: str, damage: str):
    folder = tmp_path / "p"
    folder.mkdir()
    for other, raw in content(written.folder).items():
        (folder / other).write_bytes(raw)
    assert open_population(folder).sha256 == written.sha256
    raw = bytearray((folder / name).read_bytes())
    if damage.startswith("flip"):
        raw[{"first": 0, "middle": len(raw) // 2, "last": -1}[damage[5:]]] ^= 1
    (folder / name).write_bytes(raw[:-1] if damage == "cut" else raw)
    if damage == "delete":
        (folder / name).unlink()
    message = f"p/{name}: .*; delete the folder .*/p and run `lm-mia corpus` again"
    with pytest.raises(UserError, match=message):
        open_population(folder)


def test_a_changed_manifest_is_refused(written: Population, tmp_path: Path):
    folder = tmp_path / "p"
    folder.mkdir()
    for other, raw in content(written.folder).items():
        (folder / other).write_bytes(raw)
    changed = written.manifest | {"vocab_size": 401}
    (folder / "manifest.json").write_bytes(
        (json.dumps(changed, indent=2, sort_keys=True) + "\n").encode()
    )
    with pytest.raises(UserError, match=r"manifest\.json: .*changed"):
        open_population(folder, verify=False)


def test_every_file_is_verified(tmp_path: Path):
    population = write(tmp_path / "p", validation_samples=5, frequency_samples=5)
    for name in population.manifest["files"]:
        raw = (tmp_path / "p" / name).read_bytes()
        (tmp_path / "p" / name).write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
        with pytest.raises(UserError, match=f"p/{name}: .*not match"):
            open_population(tmp_path / "p")
        (tmp_path / "p" / name).write_bytes(raw)
    open_population(tmp_path / "p")


KILLED = """
import os, pathlib, signal, sys
from lm_mia import config
from lm_mia.data import build, tokenize
from lm_mia.data.tokenizer import train_tokenizer
def die(*args, **kwargs): os.kill(os.getpid(), signal.SIGKILL)
replace = os.replace
def write(folder, moment):
    if moment == "manifest": build.manifest_bytes = die
    if moment == "rename": os.replace = lambda a, b: die() if b == folder else replace(a, b)
    if moment == "after": build.open_population = die
    progress = lambda label, done, total: die() if moment == "samples" and done == 20 else None
    tokenize._PART = 10
    documents = [(f"the text of number {i}", str(i), "") for i in range(60)]
    model = train_tokenizer([text for text, *_ in documents], 30)
    settings = config.Population(samples=40, seed=0, length_tokens=32, validation_samples=10)
    spec = build.PopulationSpec(settings, model, provenance={"corpus_sha256": "a"})
    build.write_population(folder, documents, spec, 1, progress, lambda line: print(line, flush=True))
for line in sys.stdin:
    name, moment = line.split()
    child = os.fork()  # a fork per moment need not load everything again
    if not child:
        write(pathlib.Path(name), moment)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "end", flush=True)
"""


@pytest.fixture
def run_killed() -> Iterator[Callable[[Path, str], tuple[int, str]]]:
    """Returns a function that kills a process at a moment of writing a population, and returns its code and output."""
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # it forks
    argv, pipe = [sys.executable, "-c", KILLED], subprocess.PIPE
    server = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=one_thread)

    def run(folder: Path, moment: str) -> tuple[int, str]:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(f"{folder} {moment}\n")
        server.stdin.flush()
        output = ""
        while not (line := server.stdout.readline()).endswith(" end\n"):
            assert line, "the process has ended"
            output += line
        return int(line.split()[0]), output

    yield run
    server.communicate()


@pytest.mark.process
def test_kills_leave_a_complete_population_or_none(
    tmp_path: Path, run_killed: Callable[[Path, str], tuple[int, str]]
):
    folder, output = tmp_path / "p", ""
    for moment in ("samples", "manifest", "rename"):
        code, output = run_killed(folder, moment)
        assert code == -9
        assert [p.name for p in tmp_path.iterdir()] == [".p.unfinished"]
    assert output.startswith("population: reusing 5 of 5 ")
    assert run_killed(folder, "after")[0] == -9
    assert [p.name for p in tmp_path.iterdir()] == ["p"]
    assert run_killed(tmp_path / "q", "never")[0] == 0
    assert content(folder) == content(tmp_path / "q")
    open_population(folder)


class Stop(Exception):
    pass


def write_some(folder: Path, identity: str | None, stop: bool, **changes: Any) -> list[str]:
    """Writes a population in parts of 10 samples, or only two of its parts; returns the messages."""

    def progress(label: str, done: int, total: int) -> None:
        if stop and done == 30:
            raise Stop

    messages: list[str] = []
    provenance = {"corpus_sha256": identity} if identity else {}
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Stop):
        patch.setattr(tokenize, "_PART", 10)
        write(folder, provenance=provenance, progress=progress, log=messages.append, **changes)
    return [line for line in messages if "earlier command" in line]


@pytest.mark.parametrize(
    ("identity", "changes"),
    [
        ("a", {"seed": 4}),
        ("b", {}),
        ("a", {"min_chars": 101}),
        ("a", {"length_tokens": 63}),
        ("a", {"distinct_prefix_tokens": 60}),
        ("a", {"settings": {"corpus.column": "x"}}),
    ],
)
def test_parts_of_other_populations_are_not_reused(
    tmp_path: Path, identity: str, changes: dict[str, Any]
):
    folder = tmp_path / "p"
    write_some(folder, "a", stop=True)
    assert len(list(folder.with_name(".p.unfinished").glob("parts-*/*.arrow"))) == 2
    assert write_some(folder, identity, stop=True, **changes) == []
    assert len(list(folder.with_name(".p.unfinished").iterdir())) == 1
    (again,) = write_some(folder, identity, stop=False, **changes)
    assert "population: reusing 2 of " in again
    assert [p.name for p in tmp_path.iterdir()] == ["p"]
    write_some(tmp_path / "q", identity, stop=False, **changes)
    assert content(folder) == content(tmp_path / "q")


def test_parts_of_an_unidentified_corpus_are_not_reused(tmp_path: Path):
    write_some(tmp_path / "p", None, stop=True)
    assert write_some(tmp_path / "p", None, stop=False) == []
