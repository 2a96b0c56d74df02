"""Writes SLURM array scripts, whose elements are jobs, and submits them with ``sbatch``.

Before its time limit or when it is preempted, a job saves its state, and its script requeues it. The script also
requeues a job that is killed, for example because it is out of memory, and SLURM requeues a job whose node fails. A
requeued job continues from its checkpoints, as often as it takes: only after several starts in a row without a new
checkpoint or a finished model does it end with an error (`launch.starts`). If a job does not save within its grace
period, its script kills it before the limit, at which SLURM would end it for good, and requeues it: it continues
from its last checkpoint. A job that is canceled is not requeued.
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
from launch.jobs import JobSizes
from lm_mia.atomic import write_atomically
from lm_mia.errors import SIGTERM_EXIT_CODE, UserError
from lm_mia.plan import machine_needs
from lm_mia.run.sweep import Sweep

MAX_RESTARTS = 20
"""Maximum number of restarts of a job that is killed before it counts its start, or that builds the corpus. A job that
makes models counts its starts without progress itself."""

_RESERVE_SECONDS = 15
"""Time before the limit at which a job that has not ended is killed and requeued; less if the grace period is short."""

_WORD = "[A-Za-z0-9_.,@+-]*"
_PATTERNS = {  # values of #SBATCH lines: pattern, rule, example
    "memory": ("([0-9]+[KMGT]?)?", "must be a whole number, then K, M, G or T", "64G"),
    "partition": (_WORD, "must be a partition, or several separated by commas", "gpu"),
    "account": (_WORD, "must be the name of an account", "physics"),
    "qos": (_WORD, "must be the name of a quality of service", "normal"),
    "constraint": (
        r"[A-Za-z0-9_.,@+=:&|*()[\]-]*",
        "must be features of nodes, such as 'a&b' or 'a|b'",
        "h100",
    ),
}
_UNITS = {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}  # seconds in each part of M, M:S, H:M:S
_EXIT_CODE = """
code=$?
((code == 124)) && code=137 # timeout says that the job did not save in time, and was killed
"""
_END = f"""{_EXIT_CODE}
# {SIGTERM_EXIT_CODE}: the job was asked to stop and has saved its state. Other codes above 128: it was killed.
if ((code == {SIGTERM_EXIT_CODE} || (code > 128 && ${{SLURM_RESTART_COUNT:-0}} < {MAX_RESTARTS}))); then
  exec scontrol requeue "$job"
fi
exit $code
"""
_END_OF_MODELS = f"""{_EXIT_CODE}
# Codes above 128: the job was stopped ({SIGTERM_EXIT_CODE}) or killed. After several starts without progress, which it
# counts in $starts, it ends with another code. If it was killed before it could count, SLURM's count is the limit.
if ((code > 128)) && {{ [[ $(cat -- "$starts" 2>/dev/null) != "$before" ]] ||
  ((${{SLURM_RESTART_COUNT:-0}} < {MAX_RESTARTS})); }}; then
  exec scontrol requeue "$job"
fi
exit $code
"""


@dataclasses.dataclass(frozen=True)
class SlurmOptions:
    """The resources that jobs request from SLURM. Empty strings and 0 select the defaults of the cluster, but those of
    CPUs and memory are chosen from the recipe when a sweep's scripts are written."""

    time: str
    """Time limit of a job: H:M:S, or another format of sbatch."""
    nodes: int = 1
    gpus_per_node: int = 0
    cpus_per_task: int = 0
    """Each node runs one task, which has all of the job's memory on that node."""
    memory: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    at_once: int = 0
    """Maximum number of array elements that run at once; 0: no limit."""
    setup: str = ""
    """A shell script that jobs source first, for example for ``module load``."""
    grace_seconds: int = 120
    """Time before the limit at which a job is asked to save and stop."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that `parse_options` reads."""
    group = parser.add_argument_group("SLURM")
    for name, default, meaning in (
        ("nodes", 1, "nodes per job (default: 1)"),
        ("gpus-per-node", 0, "GPUs per node (default: not requested)"),
        (
            "cpus-per-task",
            None,
            "CPUs per task; each node runs one task (default: 4 per GPU; without GPUs, one per worker, at most 8)",
        ),
        (
            "at-once",
            None,
            "maximum number of jobs of a recipe that run at once (default: no limit)",
        ),
        (
            "grace-seconds",
            SlurmOptions.grace_seconds,
            "seconds before the time limit at which jobs are asked to save and stop (default: 120)",
        ),
    ):
        group.add_argument(f"--{name}", type=int, default=default, metavar="N", help=meaning)
    for name, metavar, meaning in (
        ("time", "H:M:S", "time limit of a job (required)"),
        (
            "memory",
            "SIZE",
            "memory per node, such as 64G; 0: all of it (default: per GPU 8 GiB and twice a model's state)",
        ),
        ("partition", "NAME", "partition of the jobs"),
        ("account", "NAME", "account of the jobs"),
        ("qos", "NAME", "quality of service of the jobs"),
        ("constraint", "FEATURES", "required features of the nodes"),
        ("setup", "FILE", "shell script that jobs source first, for example to load modules"),
    ):
        group.add_argument(f"--{name}", default="", metavar=metavar, help=meaning)


