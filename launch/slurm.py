"""SLURM: array scripts whose elements are jobs, corpus scripts, and handing them to ``sbatch``.

A job that is asked to stop, before its time limit or by preemption, saves, and its script puts it back into the queue;
so it does with a job that is killed, as by a lack of memory, and SLURM with one whose node fails. It goes on from its
checkpoints. A job that does not save in its grace ends as TIMEOUT, and one that is cancelled stays so.
"""

import argparse
import dataclasses
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from launch import jobs, status
from launch.jobs import JobSizes, multi_machine_problems
from lm_mia.atomic import write_atomically
from lm_mia.errors import SIGTERM_EXIT_CODE, UserError
from lm_mia.run.sweep import Sweep

MOST_RESTARTS = 20
"""After which a job that is killed is not put back; one that saved always is."""

_WORD = "[A-Za-z0-9_.,@+-]*"
_PATTERNS = {  # of what goes into #SBATCH lines: pattern, rule, example
    "memory": ("([0-9]+[KMGT]?)?", "must be a whole number, then K, M, G or T", "64G"),
    "partition": (_WORD, "must be a partition, or some with commas between", "gpu"),
    "account": (_WORD, "must be the name of an account", "physics"),
    "qos": (_WORD, "must be the name of a quality of service", "normal"),
    "constraint": (r"[A-Za-z0-9_.,@+=:&|*()[\]-]*", "must be features, as 'a&b' or 'a|b'", "h100"),
}
_UNITS = {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}  # seconds in each part of M, M:S, H:M:S
_END = f"""
code=$?

# {SIGTERM_EXIT_CODE}: it was asked to stop, and has saved. Others above 128: it was killed.
if ((code == {SIGTERM_EXIT_CODE} || (code > 128 && ${{SLURM_RESTART_COUNT:-0}} < {MOST_RESTARTS}))); then
  exec scontrol requeue "$job"
fi
exit $code
"""


@dataclasses.dataclass(frozen=True)
class SlurmOptions:
    """What jobs ask SLURM for; what is empty or 0 is left to the cluster."""

    time: str
    """The limit of a job: H:M:S, or another of sbatch's formats."""
    nodes: int = 1
    gpus_per_node: int = 0
    cpus_per_task: int = 0
    """A node has one task, and all of its job's memory there."""
    memory: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    at_once: int = 0
    """Elements of an array that may run at once; 0: all."""
    setup: str = ""
    """A file that scripts source first, for ``module load`` and such."""
    grace_seconds: int = 120
    """A job is asked to stop so long before its time limit."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what `slurm` reads."""
    group = parser.add_argument_group("SLURM")
    for name, default, what in (
        ("nodes", 1, "of a job; 1"),
        ("gpus-per-node", 0, "asked for"),
        ("cpus-per-task", 0, "a node has one task"),
        ("at-once", 0, "jobs of a recipe that may run at once"),
        (
            "grace-seconds",
            SlurmOptions.grace_seconds,
            "from being asked to stop to the time limit; 120",
        ),
    ):
        group.add_argument(f"--{name}", type=int, default=default, metavar="N", help=what)
    for name, value, what in (
        ("time", "H:M:S", "limit of a job; needed"),
        ("memory", "64G", "of a node"),
        ("partition", "NAME", None),
        ("account", "NAME", None),
        ("qos", "NAME", None),
        ("constraint", "NAME", "a feature of nodes"),
        ("setup", "FILE", "sourced before all else: module load ..."),
    ):
        group.add_argument(f"--{name}", default="", metavar=value, help=what)


def parse_options(known: argparse.Namespace) -> SlurmOptions:
    """What the flags say; UserError with a line for each that is wrong."""
    of = SlurmOptions(
        **{field.name: getattr(known, field.name) for field in dataclasses.fields(SlurmOptions)}
    )
    limit_seconds, wrong = _seconds(of.time), []
    if not of.time:
        wrong.append("--time: missing; say --time=4:00:00")
    elif not limit_seconds:
        rule = "must be M, M:S, H:M:S, D-H, D-H:M or D-H:M:S, and above 0"
        wrong.append(f"--time={of.time!r}: {rule}; try --time=4:00:00")
    for name, least in (("nodes", 1), ("gpus_per_node", 0), ("cpus_per_task", 0), ("at_once", 0)):
        if (value := getattr(of, name)) < least:
            wrong.append(f"{_flag(name)}={value}: must be {least} or larger")
    for name, (pattern, rule, example) in _PATTERNS.items():
        if not re.fullmatch(pattern, value := getattr(of, name)):
            wrong.append(f"{_flag(name)}={value!r}: {rule}; try {_flag(name)}={example}")
    if of.setup and not Path(of.setup).is_file():
        wrong.append(f"--setup={of.setup!r}: no such file; check the spelling")
    elif problem := _unfit(of.setup):
        wrong.append(f"--setup={of.setup!r}: {problem}")
    most = min(65535, (limit_seconds or 65536) - 1)  # 65535: SLURM's own limit
    if not 1 <= of.grace_seconds <= most:
        rule = f"must be from 1 to {most}, so that jobs can run before they are asked to stop"
        wrong.append(f"--grace-seconds={of.grace_seconds}: {rule}")
    if wrong:
        raise UserError("\n".join(wrong))
    return dataclasses.replace(of, setup=os.path.abspath(of.setup)) if of.setup else of


