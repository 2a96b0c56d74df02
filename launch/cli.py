"""The command line: ``python -m launch VERB --config=NAME|FILE.py[:ARG] --workdir=DIR [--config.model.layers=3 ...]``.

The engines `local`, `worker`, `slurm` and `jobset` make the missing models with the same kind of jobs, and keep
finished ones. Repeating a command continues where the earlier one stopped, and engines may be mixed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch import jobs
from lm_mia.config import load
from lm_mia.errors import UserError, collect_errors, run_action
from lm_mia.run import sweep as sweeps
from lm_mia.run.sweep import Sweep

VERBS = {
    "plan": "estimate the cost of a sweep and list its jobs; writes nothing",
    "local": "make the missing models on this machine, one process per device",
    "slurm": "write SLURM array scripts, and optionally submit them",
    "jobset": "write Kubernetes JobSet manifests",
    "worker": "like local, but print log lines only; for machines that share a workdir",
    "status": "show which models are done, running, failed and missing, and the remaining time",
    "corpus": "build the populations, without making any models",
    "make-models": "make a block of models of one recipe; jobs run this command",
}

_SIZED = ("plan", "slurm", "jobset")  # verbs that divide the models into jobs
_FLAGS_OF_VERBS = {
    "launch plan, slurm and jobset": (
        *("--models-per-job", "--job-hours", "--device", "--mfu", "--tokens-per-sample"),
    ),
    "launch slurm and jobset": ("--nodes", "--grace-seconds", "--memory"),
    "launch slurm": (
        *("--gpus-per-node", "--cpus-per-task", "--at-once", "--time", "--partition", "--account"),
        *("--qos", "--constraint", "--setup", "--submit"),
    ),
    "launch jobset": (
        *("--image", "--tpu-type", "--topology", "--chips-per-host", "--gpus", "--gpu-type"),
        *("--queue", "--namespace", "--claim", "--mount", "--restarts", "--output", "--cpus"),
    ),
    "launch plan and status": ("--json",),
    "launch status": ("--watch", "--verify"),
    "launch make-models": (
        *("--recipe", "--recipe-hash", "--models", "--job", "--log", "--workers"),
        "--devices-per-model",
    ),
    "lm-mia score": ("--repair",),
    "lm-mia corpus": ("--from-hf-shards",),
}
_VERBS_OF_FLAG = {flag: verbs for verbs, flags in _FLAGS_OF_VERBS.items() for flag in flags}
"""Maps each flag that only some verbs accept to these verbs, for error messages."""


def main(argv: Sequence[str] | None = None, prog: str = "python -m launch") -> int:
    """Entry point; returns the exit code: 3 if models were set aside or diverged, else as `lm-mia` does."""
    argv = list(sys.argv[1:] if argv is None else argv)
    return run_action(lambda: _run_command(argv, prog), argv)


def _run_command(argv: list[str], prog: str) -> int:
    if not argv or argv[0] not in VERBS:
        if argv:
            load.check_verb(prog, argv[0], [*VERBS])
        _top_parser(prog).parse_args(argv[:1])  # prints the help or raises an error
        return 2
    verb = argv[0]
    problems: list[str] = []
    args, overrides = _parser_of_verb(verb, prog).parse_flags(argv[1:], problems)
    sweep = sweeps.sweep_from_flags(
        args, overrides, problems, needs_workdir=verb != "plan", attacks=verb != "status"
    )
    if verb == "status" and args.watch and (args.json or args.verify):
        problems.append("--watch: cannot be combined with --json or --verify; leave it out")
    if verb == "make-models" and args.workers < 0:
        problems.append(
            f"--workers={args.workers}: must be at least 0; 0 uses train.workers of the config"
        )
    if verb == "make-models" and (args.devices_per_model or 0) < 0:
        problems.append(
            f"--devices-per-model={args.devices_per_model}: must be at least 0; 0 uses all devices of the job"
        )
    options = collect_errors(problems, lambda: _options(verb, args))
    sizes = collect_errors(problems, lambda: jobs.parse_sizes(args)) if verb in _SIZED else None
    if sweep and not problems and verb != "status":
        sweeps.check_attacked(sweep.recipes)
    if problems or sweep is None:
        raise UserError("\n".join(problems))
    return _run_verb(verb, args, sweep, sizes, options)


def _options(verb: str, args: argparse.Namespace) -> Any:
    if verb == "slurm":
        from launch import slurm

        return slurm.parse_options(args)
    if verb == "jobset":
        from launch import kubernetes

        return kubernetes.parse_options(args)
    return None


def _run_verb(verb: str, args: argparse.Namespace, sweep: Sweep, sizes: Any, options: Any) -> int:
    # Imported here, so that plans and error messages appear at once.
    if verb not in ("plan", "status"):
        sweeps.require_recipes(sweep, f"launch {verb}")
    if verb == "plan":
        jobs.print_plan(sweep, sizes, as_json=args.json, read_workdir=args.workdir is not None)
        return 0
    if verb == "status":
        from launch import status

        status.print_status(sweep, as_json=args.json, watch=args.watch, verify=args.verify)
        return 0
    if verb in ("local", "worker"):
        from launch import local

        return local.run(sweep) if verb == "local" else local.worker(sweep)
    if verb == "make-models":
        from launch import model_block

        recipe = jobs.find_recipe(sweep, args.recipe, args.recipe_hash)
        return model_block.run(
            sweep,
            recipe,
            args.models,
            args.job,
            args.log,
            args.workers,
            args.devices_per_model,
        )
    from launch import kubernetes, slurm

    if verb == "corpus":
        return jobs.build_corpus(sweep)
    if verb == "slurm":
        return slurm.write_scripts(sweep, sizes, options, args.submit)
    return kubernetes.write_jobsets(sweep, sizes, options, Path(args.output))


def _top_parser(prog: str) -> argparse.ArgumentParser:
    parser = load.Parser(prog, description="Runs sweeps of lm_mia as jobs on one or more machines.")
    parser.epilog = "\n".join(
        [
            "verbs:",
            *(f"  {verb:12} {summary}" for verb, summary in VERBS.items()),
            "",
            f"`{prog} VERB --help` lists the flags of a verb. Example:",
            f"  {prog} plan --config=c4 --device=h100",
        ]
    )
    parser.add_argument("verb", choices=VERBS, metavar="VERB", help="one of the verbs below")
    return parser


def _parser_of_verb(verb: str, prog: str) -> load.Parser:
    summary = VERBS[verb]
    description = f"{summary[0].upper()}{summary[1:]}."
    parser = load.Parser(f"{prog} {verb}", _VERBS_OF_FLAG, description=description)
    config = (
        "name of an included config, or a Python file; optional if the workdir has a config.json. Each field of the "
        "config is a flag, too: --config.section.field=value"
    )
    parser.add_argument("--config", metavar="NAME|FILE.py[:ARG]", help=config)
    folder = "output folder; a command continues from the results that it already contains"
    parser.add_argument("--workdir", metavar="DIR", help=folder)
    if verb in ("plan", "status"):
        parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    if verb == "status":
        parser.add_argument(
            "--watch", action="store_true", help="refresh until no model is missing or running"
        )
        verify = "also read all scores, and list missing and corrupt files"
        parser.add_argument("--verify", action="store_true", help=verify)
    if verb == "make-models":
        parser.add_argument(
            "--recipe", required=True, metavar="NAME", help="name of a recipe of the sweep"
        )
        digest = "hash of the recipe when the job was written; the job fails if the config has changed since then"
        parser.add_argument("--recipe-hash", default="", metavar="HEX", help=digest)
        parser.add_argument(
            "--models",
            required=True,
            metavar="BEGIN:END",
            help="range of models of the recipe, such as 8:16, where END is exclusive",
        )
        parser.add_argument(
            "--job",
            default="",
            metavar="NAME",
            help="name of the job, shown by status (default: host and process id)",
        )
        parser.add_argument(
            "--log",
            default="",
            metavar="TEXT",
            help="where the output of the job can be read, shown by status",
        )
        workers = "number of worker processes (default: train.workers of the config)"
        parser.add_argument("--workers", type=int, default=0, metavar="N", help=workers)
        group = "number of devices that make one model together (default: compute.devices_per_model of the config)"
        parser.add_argument("--devices-per-model", type=int, metavar="K", help=group)
    if verb in _SIZED:
        jobs.add_flags(parser)
    if verb == "slurm":
        from launch import slurm

        slurm.add_flags(parser)
        parser.add_argument(
            "--submit", action="store_true", help="also submit the scripts with sbatch"
        )
    if verb == "jobset":
        from launch import kubernetes

        kubernetes.add_flags(parser)
        output = "folder for the manifests (default: jobset)"
        parser.add_argument("--output", metavar="DIR", default="jobset", help=output)
    return parser
