"""The command line: ``lm-mia VERB --config=NAME|FILE.py[:ARG] --workdir=DIR [--config.model.layers=3 ...]``.

``run`` builds the corpus, trains, scores and attacks the models, extracts samples and writes the report. Each verb
computes what is missing and keeps what exists, so repeating a command continues where an earlier one stopped. Once
the workdir has a config.json, ``--config`` may be left out.

This module may import every package. Most imports happen only when they are needed, since some take seconds:
``--help``, ``plan`` and error messages appear at once.
"""

import argparse
import dataclasses
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_type_hints

import tyro

from lm_mia import top_level
from lm_mia.attacks.spec import FigureNeed
from lm_mia.config import Config, load
from lm_mia.config.fields import describe
from lm_mia.errors import UserError, collect_errors, run_action
from lm_mia.machine import package_version
from lm_mia.plan import plan
from lm_mia.printing import format_bytes, plural
from lm_mia.run import sweep as sweeps
from lm_mia.run.progress import Display
from lm_mia.run.stages import STAGES, Verb
from lm_mia.run.sweep import Sweep
from lm_mia.run.workdir import Workdir

if TYPE_CHECKING:
    from lm_mia.attacks.unchanged import Inputs

VERBS = {
    "run": "run all stages in order, from corpus to report",
    "corpus": "build the vocabulary and the population from documents",
    "train": "train the missing models",
    "score": "score the trained models",
    "attack": "attack the scored models and write the tables",
    "extract": "compute how easily samples can be extracted from a model",
    "report": "draw the figures and write report.html",
    "status": "show which models are done, running and missing",
    "rm": "delete what is not needed: unused results of attacks, a recipe, or its checkpoints",
    "plan": "estimate the cost of a config and its sweep, and what more references would add",
    "import": "write losses of models that were trained elsewhere to a workdir",
    "audit": "audit a file of scores or losses of any models: AUC, TPR, and epsilon with valid bounds",
    "hf-losses": "compute the losses of models of Hugging Face on texts, for import and audit",
    "hf-train": "fine-tune a Hugging Face model several times, each time on a random half of the texts",
    "canaries": "make canaries for a model that is trained elsewhere, and toss their coins",
    "launch": "run a sweep as jobs on one or more machines; see lm-mia launch --help",
    "fields": "list all fields of a config; each is a flag, --config.section.field=value",
}
_FLAGS_OF_OTHER_VERBS = {
    "--from-hf-shards": "lm-mia corpus",
    "--repair": "lm-mia score",
    "--figure": "lm-mia report",
    "--verify": "lm-mia status",
    "--watch": "lm-mia status",
    "--json": "lm-mia plan and lm-mia status",
    "--verbose": "lm-mia plan",
    "--device": "lm-mia plan",
    "--mfu": "lm-mia plan",
    "--tokens-per-sample": "lm-mia plan",
    "--name": "lm-mia import",
    "--subset": "lm-mia import",
}
"""Maps each flag that only some verbs accept to these verbs, for error messages."""
_CONFIG_HELP = (
    "name of an included config, such as quickstart, or a Python file whose get_config() is called with ARG; may be "
    "left out if the workdir has a config.json"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns its exit code, as defined by `lm_mia.errors.run_action`."""
    argv = list(sys.argv[1:] if argv is None else argv)
    return run_action(lambda: _run(argv), argv)


def _run(argv: list[str]) -> int:
    if not argv or argv[0] not in VERBS:
        if argv:
            load.check_verb("lm-mia", argv[0], [*VERBS])
        _top_parser().parse_args(argv[:1])  # prints the help or the version, or raises an error
        return 2
    verb, argv = argv[0], argv[1:]
    top_level.import_packages()
    if verb in ("launch", "status"):
        from launch import cli

        if verb == "launch":
            return cli.main(argv, "lm-mia launch")
        return cli.main(["status", *argv], "lm-mia")
    if verb == "fields":
        if argv and not {*argv} <= {"-h", "--help"}:
            raise UserError(
                f"{argv[0]}: `lm-mia fields` takes no flags, since it prints the default values; leave it out"
            )
        _print_fields()
    if verb == "import":
        return _import_losses(argv)
    if verb == "audit":
        return _audit(argv)
    if verb == "hf-losses":
        return _hf_losses(argv)
    if verb == "hf-train":
        return _hf_train(argv)
    if verb == "canaries":
        return _canaries(argv)
    if verb == "rm":
        return _remove(argv)
    options, sweep = _read(verb, argv)
    if verb == "plan":
        chip = plan.choose_chip(options.device, options.mfu)
        plan.print_plan(
            sweep, chip, options.tokens_per_sample, options.json, _needs_of_every_recipe
        )
        if options.verbose and not options.json:
            plan.print_architectures(sweep)
        return 0
    if verb in ("corpus", "train", "score"):
        return _make_models(verb, sweep, options)
    assert verb in ("run", "attack", "extract", "report")
    return _make_tables(verb, sweep, options.figure if verb == "report" else ())


def _needs_of_every_recipe() -> list[FigureNeed]:
    from analysis import experiments

    return [*experiments.of_every_recipe()]


def _import_losses(argv: Sequence[str]) -> int:
    summary = VERBS["import"]
    parser = load.Parser(
        "lm-mia import",
        description=f"{summary[0].upper()}{summary[1:]}; `lm-mia attack` then attacks them.",
    )
    parser.epilog = "Settings of the attack are flags, too: --config.attack.targets=8; `lm-mia fields` lists them."
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default="",
        help="losses in nats per token: the arrays loss_MxN and member_MxN (npz, netCDF, Zarr), or a table (csv, tsv, "
        "jsonl, parquet, Arrow) with the columns loss_NAME and member_NAME, or model, id, loss and member; see "
        "docs/how-to/import-losses.md",
    )
    parser.add_argument("--workdir", metavar="DIR", help="folder to which the losses are written")
    parser.add_argument(
        "--name", metavar="NAME", help="name of the recipe (default: that of the file)"
    )
    parser.add_argument(
        "--subset",
        metavar="DESIGN",
        default="given",
        help="how the members of each model were drawn. given (default): in an unknown way; exact: half of them; "
        "bernoulli: each with probability 1/2; balanced: halves, and every second model has the complement",
    )
    parser.add_argument(
        "--target",
        type=lambda names: tuple(filter(None, names.split(","))),
        default=(),
        metavar="A,B,...",
        help="names of the attacked models, unless the file says the role of each",
    )
    parser.add_argument(
        "--base",
        default="",
        metavar="NAME",
        help="name of the model that the others were fine-tuned from, which saw none of the texts",
    )
    _add_text_column(parser)
    _add_unit_flag(parser)
    problems: list[str] = []
    options, overrides = parser.parse_flags(argv, problems)
    from lm_mia.audits import importing

    name = importing.read_flags(options.file, options.name, options.subset, problems)
    if not options.file:
        problems.append("FILE: missing; add the path of a file, such as losses.npz")
    if not options.workdir:
        problems.append("--workdir: missing; add --workdir=runs/imported")
    if problems:
        raise UserError("\n".join(problems))
    from lm_mia.run import progress

    with progress.display(overall=False) as display:
        lines = importing.import_source(
            Path(options.file),
            options.workdir,
            name,
            options.subset,
            overrides,
            display,
            target=options.target,
            base=options.base,
            text=options.text_column,
            are_nats=options.losses_are_nats,
        )
    print(*lines, sep="\n")
    return 0


def _make_models(
    verb: Literal["corpus", "train", "score"], sweep: Sweep, options: argparse.Namespace
) -> int:
    from lm_mia.run import pipeline

    shards = options.from_hf_shards or "" if verb == "corpus" else ""
    repair = verb == "score" and options.repair
    finished, failures = pipeline.run(verb, sweep, from_hf_shards=shards, repair=repair)
    _raise_failures(failures)
    recipes = finished.recipes if finished else ()
    if verb == "corpus":
        lines = [f"population: {recipe.population_dir}" for recipe in recipes]
    else:
        lines = [f"scores: {recipe.folder / 'scores.zarr'}" for recipe in recipes]
    for line in dict.fromkeys(lines):
        print(line)
    return 0


def _redrawn(names: Sequence[str], figures: Sequence[str]) -> frozenset[str]:
    """Returns the figures that --figure names; raises UserError if the report has no such figure."""
    found: set[str] = set()
    for name in names:
        these = {figure for figure in figures if name in (figure, Path(figure).name)}
        if not these:
            has = f"it has {', '.join(figures)}" if figures else "it has none"
            raise UserError(
                f"--figure={name}: not a figure of this report; {has}; to add one, use --config.figures={name}"
            )
        found |= these
    return frozenset(found)


def _make_tables(verb: Verb, sweep: Sweep, redraw: Sequence[str] = ()) -> int:
    """Makes the tables and the page, and all that they need; redraws these figures even if nothing has changed."""
    from analysis import page
    from lm_mia.run import pipeline

    if {"attack", "report"} & {*STAGES[verb]}:
        recipes = {*sweep.workdir.recipe_names(), *(recipe.name for recipe in sweep.recipes)}
        figures = [*sweep.figures]
        if sweep.shows_listed_figures:
            figures, lines = page.leave_out_missing(figures)
            for line in lines:
                print(line, file=sys.stderr)
        page.check_figures(figures, sorted(recipes), are_listed=sweep.shows_listed_figures)
        sweep = dataclasses.replace(sweep, figures=tuple(figures))
    figures = sweep.figures
    redrawn = _redrawn(redraw, figures)

    def draw(sweep: Sweep, display: Display, inputs: "Inputs | None") -> None:
        names = [recipe.name for recipe in sweep.recipes]
        folder = sweep.workdir.path
        page.write_page(folder, names, figures, display.update, display.say, inputs, redrawn)

    finished, failures = pipeline.run(verb, sweep, draw, lambda: page.figure_needs(figures))
    if finished:
        names = [recipe.name for recipe in finished.recipes]
        workdir = finished.workdir
        inputs = pipeline.read_inputs(finished)
        print(*page.summary_lines(workdir.path, names, workdir.log_event, inputs), sep="\n")
    _raise_failures(failures)
    return 0


def _remove(argv: Sequence[str]) -> int:
    what, rest = (argv[0], argv[1:]) if argv else ("", argv)
    if what in ("recipe", "checkpoints"):
        return _remove_recipe(what, rest)
    if what != "unused" and not {*argv} & {"-h", "--help"}:
        raise UserError(
            f"{what or 'WHAT'}: `lm-mia rm` deletes unused, recipe or checkpoints; run `lm-mia rm unused "
            "--workdir=DIR`, `lm-mia rm recipe NAME --workdir=DIR` or `lm-mia rm checkpoints NAME --workdir=DIR`"
        )
    _, sweep = _read("rm", rest if what == "unused" else argv)
    from analysis import page
    from lm_mia.run import pipeline, progress

    figures, _ = page.leave_out_missing([*sweep.figures])
    with progress.display(overall=False) as display:
        needs, keys = page.figure_needs(figures), page.figure_keys(figures)
        counts = pipeline.remove_unused(sweep, needs, keys, display)
    for name, deleted, deleted_bytes, kept in counts:
        print(
            f"{name}: deleted {plural(deleted, 'result')} ({format_bytes(deleted_bytes)}), kept {kept}"
        )
    return 0


def _remove_recipe(what: Literal["recipe", "checkpoints"], argv: Sequence[str]) -> int:
    description = {
        "recipe": "Delete a recipe: models, scores, tables, pages, and its samples unless another recipe has them.",
        "checkpoints": "Delete the checkpoints of the models of a recipe, which keep their scores.",
    }
    parser = load.Parser(f"lm-mia rm {what}", description=description[what])
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="name of the recipe")
    parser.add_argument("--workdir", metavar="DIR", help="the workdir")
    parser.add_argument(
        "--linked",
        choices=("delete", "keep"),
        help="what happens to the targets of symbolic links, instead of asking",
    )
    problems: list[str] = []
    options, overrides = parser.parse_flags(argv, problems)
    problems += [f"{flag}: this command reads no config; leave it out" for flag in overrides]
    if not options.name:
        problems.append("NAME: missing; add the name of a recipe, as `lm-mia status` shows it")
    if not options.workdir:
        problems.append("--workdir: missing; add --workdir=runs/quickstart")
    if problems:
        raise UserError("\n".join(problems))
    from analysis import page
    from lm_mia.run import removal

    workdir = Workdir(Path(options.workdir))
    workdir.check()
    sweeps.require_workdir(workdir)

    def deletes_target(link: Path, target: Path) -> bool:
        if options.linked:
            return options.linked == "delete"
        if not sys.stdin.isatty():
            raise UserError(
                f"{link}: is a link to {target}; add --linked=delete to delete that too, or --linked=keep to delete "
                "only the link"
            )
        return input(f"{link} is a link to {target}. Delete that, too? [y/N] ").lower() == "y"

    if what == "recipe":
        files = page.recipe_figure_files(workdir.path, options.name)
        lines = removal.remove_recipe(workdir, options.name, files, deletes_target)
    else:
        lines = removal.remove_checkpoints(workdir, options.name, deletes_target)
    print(*lines, sep="\n")
    return 0


def _audit(argv: Sequence[str]) -> int:
    problems: list[str] = []
    options, overrides = _audit_parser().parse_flags(argv, problems)
    problems += [f"{flag}: an audit reads no config; leave it out" for flag in overrides]
    from lm_mia.audits import audit
    from lm_mia.audits import table as audit_table
    from lm_mia.run.progress import display

    given = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(audit.Settings)
        if hasattr(options, field.name)
    }
    settings = audit.Settings(**given, prefix="--")
    problems += settings.problems()
    if not options.file:
        problems.append("FILE: missing; add the path of a file, such as scores.csv")
    if options.out is not None:
        from analysis.report import audit_page

        names = [*(f"{name}.csv" for name in audit.TABLES), audit_page.PAGE]
        collect_errors(problems, lambda: _check_out(options.out, options.file, names))
    if problems:
        if options.file:
            collect_errors(
                problems,
                lambda: audit.read(Path(options.file), settings),
            )
        raise UserError("\n".join(problems))
    with display(overall=False) as shown:
        result = audit.audit(Path(options.file), settings, shown.update)
    audit_table.print_audit(result, options.file)
    from analysis.report import audit_page

    text = audit_page.sentences(result.tables(), settings.membership)
    print(f"{options.file}: {text}")
    if options.out is None:
        print("add --out=DIR for tables and a page with figures")
        return 0
    result.write(Path(options.out))
    page = audit_page.write(
        Path(options.out),
        options.file,
        settings.membership,
        result.tables(),
        result.warnings,
        result.notes,
    )
    print(f"page: {page}")
    return 0


def _hf_losses(argv: Sequence[str]) -> int:
    from lm_mia.hf import losses
    from lm_mia.run.progress import display

    problems: list[str] = []
    options, overrides = _hf_losses_parser().parse_flags(argv, problems)
    problems += [f"{flag}: this command reads no config; leave it out" for flag in overrides]
    settings = losses.Settings(
        models=tuple(options.models),
        texts=options.texts,
        text_column=options.text_column,
        out=options.out,
        members=options.members,
        token_log_probs=options.token_log_probs,
        length_tokens=options.length_tokens,
        batch_tokens=options.batch_tokens,
        device=options.device,
        device_map=options.device_map,
        dtype=options.dtype,
    )
    collect_errors(problems, lambda: losses.check_flags(settings))
    if problems:
        raise UserError("\n".join(problems))
    with display(overall=False) as shown:
        lines = losses.compute_losses(settings, shown)
    print(*lines, sep="\n")
    return 0


def _hf_losses_parser() -> load.Parser:
    from lm_mia.hf import losses, models

    summary = VERBS["hf-losses"]
    parser = load.Parser(
        "lm-mia hf-losses",
        _FLAGS_OF_OTHER_VERBS,
        description=f"{summary[0].upper()}{summary[1:]}.",
    )
    parser.epilog = "\n".join(
        [
            "The same command goes on where it was stopped. Weights are read from safetensors files only, code of a",
            "folder is never run, and nothing is downloaded. Needs the extra `hf`.",
        ]
    )
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="*",
        help="folder of weights or of a LoRA adapter (peft), or a public model that `hf download NAME` has downloaded",
    )
    parser.add_argument(
        "--texts",
        default="",
        metavar="FILE",
        help="a table (csv, tsv, jsonl, parquet, Arrow) with the column text and, optionally, id, member, user and "
        "others",
    )
    _add_text_column(parser)
    parser.add_argument(
        "--out", default="", metavar="FILE", help="the losses: .parquet, one row per text"
    )
    parser.add_argument(
        "--members",
        default="",
        metavar="FILE",
        help="table with the columns model, id and member, which says what each model was trained on; without it, the "
        "column member of the texts is that of the first model",
    )
    parser.add_argument(
        "--length-tokens",
        type=int,
        metavar="N",
        help=f"longer texts are cut there (default: {losses.LENGTH_TOKENS:,}, or what the models allow)",
    )
    parser.add_argument(
        "--batch-tokens",
        type=int,
        default=losses.BATCH_TOKENS,
        metavar="N",
        help=f"tokens of a batch (default: {losses.BATCH_TOKENS:,}); fewer need less memory",
    )
    models.add_device_flag(parser)
    parser.add_argument(
        "--device-map", choices=["auto"], help="auto: distribute the layers over all GPUs"
    )
    parser.add_argument(
        "--dtype",
        choices=models.DTYPES,
        default="float32",
        help="of weights and activations (default: float32); bfloat16 changes the loss of a token by about 0.02 nats",
    )
    parser.add_argument(
        "--token-log-probs",
        default="",
        metavar="FILE",
        help="also write the tokens and the log-probability of each: .parquet",
    )
    return parser


def _hf_train(argv: Sequence[str]) -> int:
    from lm_mia.data import texts
    from lm_mia.hf import models, train

    summary = VERBS["hf-train"]
    parser = load.Parser("lm-mia hf-train", description=f"{summary[0].upper()}{summary[1:]}.")
    parser.epilog = "\n".join(
        [
            "FOLDER gets a folder for each model, and members.parquet, which says what each one was trained on. If the",
            "command is stopped, run it again: all models have the same members, and finished ones are kept. The same",
            "command with another --device beside it trains other models.",
        ]
    )
    parser.add_argument(
        "base", metavar="BASE", nargs="?", default="", help="folder of the model that is fine-tuned"
    )
    parser.add_argument(
        "--texts",
        metavar="FILE",
        default="",
        help="a table (csv, tsv, jsonl, parquet, Arrow) with the column text, and optionally id",
    )
    _add_text_column(parser)
    parser.add_argument("--out", metavar="FOLDER", default="", help="folder for the models")
    train.add_flags(parser)
    problems: list[str] = []
    options, overrides = parser.parse_flags(argv, problems)
    problems += [f"{flag}: fine-tuning reads no config; leave it out" for flag in overrides]
    if not options.base:
        problems.append("BASE: missing; add the folder of a model")
    if not options.texts:
        problems.append("--texts: missing; add --texts=FILE, such as --texts=texts.jsonl")
    if not options.out:
        problems.append("--out: missing; add --out=FOLDER, such as --out=models")
    settings = train.read_settings(options, problems)
    table = base = None
    if options.texts:
        table = collect_errors(
            problems, lambda: texts.read_table(Path(options.texts), options.text_column)
        )
    if options.base:
        base = collect_errors(problems, lambda: models.open_model(options.base))
    if settings.lora_rank:
        collect_errors(problems, lambda: models.require("peft"))
    if problems or base is None or table is None:
        raise UserError("\n".join(problems))
    from lm_mia.run import progress

    folder = Path(options.out)
    with progress.display(overall=False) as display:
        train.train(base, table, folder, settings, options.device, display.update, display.say)
    members = folder / train.MEMBERS
    print(f"members: {members}; next, run")
    print(
        f"  lm-mia hf-losses {folder}/re*-* --texts={options.texts} --members={members} --out=losses.parquet"
    )
    if settings.models + settings.replicas > 4:
        print(f"  lm-mia import losses.parquet --workdir=runs/mine --subset={settings.subset}")
    return 0


def _canaries(argv: Sequence[str]) -> int:
    from lm_mia.data import canaries, texts

    summary = VERBS["canaries"]
    parser = load.Parser("lm-mia canaries", description=f"{summary[0].upper()}{summary[1:]}.")
    parser.epilog = "\n".join(
        [
            "Whoever trains MODEL mixes the texts of FOLDER/included.jsonl into the training set, each once. How many",
            "coins can be guessed from the losses of all canaries bounds epsilon from below. BASE, which MODEL was",
            "fine-tuned from, raises the bound; leave it out if there is none:",
            "  lm-mia hf-losses MODEL BASE --texts=FOLDER/canaries.parquet --out=losses.parquet",
            "  lm-mia audit losses.parquet --target=MODEL --base=BASE --membership=coins",
        ]
    )
    parser.add_argument(
        "--texts",
        metavar="FILE",
        default="",
        help="texts like those of the training set that are not in it: a table (csv, tsv, jsonl, parquet, Arrow) with "
        "the column text",
    )
    _add_text_column(parser)
    parser.add_argument("--out", metavar="FOLDER", default="", help="folder for the canaries")
    for source, text in (
        ("held-out", "texts of FILE as they are"),
        ("new-words", "texts of FILE in which every fourth word is replaced by random letters"),
        ("random-words", "random words of FILE"),
    ):
        parser.add_argument(
            f"--{source}",
            type=int,
            default=500,
            metavar="N",
            help=f"number of canaries that are {text} (default: 500)",
        )
    parser.add_argument(
        "--seed",
        type=int,
        default=None,
        help="seed of all draws, coins included (default: a random one, which nobody can guess)",
    )
    problems: list[str] = []
    options, overrides = parser.parse_flags(argv, problems)
    # Whoever knows the seed knows the coins.
    seed = secrets.randbits(62) if options.seed is None else options.seed
    problems += [f"{flag}: canaries read no config; leave it out" for flag in overrides]
    if not options.texts:
        problems.append("--texts: missing; add --texts=FILE, such as --texts=texts.jsonl")
    if not options.out:
        problems.append("--out: missing; add --out=FOLDER, such as --out=canaries")
    numbers: dict[canaries.Source, int] = {
        source: getattr(options, source) for source in canaries.SOURCES
    }
    collect_errors(problems, lambda: canaries.check(numbers, seed))
    read = None
    if options.texts:
        read = collect_errors(
            problems, lambda: texts.read_table(Path(options.texts), options.text_column)
        )
    if problems:
        raise UserError("\n".join(problems))
    assert read is not None
    table = canaries.make(read.id_N, read.text_N, numbers, seed)
    folder = Path(options.out)
    canaries.write(folder, table, seed)
    members = table["member"].to_pylist().count(True)
    print(
        f"{table.num_rows:,} canaries, of which {members:,} are members by their coins: {folder / canaries.TABLE}, "
        "which whoever trains the model should not see"
    )
    print(
        f"mix the {members:,} texts of {folder / canaries.INCLUDED} into the training set, each of them once, and no "
        f"text of {options.texts} in any other way; train MODEL, and run (BASE, from which it was fine-tuned, raises "
        "the bound; leave it out if there is none)"
    )
    print(f"  lm-mia hf-losses MODEL BASE --texts={folder / canaries.TABLE} --out=losses.parquet")
    print("  lm-mia audit losses.parquet --target=MODEL --base=BASE --membership=coins")
    return 0


def _check_out(out: str, file: str, names: Sequence[str]) -> None:
    """Raises UserError if an audit cannot write its files to a folder without replacing a file of the user.

    The last of the names is that of the page.
    """
    folder = Path(out)
    for path in (folder, *folder.parents):
        if path.exists() and not path.is_dir():
            what = "is a file" if path == folder else f"{path} is a file"
            raise UserError(f"--out={out}: {what}; choose a folder")
    made_in = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(made_in, os.W_OK | os.X_OK):
        raise UserError(f"--out={out}: {made_in} is not writable; choose another folder")
    is_of_an_audit = (folder / names[-1]).exists()
    for path in (folder / name for name in names):
        is_input = path.resolve() == Path(file).resolve()
        if path.exists() and (is_input or not is_of_an_audit):
            raise UserError(f"--out={out}: the audit would replace {path}; choose another folder")


def _raise_failures(failures: Sequence[str]) -> None:
    if failures:
        raise UserError("\n".join(failures))


def _read(verb: str, argv: Sequence[str]) -> tuple[argparse.Namespace, Sweep]:
    """Returns the flags of a verb and its recipes; raises UserError with one line per problem."""
    problems: list[str] = []
    options, overrides = _parser(verb).parse_flags(argv, problems)
    if verb == "plan":
        collect_errors(problems, lambda: plan.choose_chip(options.device, options.mfu))
    sweep = sweeps.sweep_from_flags(options, overrides, problems, needs_workdir=verb != "plan")
    left_out = ""
    if sweep and not problems and verb not in ("attack", "report", "rm"):
        sweep, left_out = sweeps.leave_out_imported(sweep, f"lm-mia {verb}")
    if sweep and verb == "plan":
        collect_errors(problems, lambda: sweeps.check_attacked(sweep.recipes))
        collect_errors(problems, lambda: plan.check_tokens(options.tokens_per_sample, sweep))
    if sweep and verb == "corpus" and options.from_hf_shards is not None:
        collect_errors(problems, lambda: _check_shards(options.from_hf_shards, sweep))
    if problems or sweep is None:
        raise UserError("\n".join(problems))
    if left_out:
        print(left_out, file=sys.stderr)
    return options, sweep


def _check_shards(pattern: str, sweep: Sweep) -> None:
    """Raises UserError if --from-hf-shards does not fit the sweep."""
    flag = f"--from-hf-shards={pattern!r}"
    if sweep.recipes[0].config.corpus.source != "c4":
        raise UserError(f"{flag}: works only with C4; add --config.corpus.source=c4")
    if len(sweep.recipes) > 1:
        raise UserError(
            f"{flag}: works only with a single recipe, not a sweep; try --config=c4:140M"
        )


def _top_parser() -> argparse.ArgumentParser:
    description = "Membership-inference research on language models, from text to attack tables."
    parser = load.Parser("lm-mia", description=description)
    parser.epilog = "\n".join(
        [
            "verbs:",
            *(f"  {verb:9} {summary}" for verb, summary in VERBS.items()),
            "",
            "`lm-mia VERB --help` lists the flags of a verb. Example:",
            "  lm-mia run --config=quickstart --workdir=runs/quickstart --config.model.layers=3",
        ]
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"lm-mia {package_version('lm-mia')}",
        help="print the version and exit",
    )
    parser.add_argument("verb", choices=[*VERBS], metavar="VERB", help="one of the verbs below")
    return parser


def _parser(verb: str) -> load.Parser:
    summary = VERBS[verb]
    description = f"{summary[0].upper()}{summary[1:]}."
    parser = load.Parser(f"lm-mia {verb}", _FLAGS_OF_OTHER_VERBS, description=description)
    parser.epilog = "Each field of the config is a flag too: --config.model.layers=3; `lm-mia fields` lists them."
    parser.add_argument("--config", metavar="NAME|FILE.py[:ARG]", help=_CONFIG_HELP)
    parser.add_argument(
        "--workdir",
        metavar="DIR",
        help="output folder; a command continues from the results that it already contains",
    )
    if verb == "corpus":
        parser.add_argument(
            "--from-hf-shards",
            "--from_hf_shards",
            metavar="GLOB",
            help="first convert these .json.gz files of allenai/c4 to a C4 dataset at corpus.path",
        )
    elif verb == "score":
        parser.add_argument(
            "--repair", action="store_true", help="remove corrupt scores and compute them again"
        )
    elif verb == "plan":
        plan.add_flags(parser)
    elif verb == "report":
        parser.add_argument(
            "--figure",
            type=lambda names: tuple(filter(None, names.split(","))),
            default=(),
            metavar="A,B,...",
            help="figures of the report that are drawn again even if nothing has changed",
        )
    return parser


def _audit_parser() -> load.Parser:
    from lm_mia.audits import statistics as audit_statistics

    summary = VERBS["audit"]
    parser = load.Parser(
        "lm-mia audit", _FLAGS_OF_OTHER_VERBS, description=f"{summary[0].upper()}{summary[1:]}."
    )
    parser.epilog = "\n".join(
        [
            "FILE has membership scores: a table with the columns score and member, and optionally model and id; or",
            "the arrays score_MxN and member_MxN. Larger scores are more member-like, unless --lower-is-member. Or it",
            "has losses, to which attacks are applied first, as `lm-mia import` reads them: columns loss_NAME and",
            "member_NAME, columns model, id, loss and member, or arrays loss_MxN and member_MxN, with --target, --base",
            "or roles. Models without a role are references.",
        ]
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default="",
        help="a table (csv, tsv, jsonl, parquet, Arrow), an npz file, a netCDF file or a Zarr store",
    )
    parser.add_fields(audit_statistics.Settings)
    parser.add_argument(
        "--out", metavar="DIR", help="folder for tables (csv) and a page with figures (audit.html)"
    )
    return parser


def _add_text_column(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--text-column",
        "--text_column",
        default="text",
        metavar="NAME",
        help="name of the column of texts (default: text)",
    )


def _add_unit_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--losses-are-nats",
        "--losses_are_nats",
        action="store_true",
        help="accept losses whose values look like sums, perplexities, bits or accuracies",
    )


@dataclasses.dataclass(frozen=True)
class _Fields:
    """All fields of a config, with their defaults and meanings; a config file may set other defaults."""

    config: Config


def _print_fields() -> None:
    """Prints all fields of a config, and exits."""
    sections = [value for value in vars(Config()).values() if dataclasses.is_dataclass(value)]
    for section in (Config, *map(type, sections)):
        docs, kinds = load.field_docs(section), get_type_hints(section, include_extras=True)
        for field in dataclasses.fields(section):
            # Otherwise, tyro would keep the line breaks of the docstring.
            text = docs.get(field.name)
            if not dataclasses.is_dataclass(kinds[field.name]):
                text = f"{text} Must be {describe(kinds[field.name])}."
            field.metadata = {"help": text}  # pyright: ignore
    tyro.cli(_Fields, prog="lm-mia VERB", args=["--help"])


if __name__ == "__main__":
    sys.exit(main())