def parse_options(args: argparse.Namespace) -> SlurmOptions:
    """Returns the options from the flags; raises UserError with one line for each invalid flag."""
    given = {field.name: getattr(args, field.name) for field in dataclasses.fields(SlurmOptions)}
    given = {name: value for name, value in given.items() if value is not None}
    options = SlurmOptions(**given)
    limit_seconds, problems = _seconds(options.time), []
    if not options.time:
        problems.append("--time: missing; add --time=4:00:00")
    elif not limit_seconds:
        rule = "must be a time of the form M, M:S, H:M:S, D-H, D-H:M or D-H:M:S, and above 0"
        problems.append(f"--time={options.time!r}: {rule}; try --time=4:00:00")
    for name, least in (("nodes", 1), ("gpus_per_node", 0), ("cpus_per_task", 1), ("at_once", 1)):
        if given.get(name, least) < least:
            problems.append(f"{_flag(name)}={given[name]}: must be at least {least}")
    for name, (pattern, rule, example) in _PATTERNS.items():
        if not re.fullmatch(pattern, value := getattr(options, name)):
            problems.append(f"{_flag(name)}={value!r}: {rule}; try {_flag(name)}={example}")
    if options.setup and not Path(options.setup).is_file():
        problems.append(f"--setup={options.setup!r}: no such file; check the spelling")
    elif problem := _unprintable(options.setup):
        problems.append(f"--setup={options.setup!r}: {problem}")
    max_grace_seconds = min(65535, (limit_seconds or 65536) - 1)  # 65535: SLURM's limit
    if not 1 <= options.grace_seconds <= max_grace_seconds:
        rule = (
            f"must be from 1 to {max_grace_seconds}, so that jobs run before they are asked to stop"
        )
        problems.append(f"--grace-seconds={options.grace_seconds}: {rule}")
    if problems:
        raise UserError("\n".join(problems))
    return (
        dataclasses.replace(options, setup=os.path.abspath(options.setup))
        if options.setup
        else options
    )