def script(
    name: str,
    command: Sequence[str],
    blocks: Sequence[int],
    models_per_job: int,
    rows: int,
    logs: Path,
    folder: Path,
    of: SlurmOptions,
    limit: int | None = None,
) -> str:
    """The text of an array script, an element for each block of rows.

    Args:
      name: of the array in the queue: letters, digits, and ``_.+-``.
      command: the arguments of a job, but for --models, --job and --log, which an element adds at the end.
      blocks: numbers of those that have rows to be made: block k is rows k to k + 1 times models_per_job.
      models_per_job: rows of a block, but for the last.
      rows: of the recipe.
      logs: a folder, which must be there when jobs begin; absolute.
      folder: where commands run; absolute.
      of: what jobs ask for.
      limit: array indices must be less than this; None: there is no limit, or it is not known.

    Raises:
      UserError: if a block's number is no index that the cluster takes, or a path or argument cannot be written into a
        script.
    """
    assert 0 <= min(blocks) <= max(blocks) * models_per_job < rows, (blocks, models_per_job, rows)
    if limit is not None and max(blocks) >= limit:
        raise UserError(
            f"--models-per-job={models_per_job}: makes jobs of numbers up to {max(blocks)}, and this cluster takes "
            f"less than {limit} (MaxArraySize); try --models-per-job={-(-rows // limit)}"
        )
    head = [f"--array={ranges(blocks)}{f'%{of.at_once}' * bool(of.at_once)}", *_resources(of)]
    body = [
        "job=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}",
        f"begin=$((SLURM_ARRAY_TASK_ID * {models_per_job}))",
        f"end=$((begin + {models_per_job} < {rows} ? begin + {models_per_job} : {rows}))",
    ]
    log = shlex.quote(f"--log={logs}/") + '"$job.out"'
    more = ['"--models=$begin:$end"', '"--job=$job"', log]
    return _text(name, head, body, command, more, f"{_escaped(logs)}/%A_%a.out", folder, of)


def corpus_script(
    name: str, command: Sequence[str], logs: Path, folder: Path, of: SlurmOptions
) -> str:
    """The text of a script of one job on one node without GPUs, on which arrays then depend; else as `script`."""
    of = dataclasses.replace(of, nodes=1, gpus_per_node=0)
    body = ["job=$SLURM_JOB_ID"]
    return _text(name, _resources(of), body, command, [], f"{_escaped(logs)}/%j.out", folder, of)


def ranges(numbers: Sequence[int]) -> str:
    """Numbers as SLURM writes those of an array: 0-3,7,9-12."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in runs)


def submit(path: Path, after: Sequence[str] = ()) -> str:
    """Hands a script to SLURM.

    Args:
      path: of the script, absolute.
      after: ids of jobs that must have succeeded before it begins; if one fails, it is cancelled.

    Returns:
      The id of the job, or of the array.

    Raises:
      UserError: what sbatch said, or that it is not there.
    """
    wait = [f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes"] * bool(after)
    said = _say(["sbatch", "--parsable", *wait, str(path)])
    return said.strip().partition(";")[0]  # ID;CLUSTER where there are several


def array_limit() -> int | None:
    """What indices of arrays must be less than (MaxArraySize); None if SLURM does not tell."""
    try:
        said = _say(["scontrol", "show", "config"])
    except UserError:
        return None
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", said, re.MULTILINE)
    return int(found[1]) if found else None


def _text(
    name: str,
    head: Sequence[str],
    body: Sequence[str],
    command: Sequence[str],
    more: Sequence[str],
    output: str,
    folder: Path,
    of: SlurmOptions,
) -> str:
    """A script; head, body and more are of a shell's syntax, the others are quoted here."""
    assert re.fullmatch("[A-Za-z0-9_.+-]+", name), name
    bad = [f"{said!r}: {p}" for said in (*command, str(folder), output) if (p := _unfit(said))]
    if "\\" in output.replace('\\"', ""):
        bad.append(f"{output}: SLURM takes no \\ in the name of a log; choose another --workdir")
    if bad:
        raise UserError("\n".join(bad))
    setup = f'source {shlex.quote(of.setup)} || {{ echo "--setup: code $?" >&2; exit 1; }}'
    # When one task ends, the others have a while to end by themselves: were they killed at once, what all of them find
    # wrong would look like a job to put back. (SLURM's TERM is for what srun starts: --signal does not say B:.)
    srun = f"srun --kill-on-bad-exit=0 --wait={of.grace_seconds}"
    srun += f" --cpus-per-task={of.cpus_per_task}" * (of.cpus_per_task > 0)
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={name}",
        *(f"#SBATCH {line}" for line in head),
        f'#SBATCH --output="{output}"',
        "",
        f"cd -- {shlex.quote(str(folder))} || exit 1",
        *[setup] * bool(of.setup),
        *body,
        "",
        " \\\n  ".join([srun, *map(shlex.quote, command), *more]),
    ]
    return "\n".join(lines) + _END


