"""The command line: ``lm-mia VERB --config=NAME|FILE.py[:ARG] --workdir=DIR [--config.model.layers=3 ...]``.

``run`` builds the corpus, trains and scores the models one by one, attacks and extracts, and writes the report. Every
verb makes what is missing and leaves what exists, so that repeating a command continues from where an earlier one
stopped, for whatever reason. Once the workdir has a config.json, ``--config`` may be left out.

This module may import every package. It imports most of them only when they are needed, since some take seconds to
load: ``--help``, ``plan`` and error messages appear at once.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Literal

import tyro

from lm_mia.config import Config, load
from lm_mia.errors import UserError, collect_errors, exit_code
from lm_mia.run import plan
from lm_mia.run import sweep as sweeps
from lm_mia.run.progress import Display
from lm_mia.run.stages import STAGES, Verb
from lm_mia.run.sweep import Sweep

VERBS = {
    "run": "run all stages in order, from corpus to report",
    "corpus": "build the vocabulary and the population from documents",
    "train": "train the models that are missing",
    "score": "score the trained models",
    "attack": "attack the scores and write the tables",
    "extract": "compute how easily the samples with the highest scores can be extracted",
    "report": "draw the figures and write report.html",
    "status": "show what is finished, missing and running",
    "plan": "estimate what the config and its sweep cost; runs nothing",
    "launch": "run a sweep as jobs on one or more machines: see lm-mia launch --help",
    "fields": "list all fields of a config; each is a flag: --config.section.field=value",
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
"""Flags that only some verbs take, and these verbs."""
_CONFIG = (
    "the name of an included config, such as quickstart, or a Python file whose get_config() gets ARG; may be left "
    "out if the workdir has a config.json"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code, as `exit_code` defines it."""
    return exit_code(lambda: _act(list(sys.argv[1:] if argv is None else argv)))


def _act(argv: list[str]) -> int:
    if not argv or argv[0] not in VERBS:
        _top().parse_args(argv[:1])  # prints the help or raises an error
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
        plan.print_plan(
            sweep, plan.parse_chip(known.device, known.mfu), known.tokens_per_sample, known.json
        )
        return 0
    if verb in ("corpus", "train", "score"):
        return _models(verb, sweep, known)
    assert verb in ("run", "attack", "extract", "report")
    return _tables(verb, sweep)


def _models(
    verb: Literal["corpus", "train", "score"], sweep: Sweep, known: argparse.Namespace
) -> int:
    """Makes populations or models, and prints their paths."""
    from lm_mia.run import pipeline

    shards = known.from_hf_shards or "" if verb == "corpus" else ""
    repair = verb == "score" and known.repair
    done, wrong = pipeline.run(verb, sweep, from_hf_shards=shards, repair=repair)
    _check(wrong)
    tasks = done.recipes if done else ()
    if verb == "corpus":
        answers = [f"population: {task.population_dir}" for task in tasks]
    else:
        answers = [f"scores: {task.folder / 'scores.zarr'}" for task in tasks]
    for line in dict.fromkeys(answers):
        print(line)
    return 0


def _tables(verb: Verb, sweep: Sweep) -> int:
    """Makes the tables and the report page, and whatever they need, and prints the results."""
    from analysis import page
    from lm_mia.run import pipeline

    if {"attack", "report"} & {*STAGES[verb]}:
        page.check_figures(sweep.figures)
    needs = page.figure_needs(sweep.figures) if "attack" in STAGES[verb] else []

    def draw(sweep: Sweep, display: Display) -> None:
        names = [task.name for task in sweep.recipes]
        page.write_page(sweep.workdir.path, names, sweep.figures, display.update, display.say)

    done, wrong = pipeline.run(verb, sweep, draw, needs)
    if done:
        print(
            *page.summary_lines(done.workdir.path, [task.name for task in done.recipes]), sep="\n"
        )
    _check(wrong)
    return 0


def _check(wrong: Sequence[str]) -> None:
    """Raises UserError with the failures that did not stop the other models or recipes, if there are any."""
    if wrong:
        raise UserError("\n".join(wrong))


def _read(verb: str, argv: Sequence[str]) -> tuple[argparse.Namespace, Sweep]:
    """Returns the flags of a verb and its recipes; raises UserError with one line per mistake."""
    wrong: list[str] = []
    known, overrides = _parser(verb).parse_flags(argv, wrong)
    if verb == "plan":
        collect_errors(wrong, lambda: plan.parse_chip(known.device, known.mfu))
    sweep = sweeps.sweep_from_flags(known, overrides, wrong, needs_workdir=verb != "plan")
    if sweep and verb == "plan":
        collect_errors(wrong, lambda: plan.check_tokens(known.tokens_per_sample, sweep))
    if sweep and verb == "corpus" and known.from_hf_shards is not None:
        collect_errors(wrong, lambda: _check_shards(known.from_hf_shards, sweep))
    if wrong or sweep is None:
        raise UserError("\n".join(wrong))
    return known, sweep


def _check_shards(pattern: str, sweep: Sweep) -> None:
    flag = f"--from-hf-shards={pattern!r}"
    if not pattern:
        raise UserError(f"{flag}: must be a path or a glob; try 'hf/c4-*.json.gz'")
    if sweep.recipes[0].config.corpus.source != "c4":
        raise UserError(f"{flag}: works only with C4; add --config.corpus.source=c4")
    if len(sweep.recipes) > 1:
        raise UserError(
            f"{flag}: works only with a single recipe, not a sweep; try --config=configs/c4.py:140M"
        )


def _top() -> argparse.ArgumentParser:
    parser = load.Parser(
        "lm-mia", description="Membership inference on language models, from text to attack tables."
    )
    parser.epilog = "\n".join(
        [
            *(f"  {verb:8} {summary}" for verb, summary in VERBS.items()),
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
    folder = "output folder; using the same folder again continues an earlier command"
    parser.add_argument("--workdir", metavar="DIR", help=folder)
    if verb == "corpus":
        shards = "first convert these json.gz files of allenai/c4 to a C4 dataset at corpus.path"
        parser.add_argument("--from-hf-shards", "--from_hf_shards", metavar="GLOB", help=shards)
    elif verb == "score":
        repair = "remove corrupt scores and compute them again"
        parser.add_argument("--repair", action="store_true", help=repair)
    elif verb == "plan":
        plan.add_flags(parser)
    return parser


@dataclasses.dataclass(frozen=True)
class _Fields:
    """All fields of a config, with their defaults and meanings; a config file may set other defaults."""

    config: Config


if __name__ == "__main__":
    sys.exit(main())