def script(
    name: str,
    command: Sequence[str],
    blocks: Sequence[int],
    models_per_job: int,
    num_models: int,
    logs: Path,
    folder: Path,
    options: SlurmOptions,
    limit: int | None = None,
    is_joint: bool = False,
) -> str:
    """Returns the text of an array script, with one element for each block of models.

    Args:
      name: name of the array in the queue: letters, digits, and ``_.+-``.
      command: the command line of a job without --models, --job and --log, which each element appends.
      blocks: numbers of the blocks with missing models; with n models per job, block k has models k n to (k + 1) n - 1.
      models_per_job: number of models per block; the last one may have fewer.
      num_models: number of models of the recipe.
      logs: absolute path of the folder of the logs, WORKDIR/logs, which must exist when jobs start.
      folder: absolute path of the folder in which commands run.
      options: the resources of a job.
      limit: array indices must be less than this; None: no limit, or an unknown one.
      is_joint: whether all nodes of a job make each model together; otherwise each node makes models of its own.

    Raises:
      UserError: if the cluster does not allow the number of a block as an index, or a path or argument cannot be
        written into a script.
    """
    assert 0 <= min(blocks) <= max(blocks) * models_per_job < num_models, (
        blocks,
        models_per_job,
        num_models,
    )
    if limit is not None and max(blocks) >= limit:
        raise UserError(
            f"--models-per-job={models_per_job}: makes jobs with indices up to {max(blocks)}, but this cluster "
            f"requires indices below {limit} (MaxArraySize); try --models-per-job={-(-num_models // limit)}"
        )
    head = [
        f"--array={ranges(blocks)}{f'%{options.at_once}' * bool(options.at_once)}",
        *_resources(options),
    ]
    body = [
        "job=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}",
        f"begin=$((SLURM_ARRAY_TASK_ID * {models_per_job}))",
        f"end=$((begin + {models_per_job} < {num_models} ? begin + {models_per_job} : {num_models}))",
        f"starts={shlex.quote(f'{logs}/')}$job.starts.json",
        'before=$(cat -- "$starts" 2>/dev/null)',
    ]
    log = shlex.quote(f"--log={logs}/") + '"$job.out"'
    block_flags = ['"--models=$begin:$end"', '"--job=$job"', log]
    output = f"{_escaped(logs)}/%A_%a.out"
    lines = _lines(name, head, body, command, block_flags, output, folder, options, is_joint)
    return "\n".join(lines) + _END_OF_MODELS


def corpus_script(
    name: str, command: Sequence[str], logs: Path, folder: Path, options: SlurmOptions
) -> str:
    """Returns the text of a script that builds the corpus on one node without GPUs; arguments as in `script`."""
    options = dataclasses.replace(options, nodes=1, gpus_per_node=0)
    body = ["job=$SLURM_JOB_ID"]
    output = f"{_escaped(logs)}/%j.out"
    lines = _lines(name, _resources(options), body, command, [], output, folder, options, True)
    return "\n".join(lines) + _END


