"""One complete tiny run through the command line, for tests. Tests that change something use a copy."""

import contextlib
import dataclasses
import logging
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import held_command
import jax
import numpy as np
import pytest
from built_once import built_once

from analysis import page
from lm_mia import cli, config
from lm_mia import events as log_of_workdir
from lm_mia.data.subsets import ModelSeeds
from lm_mia.run import worker
from lm_mia.run.stages import ModelVerb
from lm_mia.run.worker_task import Event, WorkerTask
from lm_mia.store.schema import VARIABLES
from lm_mia.store.store import Store

_WORDS = (
    "river stone market winter letter garden captain engine morning silver forest window teacher village harbour "
    "music copper island doctor mountain bridge summer kitchen paper thunder soldier orange dinner castle valley "
    "mirror ladder walked carried opened watched followed painted counted gathered promised borrowed crossed answered "
    "slowly quietly often never under behind through against between beyond every another small bright heavy narrow"
)
_CONFIG = """
from lm_mia import config
def get_config():
    return config.Config(
        corpus=config.Corpus(source="text", path={texts!r}),
        tokenizer=config.Tokenizer(vocab_size=100),
        population=config.Population(samples=32, length_tokens=8),
        model=config.Model(layers=1, width=8, heads=2),
        optimizer=config.Optimizer(peak_learning_rate=1e-2, warmup_steps=1),
        train=config.Train(subset="balanced", batch_size=4),
        attack=config.Attack(
            references=4, replicas=2, attacks=("lira_online", "stacked", "loss"), variance="pooled",
            fprs=(0.1, 0.5), focus_fpr=0.1, bootstraps=20,
        ),
    )
"""


@dataclasses.dataclass(frozen=True)
class Tiny:
    """A folder with a corpus, a config file, and a finished workdir with one recipe, named tiny."""

    folder: Path

    @property
    def config(self) -> str:
        return str(self.folder / "tiny.py")

    @property
    def workdir(self) -> Path:
        return self.folder / "workdir"

    @property
    def environment(self) -> dict[str, str]:
        """Environment of commands, which run on CPU with the compilation cache that conftest.py sets."""
        return {"JAX_PLATFORMS": "cpu"}

    @property
    def population_name(self) -> str:
        """Name of the folder in the workdir's populations."""
        [folder] = (self.workdir / "populations").glob("[!.]*")
        return folder.name

    def copy(self, path: Path, models: bool = True) -> Path:
        """Copies the workdir, with its models and their results or without."""
        results = (
            "scores.*",
            "checkpoints",
            "locks",
            "tables",
            "metrics",
            "figures",
            "report.html",
        )
        ignore = None if models else shutil.ignore_patterns(*results)
        return Path(shutil.copytree(self.workdir, path, ignore=ignore))

    def population(self, path: Path) -> Path:
        """Creates a workdir with the population but without a config."""
        shutil.copytree(self.workdir / "populations", path / "populations")
        return path

    def argv(self, verb: str, workdir: Path, *more: str) -> list[str]:
        """Returns arguments of lm-mia."""
        return [verb, f"--config={self.config}", f"--workdir={workdir}", *more]

    def start(
        self, argv: list[str], more: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.Popen[str]:
        """Starts the command in its own process group, with additional environment variables.

        It draws no report page unless WITH_PAGE is set. With HOLD_STEP, workers hold their models at that step; see
        `held_command`.
        """
        script = str(Path(held_command.__file__))
        command, out = [sys.executable, script, *argv], subprocess.PIPE
        environment = {**os.environ, **self.environment, **more}
        # The command would inherit the handler of this process, which ignores Ctrl-C after a test ran a worker in it.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(
                command, stdout=out, stderr=out, text=True, env=environment, start_new_session=True
            )
        finally:
            signal.signal(signal.SIGINT, before)

    def start_job(
        self,
        workdir: Path,
        processes: int,
        devices: int,
        *more: str,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> list[subprocess.Popen[str]]:
        """Starts `lm-mia run` in every process of a job that shards models over all its CPU devices."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        argv = self.argv("run", workdir, "--config.compute.devices_per_model=all", *more)
        started = []
        for index in range(processes):
            more_environment = {"JAX_NUM_CPU_DEVICES": f"{devices}", **environment}
            if processes > 1:
                more_environment |= {
                    "JAX_COORDINATOR_ADDRESS": address,
                    "JAX_NUM_PROCESSES": str(processes),
                    "JAX_PROCESS_ID": str(index),
                }
            started.append(self.start(argv, more_environment))
        return started

    def recipe(self, workdir: Path) -> Path:
        """Creates the recipe's folder in another workdir, with a store that lists the models but has no scores."""
        finished_recipe, recipe = recipe_of(self.workdir), recipe_of(workdir)
        recipe.mkdir(parents=True, exist_ok=True)
        models = Store(finished_recipe / "scores.zarr").models()
        Store(recipe / "scores.zarr").create_or_extend(models, {"tokens": np.arange(32)}, {})
        return recipe


def recipe_of(workdir: Path) -> Path:
    """Returns the folder of the tiny run's recipe in a workdir."""
    return workdir / "recipes" / "tiny"


def population_of(workdir: Path) -> Path:
    """Returns the population folder of a workdir that has one population."""
    [folder] = (workdir / "populations").glob("[!.]*")
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return finished(tmp_path_factory)


@contextlib.contextmanager
def on_cpu() -> Iterator[pytest.MonkeyPatch]:
    """Prepares this process for starting workers or doing their work, and restores settings and signal handlers.

    Commands draw no report page, which would take seconds.
    """
    names = ("min_compile_time_secs", "min_entry_size_bytes")
    settings = ("jax_compilation_cache_dir", *(f"jax_persistent_cache_{name}" for name in names))
    before = {name: getattr(jax.config, name) for name in settings}
    handlers = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGINT)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        patch.setenv("NPROC", "1")
        patch.setattr(page, "write_page", held_command.write_no_page)
        # Workers change them.
        patch.setattr(sys, "unraisablehook", sys.unraisablehook)
        patch.setattr(logging.getLogger("absl"), "filters", [])
        yield patch
    for name, value in before.items():
        jax.config.update(name, value)
    for kind, handler in handlers.items():
        signal.signal(kind, handler)


