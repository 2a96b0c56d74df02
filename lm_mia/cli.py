"""The command line: ``lm-mia VERB --config=NAME|FILE.py[:ARG] --workdir=DIR [--config.model.layers=3 ...]``.

run = corpus, then train and score row by row, then attack, then report. Every verb makes what is missing and leaves
what is there, so that the same command goes on where an earlier one stopped, however it stopped.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import tyro

from lm_mia.config import Config, load
from lm_mia.config.recipe import Entry
from lm_mia.errors import UserError, exit_code
from lm_mia.run import plan, sweep
from lm_mia.run.workdir import Workdir

_CONFIG = "the name of an included config, such as quickstart, or a file with get_config(), to which ARG goes"
VERBS = {
    "plan": "what the config and its sweep cost; runs nothing",
    "run": "everything below, in order",
    "corpus": "documents -> vocabulary and population",
    "train": "train the rows that are missing",
    "score": "score the rows that are trained",
    "attack": "scores -> tables",
    "extract": "the highest scores -> how far these samples can be extracted",
    "report": "tables -> figures and report.html",
    "status": "what is there and what is missing",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code of `exit_code`."""
    return exit_code(lambda: _act(sys.argv[1:] if argv is None else argv))


def _act(argv: Sequence[str]) -> int:
    arguments = _arguments(argv)
    if arguments is None:
        return 0
    # here, since they take seconds to load: plan, --help and mistakes are told at once
    from lm_mia.run import pipeline, status, sweep_pipeline

    of = arguments
    if not sweep.is_alone(of.entries):
        tasks, c = sweep.tasks(str(of.workdir), of.entries), of.entries[0][1]
        if of.verb == "status":
            sweep_pipeline.status(tasks, of.workdir, of.verify)
        else:
            sweep_pipeline.work(of.verb, tasks, of.workdir, c, of.repair)
        return 0
    sweep.check_alone(of.workdir)
    [(_, c)], workdir = of.entries, Workdir(of.workdir)
    if c.figures and of.verb in ("run", "report"):
        raise UserError(
            f"figures={c.figures!r}: are of a sweep, or of a config with a name; try --config.name=main"
        )
    if of.verb == "status":
        status.show(c, workdir, of.verify)
    else:
        pipeline.work(of.verb, c, workdir, of.from_hf_shards, of.repair)
    return 0


class _Arguments(NamedTuple):
    verb: str
    entries: list[Entry]
    workdir: Path
    from_hf_shards: str
    verify: bool
    repair: bool


def _arguments(argv: Sequence[str]) -> _Arguments | None:
    """What is asked for; None once a verb that needs no more (fields, plan) has printed all."""
    parser = _Parser(
        prog="lm-mia", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.description = "Membership inference on language models, from text to attack tables."
    parser.epilog = "\n".join(
        [
            *(f"  {verb:8} {what}" for verb, what in VERBS.items()),
            "",
            "Fields of the config: lm-mia fields. Example:",
            "  lm-mia run --config=quickstart --workdir=runs/quickstart --config.model.layers=3",
        ]
    )
    parser.add_argument("verb", choices=[*VERBS, "fields"], metavar="VERB")
    parser.add_argument("--config", metavar="NAME|FILE.py[:ARG]", help=_CONFIG)
    parser.add_argument(
        "--workdir", metavar="DIR", help="where everything is written; used again to go on"
    )
    parser.add_argument(
        "--from-hf-shards",
        "--from_hf_shards",
        metavar="GLOB",
        help="corpus: make C4 at corpus.path of these json.gz files of allenai/c4 first",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="status: read every score, and name what is missing or corrupt",
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help="score: also remove what is corrupt, and make it again",
    )
    of_plan = plan.flags(parser)
    known, rest = parser.parse_known_args(argv)
    if known.verb == "fields":
        tyro.cli(_Fields, prog="lm-mia VERB", args=["--help"])
    wrong = [
        f"--{name}: missing; say --{name}={what}"
        for name, what in (("config", "quickstart"), ("workdir", "runs/quickstart"))
        if not getattr(known, name) and (known.verb, name) != ("plan", "workdir")
    ]
    wrong += [
        f"--{name.replace('_', '-')}: only for `lm-mia plan`"
        for name in of_plan
        if known.verb != "plan" and getattr(known, name) is not None
    ]
    wrong += [
        f"--{flag}: only for `lm-mia {verb}`"
        for flag, verb in (("verify", "status"), ("repair", "score"))
        if getattr(known, flag) and known.verb != verb
    ]
    shards = known.from_hf_shards
    not_here = (
        f"--from-hf-shards={shards!r}: only for `lm-mia corpus` with --config.corpus.source=c4"
    )
    if shards is not None and known.verb != "corpus":
        wrong.append(not_here)
    elif shards == "":
        wrong.append("--from-hf-shards='': must name files; try 'hf/c4-*.json.gz'")
    if wrong and known.config:  # the mistakes in the config too
        try:
            load.sweep(known.config, rest)
        except UserError as error:
            wrong.append(str(error))
    if wrong:
        raise UserError("\n".join(wrong))
    if known.verb == "plan":
        plan.show(known, rest)
        return None
    entries = load.sweep(known.config, rest)
    if shards and entries[0][1].corpus.source != "c4":
        raise UserError(not_here)
    if shards and not sweep.is_alone(entries):
        raise UserError(
            f"--from-hf-shards={shards!r}: takes one config, not a sweep; try --config=configs/c4.py:140M"
        )
    flags = shards or "", known.verify, known.repair
    return _Arguments(known.verb, entries, Path(known.workdir), *flags)


@dataclasses.dataclass(frozen=True)
class _Fields:
    """Every field of a config, its default and what it means; a config file sets its own defaults."""

    config: Config


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"lm-mia: {message}; see lm-mia --help")


if __name__ == "__main__":
    sys.exit(main())