def ranges(numbers: Sequence[int]) -> str:
    """Returns numbers in the form of SLURM's array indices: 0-3,7,9-12."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in runs)


def submit(path: Path, after: Sequence[str] = ()) -> str:
    """Submits a script to SLURM.

    Args:
      path: absolute path of the script.
      after: ids of jobs that must succeed before it starts; if one of them fails, it is canceled.

    Returns:
      The id of the job, or of the array.

    Raises:
      UserError: with the message of sbatch, or if sbatch is not installed.
    """
    wait = [f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes"] * bool(after)
    output = _run_slurm_command(["sbatch", "--parsable", *wait, str(path)])
    return output.strip().partition(";")[0]  # "ID;CLUSTER" if there are several clusters


def array_limit() -> int | None:
    """Returns the exclusive upper limit of array indices (MaxArraySize), or None if SLURM does not report it."""
    try:
        output = _run_slurm_command(["scontrol", "show", "config"])
    except UserError:
        return None
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", output, re.MULTILINE)
    return int(match[1]) if match else None


def _lines(
    name: str,
    head: Sequence[str],
    body: Sequence[str],
    command: Sequence[str],
    block_flags: Sequence[str],
    output: str,
    folder: Path,
    options: SlurmOptions,
    is_joint: bool,
) -> list[str]:
    """Returns the lines of a script up to the end of its command.

    Args:
      name: name of the job in the queue.
      head: options of sbatch, one per line.
      body: lines of shell code before the command.
      command: the command line, which is quoted here.
      block_flags: further arguments of the command, as shell code.
      output: path of the log, with replacement symbols of sbatch.
      folder: folder in which the command runs.
      options: the resources of the job.
      is_joint: as in `script`.
    """
    assert re.fullmatch("[A-Za-z0-9_.+-]+", name), name
    problems = [
        f"{text!r}: {problem}"
        for text in (*command, str(folder), output)
        if (problem := _unprintable(text))
    ]
    if "\\" in output.replace('\\"', ""):
        problems.append(
            f"{output}: SLURM does not allow \\ in the path of a log; choose another --workdir"
        )
    if problems:
        raise UserError("\n".join(problems))
    message = "--setup: the script failed with code $?"
    setup = f'source {shlex.quote(options.setup)} || {{ echo "{message}" >&2; exit 1; }}'
    # When one task ends, the others continue if they make models of their own (--wait=0), and otherwise are given time
    # to exit by themselves. ("auto" has no limit, either: if all devices make each model, the others exit when
    # heartbeats are missing.) If they were killed at once, an error that all tasks report would look like a job to
    # requeue. (SLURM sends SIGTERM to srun's tasks, since --signal lacks "B:".)
    srun = f"srun --kill-on-bad-exit=0 --wait={options.grace_seconds if is_joint else 0}"
    srun += f" --cpus-per-task={options.cpus_per_task}" * (options.cpus_per_task > 0)
    reserve = max(min(_RESERVE_SECONDS, options.grace_seconds // 4), 1)
    return [
        "#!/bin/bash",
        f"#SBATCH --job-name={name}",
        *(f"#SBATCH {line}" for line in head),
        f'#SBATCH --output="{output}"',
        "",
        f"cd -- {shlex.quote(str(folder))} || exit 1",
        *[setup] * bool(options.setup),
        *body,
        "",
        "# At its limit, SLURM would end the job for good. So srun is stopped before, and kills what has not saved.",
        f"limit=${{SLURM_JOB_END_TIME:-$(($(date +%s) + {_seconds(options.time)}))}}",
        f"left=$((limit - $(date +%s) - {reserve}))",
        f"timeout --foreground --kill-after={max(reserve // 3, 1)} $((left > 1 ? left : 1)) \\",
        " \\\n  ".join([srun, *map(shlex.quote, command), *block_flags]),
    ]


def _resources(options: SlurmOptions) -> list[str]:
    values = {
        "nodes": options.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": options.cpus_per_task,
        "gpus-per-node": options.gpus_per_node,
        "mem": options.memory,
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "constraint": options.constraint and f'"{options.constraint}"',
        "time": options.time,
        "signal": f"TERM@{options.grace_seconds}",
    }
    lines = [f"--{name}={value}" for name, value in values.items() if value]
    return [*lines, "--requeue", "--open-mode=append"]


def _escaped(path: Path) -> str:
    """Escapes a path for --output between double quotes, where % starts a replacement symbol."""
    return str(path).replace("%", "%%").replace('"', '\\"')


def _unprintable(text: str) -> str:
    """Returns why a text cannot be written into a script, or "" if it can."""
    rule = "must not contain line breaks or other unprintable characters; choose another"
    return "" if text.isprintable() else rule


def _flag(name: str) -> str:
    return f"--{name}".replace("_", "-")


def _seconds(time: str) -> int | None:
    """Returns the seconds of a time limit, or None if sbatch does not accept it."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time, re.ASCII)
    if not match:
        return None
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    units = _UNITS[3] if days is not None else _UNITS[len(parts)]
    return int(days or 0) * 86400 + sum(n * u for n, u in zip(parts, units, strict=False))


_NO_CONTROLLER = (
    "Unable to contact slurm controller",
    "Could not establish a configuration source",
)
"""Parts of the messages of SLURM commands on a machine that belongs to no running cluster."""


def _run_slurm_command(argv: Sequence[str]) -> str:
    """Runs a SLURM command and returns its output; raises UserError with its error message if it fails.

    If this process runs in a job, the variables of that job are removed, since a new job would inherit its resources.
    """
    kept_variables = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_") or k in kept_variables}
    try:
        done = subprocess.run(argv, capture_output=True, text=True, env=env)
    except OSError as error:
        raise UserError(
            f"{argv[0]}: {error.strerror}; run this where the SLURM commands are installed"
        ) from error
    if done.returncode:
        if any(text in done.stderr for text in _NO_CONTROLLER):
            raise UserError(
                f"{argv[0]}: SLURM's controller cannot be reached from this machine; run the command on a login node "
                "of the cluster"
            )
        reason = "; ".join(done.stderr.split("\n")).strip("; ") or f"code {done.returncode}"
        raise UserError(f"{shlex.join(argv)}: {reason}")
    return done.stdout


_CORPUS = "corpus.sbatch"


def _scripts_dir(sweep: Sweep) -> Path:
    return sweep.workdir.path / "slurm"


def _logs_dir(sweep: Sweep) -> Path:
    return sweep.workdir.path / "logs"