@pytest.fixture
def _on_cpu() -> Iterator[None]:
    with on_cpu():
        yield


def scores(workdir: Path) -> dict[str, bytes]:
    """Returns the bytes of every shard of the score store of the tiny run's recipe."""
    store = recipe_of(workdir) / "scores.zarr"
    shards = (p for name in VARIABLES for p in store.glob(f"{name}/c/**/*"))
    return {str(p.relative_to(store)): p.read_bytes() for p in shards if p.is_file()}


def logged(workdir: Path, kind: str) -> list[dict[str, Any]]:
    """Returns the events of a kind in the log."""
    read = log_of_workdir.read(workdir, lambda line: kind.encode() in line)
    return [event for _, event in read if event["event"] == kind]


def write_log(workdir: Path, text: str) -> None:
    """Replaces the log of a workdir."""
    folder = workdir / log_of_workdir.FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "log.jsonl").write_text(text)


def events(workdir: Path, kind: str) -> list[str]:
    """Returns the models of all events of a kind in the log, sorted."""
    return sorted(event["model"] for event in logged(workdir, kind))


def finished(factory: pytest.TempPathFactory) -> Tiny:
    """Returns the run, which the first test process that needs it creates."""
    return built_once(factory, "tiny_run", make)


def make(folder: Path) -> Tiny:
    """Creates the corpus, the config and the finished run."""
    tiny, texts = Tiny(folder), folder / "texts"
    texts.mkdir(parents=True)
    draw = random.Random(0)
    for i in range(40):
        words = [draw.choice(_WORDS.split()) for _ in range(45)]
        (texts / f"{i:02}.txt").write_text(" ".join(words).capitalize() + ".\n")
    (tiny.folder / "tiny.py").write_text(_CONFIG.format(texts=str(texts)))
    argv = tiny.argv("run", tiny.workdir, "--config.train.workers=1")
    process = tiny.start(argv, {"WITH_PAGE": "1"})
    out, err = process.communicate()
    assert process.returncode == 0, err
    (tiny.folder / "out").write_text(out)
    (tiny.folder / "err").write_text(err)
    return tiny


def models_counted(messages: str) -> list[int]:
    """Returns the numbers of the line on models: how many are requested, are present, and are to be made."""
    [line] = re.findall(r"^models: \d.*", messages, re.MULTILINE)
    return [int(number) for number in re.findall(r"\d+", line)]


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def workers_of(pid: int) -> list[int]:
    """Returns the ids of the worker processes that a process has started, from /proc."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"spawn_main" in (stat.parent / "cmdline").read_bytes():
                pids.append(int(stat.parent.name))
    return pids


def has_ended(pid: int) -> bool:
    """Returns whether a process has ended, even if its parent has not waited for it yet."""
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def work(
    verb: ModelVerb,
    c: config.Config,
    workdir: Path,
    report: Callable[[Event], None],
    selected_models: Sequence[ModelSeeds] | None = None,
) -> None:
    """Does the work of `worker.main` for the tiny run's recipe in this process."""
    population_dir, recipe_dir = population_of(workdir), recipe_of(workdir)
    worker.work(WorkerTask(verb, c, population_dir, recipe_dir, selected_models), report)


def run_in_process(task: WorkerTask, on_event: Callable[[Event], None]) -> bool:
    """Replaces `supervisor.run`, doing the worker's work in this process."""
    worker.work(task, on_event)
    return True


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Returns the lines of the error message of a refused command, without progress bars."""
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return [
        line
        for line in err.splitlines()
        if line.strip() and "0:00:0" not in line and "%" not in line
    ]
