"""The command line: ``lm-mia VERB --config=NAME|FILE.py[:ARG] --workdir=DIR [--config.model.layers=3 ...]``.

run = corpus, then train and score model by model, then attack and extract, then report. Every verb makes what is
missing and leaves what is there, so that the same command goes on where an earlier one stopped, however it stopped.
Once the workdir has a config.json, ``--config`` may be left out.

This module is above all packages. It loads them late, since some of them take seconds to load: ``--help``, ``plan`` and
messages about mistakes come at once.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence

import tyro

from lm_mia.config import Config, load
from lm_mia.errors import UserError, collect, exit_code
from lm_mia.run import plan
from lm_mia.run import sweep as sweeps
from lm_mia.run.progress import Display
from lm_mia.run.sweep import Sweep

VERBS = {
    "run": "everything from corpus to report, in order",
    "corpus": "documents -> vocabulary and population",
    "train": "train the models that are missing",
    "score": "score the models that are trained",
    "attack": "scores -> tables",
    "extract": "the highest scores -> how far these samples can be extracted",
    "report": "tables -> figures and report.html",
    "status": "what is there, what is missing, and what is being made",
    "plan": "what the config and its sweep cost; runs nothing",
    "launch": "a sweep as jobs on one machine or many: lm-mia launch --help",
    "fields": "all fields of a config, which are flags: --config.section.field=value",
}
_ELSEWHERE = {
    "--from-hf-shards": "lm-mia corpus",
    "--repair": "lm-mia score",
    "--verify": "lm-mia status",
    "--watch": "lm-mia status",
    "--json": "lm-mia plan and lm-mia status",
    "--device": "lm-mia plan",
    "--mfu": "lm-mia plan",
    "--tokens-per-sample": "lm-mia plan",
}
"""Flags of some verbs only."""
_CONFIG = (
    "the name of an included config, such as quickstart, or a Python file with get_config(), to which ARG goes; may be "
    "left out if the workdir has a config.json"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code of `exit_code`."""
    return exit_code(lambda: _act(list(sys.argv[1:] if argv is None else argv)))


def _act(argv: list[str]) -> int:
    if not argv or argv[0] not in VERBS:
        _top().parse_args(argv[:1])  # --help, or what is wrong
        return 2
    verb, argv = argv[0], argv[1:]
    if verb in ("launch", "status"):
        from launch import cli

        return (
            cli.main(argv, "lm-mia launch")
            if verb == "launch"
            else cli.main(["status", *argv], "lm-mia")
        )
    if verb == "fields":
        tyro.cli(_Fields, prog="lm-mia VERB", args=["--help"])
    known, sweep = _read(verb, argv)
    if verb == "plan":
        plan.show(sweep, plan.chip_of(known.device, known.mfu), known.tokens_per_sample, known.json)
        return 0
    if verb in ("corpus", "train", "score"):
        return _models(verb, sweep, known)
    return _tables(verb, sweep)


def _models(verb: str, sweep: Sweep, known: argparse.Namespace) -> int:
    """Makes populations or models, and prints where they are."""
    from lm_mia.run import pipeline

    shards = known.from_hf_shards or "" if verb == "corpus" else ""
    repair = verb == "score" and known.repair
    done, wrong = pipeline.run(verb, sweep, from_hf_shards=shards, repair=repair)
    _check(wrong)
    tasks = done.tasks if done else ()
    if verb == "corpus":
        answers = [f"population: {task.population}" for task in tasks]
    else:
        answers = [f"scores: {task.folder / 'scores.zarr'}" for task in tasks]
    for line in dict.fromkeys(answers):
        print(line)
    return 0


def _tables(verb: str, sweep: Sweep) -> int:
    """Makes tables and the page, and what they need, and prints the results."""
    from analysis import page
    from lm_mia.run import pipeline

    if "report" in pipeline.STAGES[verb]:
        page.check_figures(sweep.figures)

    def draw(sweep: Sweep, display: Display) -> None:
        names = [task.name for task in sweep.tasks]
        page.write_page(sweep.workdir.path, names, sweep.figures, display.update, display.say)

    done, wrong = pipeline.run(verb, sweep, draw)
    if done:
        print(*page.answers(done.workdir.path, [task.name for task in done.tasks]), sep="\n")
    _check(wrong)
    return 0


def _check(wrong: Sequence[str]) -> None:
    """UserError with what went wrong while other models or recipes went on, if anything did."""
    if wrong:
        raise UserError("\n".join(wrong))


def _read(verb: str, argv: Sequence[str]) -> tuple[argparse.Namespace, Sweep]:
    """Returns the flags of a verb and the recipes that it is about; UserError with a line for every mistake."""
    wrong: list[str] = []
    known, overrides = _parser(verb).split(argv, wrong)
    if verb == "plan":
        collect(wrong, lambda: plan.chip_of(known.device, known.mfu))
    sweep = sweeps.from_flags(known, overrides, wrong, needs_workdir=verb != "plan")
    if sweep and verb == "plan":
        collect(wrong, lambda: plan.check_tokens(known.tokens_per_sample, sweep))
    if sweep and verb == "corpus" and known.from_hf_shards is not None:
        collect(wrong, lambda: _check_shards(known.from_hf_shards, sweep))
    if wrong or sweep is None:
        raise UserError("\n".join(wrong))
    return known, sweep


def _check_shards(pattern: str, sweep: Sweep) -> None:
    flag = f"--from-hf-shards={pattern!r}"
    if not pattern:
        raise UserError(f"{flag}: must name files; try 'hf/c4-*.json.gz'")
    if sweep.tasks[0].config.corpus.source != "c4":
        raise UserError(f"{flag}: only with --config.corpus.source=c4")
    if len(sweep.tasks) > 1:
        raise UserError(f"{flag}: takes one config, not a sweep; try --config=configs/c4.py:140M")


def _top() -> argparse.ArgumentParser:
    parser = load.Parser(
        "lm-mia", description="Membership inference on language models, from text to attack tables."
    )
    parser.epilog = "\n".join(
        [
            *(f"  {verb:8} {what}" for verb, what in VERBS.items()),
            "",
            "`lm-mia VERB --help` lists the flags of a verb. Example:",
            "  lm-mia run --config=quickstart --workdir=runs/quickstart --config.model.layers=3",
        ]
    )
    parser.add_argument("verb", choices=[*VERBS], metavar="VERB")
    return parser


def _parser(verb: str) -> load.Parser:
    parser = load.Parser(f"lm-mia {verb}", _ELSEWHERE, description=VERBS[verb])
    parser.epilog = (
        "Fields of the config are flags too: --config.model.layers=3; `lm-mia fields` lists them."
    )
    parser.add_argument("--config", metavar="NAME|FILE.py[:ARG]", help=_CONFIG)
    folder = "where everything is written; the same folder continues an earlier command"
    parser.add_argument("--workdir", metavar="DIR", help=folder)
    if verb == "corpus":
        shards = "first make C4 at corpus.path of these json.gz files of allenai/c4"
        parser.add_argument("--from-hf-shards", "--from_hf_shards", metavar="GLOB", help=shards)
    elif verb == "score":
        repair = "remove corrupt scores and make them again"
        parser.add_argument("--repair", action="store_true", help=repair)
    elif verb == "plan":
        plan.flags(parser)
    return parser


@dataclasses.dataclass(frozen=True)
class _Fields:
    """Every field of a config, its default and what it means; a config file sets its own defaults."""

    config: Config


if __name__ == "__main__":
    sys.exit(main())