def script_texts(
    sweep: Sweep,
    planned: Sequence[jobs.RecipeJobs],
    options: SlurmOptions,
    python: Sequence[str],
    folder: Path,
    needs_corpus: bool,
    limit: int | None = None,
) -> dict[Path, str]:
    """Returns the scripts of a sweep: path -> text, in the order in which they are to be submitted.

    It reads and writes no files. CPUs and memory that the options leave open are estimated; see
    `lm_mia.plan.machine_needs`.

    Args:
      sweep: the sweep, with absolute paths.
      planned: the jobs of its recipes, each of which has blocks.
      options: the resources of a job.
      python: the command that runs Python.
      folder: absolute path of the folder in which commands run.
      needs_corpus: whether there is a script that builds the populations.
      limit: as in `script`.

    Raises:
      UserError: as `script`.
    """
    scripts, logs, texts = _scripts_dir(sweep), _logs_dir(sweep), dict[Path, str]()
    if needs_corpus:
        need = machine_needs.of_corpus([j.recipe.config for j in planned], options.cpus_per_task)
        texts[scripts / _CORPUS] = corpus_script(
            "lm_mia-corpus",
            jobs.command(sweep, python, "corpus"),
            logs,
            folder,
            _with_needs(options, need),
        )
    for j in planned:
        c, size = j.recipe.config, j.cost.batches.size
        need = machine_needs.of_models(
            c, size, options.gpus_per_node, options.cpus_per_task, j.models_per_job
        )
        texts[scripts / f"models_{j.recipe.name}.sbatch"] = script(
            "lm_mia-" + re.sub("[^A-Za-z0-9_.+-]", "-", j.recipe.name),
            jobs.job_command(sweep, python, j.recipe),
            j.blocks,
            j.models_per_job,
            j.cost.models,
            logs,
            folder,
            _with_needs(options, need),
            limit,
            c.compute.devices_per_model == "all",
        )
    return texts


def _with_needs(options: SlurmOptions, need: machine_needs.Needs) -> SlurmOptions:
    """Returns options with CPUs and memory, where the user gave none."""
    return dataclasses.replace(
        options,
        cpus_per_task=options.cpus_per_task or need.cpus,
        memory=options.memory or f"{need.memory_gib}G",
    )


def write_scripts(
    sweep: Sweep, sizes: JobSizes, options: SlurmOptions, submit_scripts: bool
) -> int:
    """Writes an array script for each recipe into ``DIR/slurm``, and one for the corpus if it is missing.

    Args:
      sweep: the sweep.
      sizes: the sizes of jobs.
      options: the resources of a job.
      submit_scripts: whether to submit the scripts.

    Raises:
      UserError: if a group of devices needs more GPUs than a node has, or as in `script` and `submit`.
    """
    sweep = jobs.with_absolute_paths(sweep)
    planned = [
        j
        for j in jobs.plan_jobs(sweep, sizes, max(options.gpus_per_node, 1), options.nodes)
        if j.blocks
    ]
    if problems := jobs.machine_problems(planned, options.gpus_per_node):
        raise UserError("\n".join(problems))
    if not planned:
        return status.print_summary(sweep)
    needs_corpus = any(not j.recipe.population_dir.exists() for j in planned)
    texts = script_texts(
        sweep, planned, options, [sys.executable], Path.cwd(), needs_corpus, array_limit()
    )
    corpus_path = _scripts_dir(sweep) / _CORPUS
    for folder in (_scripts_dir(sweep), _logs_dir(sweep)):
        folder.mkdir(parents=True, exist_ok=True)
    after: list[str] = []
    job_ids: list[str] = []
    for path, text in texts.items():
        write_atomically(path, text)
        if not submit_scripts:
            after = ["--dependency=afterok:CORPUS"] * (corpus_path in texts and path != corpus_path)
            print(shlex.join(["sbatch", *after, str(path)]))
            continue
        try:
            job_id = submit(path, after)
        except UserError as error:
            others = "; the scripts listed above were submitted" if job_ids else ""
            raise UserError(f"{path}: not submitted{others}: {error}") from error
        job_ids.append(job_id)
        print(f"{path}: job {job_id}")
        if path == corpus_path:
            after = [job_id]
    if not submit_scripts:
        note = ". CORPUS stands for the job id of the first script" * (corpus_path in texts)
        print(f"The scripts were written but not submitted; add --submit to submit them{note}")
    return 0
