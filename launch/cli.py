"""The command line: ``python -m launch VERB --config=NAME|FILE.py[:ARG] --workdir=DIR [--config.model.layers=3 ...]``.

Every engine makes the models that are missing, by the same jobs; finished models stay. The same command goes on where
an earlier one stopped, and engines may be mixed.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from launch import jobs
from launch.jobs import Sweep
from lm_mia.errors import UserError, exit_code

VERBS = {
    "plan": "what the sweep costs, and its jobs; writes nothing",
    "local": "make the missing models on this machine, one process per device",
    "slurm": "write SLURM array scripts, and submit them",
    "jobset": "write Kubernetes JobSets",
    "worker": "the same as local, for the logs of many machines that share a workdir",
    "status": "models done, running, failed and missing, and the time left",
    "corpus": "build the populations alone",
    "rows": "one job: what the engines run",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code: 3 if models were set aside or diverged, else that of `lm-mia`."""
    return exit_code(lambda: _act(list(sys.argv[1:] if argv is None else argv)))


def _act(argv: list[str]) -> int:
    if not argv or argv[0] not in VERBS:
        _top().parse_args(argv[:1])  # --help, or what is wrong
        return 2
    verb, parser = argv[0], _of_verb(argv[0])
    known, overrides = parser.parse_known_args(argv[1:])
    wrong = [
        f"--{name}: missing; say --{name}={what}"
        for name, what in (("config", "quickstart"), ("workdir", "runs/quickstart"))
        if not getattr(known, name) and (verb, name) != ("plan", "workdir")
    ]
    if verb == "status" and known.watch and (known.json or known.verify):
        wrong.append("--watch: cannot be combined with --json or --verify; leave it out")
    of_engine = _or(wrong, lambda: _options(verb, known))
    sizes = _or(wrong, lambda: jobs.sizes(known)) if verb in _SIZED else None
    found = None
    if known.config:
        found = _or(wrong, lambda: jobs.read(known.config, known.workdir or "", overrides))
    if wrong or found is None:
        raise UserError("\n".join(wrong))
    return _run(verb, known, found, sizes, of_engine)


_SIZED = ("plan", "slurm", "jobset")  # verbs that make jobs


def _or(wrong: list[str], read: Callable[[], Any]) -> Any:
    """What is read; None, and a line more, if it is wrong."""
    try:
        return read()
    except UserError as error:
        wrong.append(str(error))
        return None


def _options(verb: str, known: argparse.Namespace) -> Any:
    """What the flags of an engine say."""
    if verb == "slurm":
        from launch import slurm

        return slurm.slurm(known)
    if verb == "jobset":
        from launch import kubernetes

        return kubernetes.pods(known)
    return None


def _run(verb: str, known: argparse.Namespace, found: Sweep, sizes: Any, of: Any) -> int:
    # here, so that plan and mistakes are told at once
    if verb == "plan":
        jobs.show(found, sizes, as_json=known.json, look=known.workdir is not None)
        return 0
    if verb == "status":
        from launch import status

        status.show(found, as_json=known.json, watch=known.watch, verify=known.verify)
        return 0
    if verb in ("local", "worker"):
        from launch import local

        return local.run(found) if verb == "local" else local.worker(found)
    if verb == "rows":
        from launch import model_block

        return model_block.run(jobs.task_of(found, known.recipe), known.rows, known.job, known.log)
    from launch import kubernetes, slurm

    if verb == "corpus":
        return jobs.corpus(found)
    if verb == "slurm":
        return slurm.slurm_scripts(found, sizes, of, known.submit)
    return kubernetes.jobsets(found, sizes, of, Path(known.output))


def _top() -> argparse.ArgumentParser:
    parser = _Parser(
        "python -m launch",
        description="Sweeps of lm_mia on one machine or many.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.epilog = "\n".join(
        [
            *(f"  {verb:8} {what}" for verb, what in VERBS.items()),
            "",
            "`python -m launch VERB --help` lists the flags of a verb. Example:",
            "  python -m launch plan --config=configs/c4.py --device=h100",
        ]
    )
    parser.add_argument("verb", choices=VERBS, metavar="VERB")
    return parser


def _of_verb(verb: str) -> argparse.ArgumentParser:
    parser = _Parser(f"python -m launch {verb}", allow_abbrev=False, description=VERBS[verb])
    config = "may define sweep(); its fields are flags: --config.section.field=value"
    parser.add_argument("--config", metavar="NAME|FILE.py[:ARG]", help=config)
    folder = "of the sweep; used again to go on"
    parser.add_argument("--workdir", metavar="DIR", help=folder)
    if verb in ("plan", "status"):
        parser.add_argument("--json", action="store_true", help="for scripts")
    if verb == "status":
        parser.add_argument("--watch", action="store_true", help="until no model is missing")
        verify = "read every score, and name what is missing or corrupt"
        parser.add_argument("--verify", action="store_true", help=verify)
    if verb == "rows":
        parser.add_argument("--recipe", required=True, metavar="KEY", help="eight hex digits")
        parser.add_argument("--rows", required=True, metavar="BEGIN:END", help="of the recipe")
        parser.add_argument("--job", default="", metavar="NAME", help="for status")
        parser.add_argument("--log", default="", metavar="PLACE", help="of the output, for status")
    if verb in _SIZED:
        jobs.flags(parser)
    if verb == "slurm":
        from launch import slurm

        slurm.flags(parser)
        parser.add_argument("--submit", action="store_true", help="by sbatch")
    if verb == "jobset":
        from launch import kubernetes

        kubernetes.flags(parser)
        output = "of the manifests, here; jobset"
        parser.add_argument("--output", metavar="DIR", default="jobset", help=output)
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message}; see {self.prog} --help")