def _resources(of: SlurmOptions) -> list[str]:
    asked = {
        "nodes": of.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": of.cpus_per_task,
        "gpus-per-node": of.gpus_per_node,
        "mem": of.memory,
        "partition": of.partition,
        "account": of.account,
        "qos": of.qos,
        "constraint": of.constraint and f'"{of.constraint}"',
        "time": of.time,
        "signal": f"TERM@{of.grace_seconds}",
    }
    lines = [f"--{name}={value}" for name, value in asked.items() if value]
    return [*lines, "--requeue", "--open-mode=append"]


def _escaped(path: Path) -> str:
    """As --output takes it between double quotes, where % begins what SLURM puts in."""
    return str(path).replace("%", "%%").replace('"', '\\"')


def _unfit(said: str) -> str:
    """Why it cannot be written into a script; "" if it can."""
    rule = "must have no line breaks or other characters that cannot be printed; choose another"
    return "" if said.isprintable() else rule


def _flag(name: str) -> str:
    return f"--{name}".replace("_", "-")


def _seconds(time: str) -> int | None:
    """Of a time limit; None if it is none that sbatch takes."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time, re.ASCII)
    if not found:
        return None
    days, *rest = found.groups()
    parts = [int(part) for part in rest if part is not None]
    units = _UNITS[3] if days is not None else _UNITS[len(parts)]
    return int(days or 0) * 86400 + sum(n * u for n, u in zip(parts, units, strict=False))


def _say(argv: Sequence[str]) -> str:
    """What a command of SLURM prints; UserError: what it says when it fails, or that it is not there.

    It is not told of the job that this process may be in, whose resources it would take for those of the new one.
    """
    ours = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_") or k in ours}
    try:
        done = subprocess.run(argv, capture_output=True, text=True, env=env)
    except OSError as error:
        raise UserError(f"{argv[0]}: {error.strerror}; SLURM's commands are needed here") from error
    if done.returncode:
        why = "; ".join(done.stderr.split("\n")).strip("; ") or f"code {done.returncode}"
        raise UserError(f"{shlex.join(argv)}: {why}")
    return done.stdout


def write_scripts(of: Sweep, sizes: JobSizes, asked: SlurmOptions, submitted: bool) -> int:
    """Writes an array script a recipe into ``DIR/slurm``, and one of the corpus if need be; submits them if asked.

    Raises:
      UserError: if several nodes are asked for where rows do not span them, or as of `script` and `submit`.
    """
    of = jobs.with_absolute_paths(of)
    found = [
        j for j in jobs.plan_jobs(of, sizes, asked.nodes * max(asked.gpus_per_node, 1)) if j.blocks
    ]
    if wrong := multi_machine_problems(found, asked.nodes, f"--nodes={asked.nodes}"):
        raise UserError(wrong[0])
    if not found:
        return status.print_summary(of)
    scripts, logs = of.workdir.path / "slurm", of.workdir.path / "logs"
    python, here, limit = [sys.executable], Path.cwd(), array_limit()
    texts: dict[Path, str] = {}
    first = scripts / "corpus.sbatch"
    if any(not j.task.population_dir.exists() for j in found):
        texts[first] = corpus_script(
            "lm_mia-corpus", jobs.command(of, python, "corpus"), logs, here, asked
        )
    for j in found:
        command = jobs.job_command(of, python, j.task)
        texts[scripts / f"models_{j.task.name}.sbatch"] = script(
            "lm_mia-" + re.sub("[^A-Za-z0-9_.+-]", "-", j.task.name),
            command,
            j.blocks,
            j.models_per_job,
            j.cost.models,
            logs,
            here,
            asked,
            limit,
        )
    for folder in (scripts, logs):
        folder.mkdir(parents=True, exist_ok=True)
    after: list[str] = []
    numbers: list[str] = []
    for path, text in texts.items():
        write_atomically(path, text)
        if not submitted:
            after = ["--dependency=afterok:CORPUS"] * (first in texts and path != first)
            print(shlex.join(["sbatch", *after, str(path)]))
            continue
        try:
            number = submit(path, after)
        except UserError as error:
            sent = "; what is named above was submitted" if numbers else ""
            raise UserError(f"{path}: not submitted{sent}: {error}") from error
        numbers.append(number)
        print(f"{path}: job {number}")
        if path == first:
            after = [number]
    if not submitted:
        which = "; CORPUS is the number of the first" * (first in texts)
        print(f"written, not submitted: --submit does{which}")
    return 0
