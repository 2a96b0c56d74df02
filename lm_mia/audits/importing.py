"""Imports losses of models that were trained elsewhere: the command ``lm-mia import``.

The result is a recipe of a workdir, with a sample table and a score store, on which the attacks and the report work as
on the losses of our own models.

M: models, N2: samples of the population (2N), V: samples that show how subsets are related.
"""

import collections
import csv
import dataclasses
import io
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import filelock
import numpy as np

from lm_mia import config, stats
from lm_mia.atomic import write_atomically
from lm_mia.attacks import registry, text_membership
from lm_mia.attacks.headline import headline_attack
from lm_mia.config import Config, load
from lm_mia.config.recipe import folder_name
from lm_mia.data import imported, loss_units, losses, subsets
from lm_mia.data.arrays import COMPRESSED, Source, open_arrays
from lm_mia.data.losses import LossFile
from lm_mia.data.population import PIECE_COLUMNS
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import UserError, collect_errors
from lm_mia.printing import plural
from lm_mia.run import sweep as sweeps
from lm_mia.run.progress import Display
from lm_mia.run.sweep import SweepRecipe
from lm_mia.stats.design import design_samples
from lm_mia.store.store import Store, open_store

Subset = Literal["given", "exact", "bernoulli", "balanced"]
SUBSETS: tuple[Subset, ...] = ("given", "exact", "bernoulli", "balanced")
MODELS = "imported_models.csv"
"""Table of the models of an imported recipe: name, name in the file, role."""
_MOST_TARGETS = 16
_FEWEST_REFERENCES = 4  # unless the source says which model is attacked
_FEW_REFERENCES = 64  # with fewer, pooled variances are better
_FEW_SAMPLES = 64  # with fewer, random subsets may be equal by chance


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What follows from losses before they are written or attacked."""

    models: Mapping[ModelSeeds, int]
    """The seeds of each model -> its position in the source: targets, references, replicas, and then the base."""
    table: dict[str, np.ndarray]
    """The sample table: name -> column_N2."""
    config: Config
    """The config of the recipe, with the headline attack that follows from the subsets of the models."""


def prepare(
    file: LossFile, name: str, subset: Subset, overrides: Callable[[Config], Config] = lambda c: c
) -> Prepared:
    """Returns the seeds of the models, the sample table and the config of losses whose values were checked.

    Args:
      file: the losses.
      name: name of the recipe.
      subset: how the members of each model were drawn.
      overrides: changes the settings before the headline attack is chosen.
    """
    models = _model_seeds(file)
    table = imported.sample_table(file.num_samples, file.columns, file.text_N)
    c = overrides(_config(file, table, name, subset))
    return Prepared(models, table, _with_headline(c, file, models))


def import_source(
    source: "Source",
    workdir: str,
    name: str,
    subset: Subset,
    overrides: Sequence[str],
    display: Display,
    *,
    target: Sequence[str] = (),
    base: str = "",
    text: str = "text",
    are_nats: bool = False,
) -> list[str]:
    """Imports the losses of a file; returns the lines that the command prints.

    For `target`, `base`, `text` and `are_nats`, see `losses.read_losses`, and for the rest, `import_losses`.

    Raises:
      UserError: with one line per problem, also if the source has scores, with the command that reads them.
    """
    arrays = open_arrays(source, (text,))
    if not losses.has_losses(arrays):
        if "score" in arrays or "score_MxN" in arrays:
            raise UserError(
                f"{arrays.source}: has membership scores, but losses are imported; `lm-mia audit "
                f"{shlex.quote(arrays.source)}` evaluates scores"
            )
        raise UserError(
            f"{arrays.source}: has no losses among {', '.join(map(repr, [*arrays][:20])) or 'no arrays'}; save "
            "loss_MxN and member_MxN, or a table with loss_NAME and member_NAME for each model, or with the columns "
            "model, id, loss and member"
        )
    file = losses.read_losses(arrays, target=target, base=base, text=text, are_nats=are_nats)
    recipe = import_losses(file, workdir, name, subset, overrides, display)
    return _describe(recipe, file)


def import_losses(
    file: LossFile,
    workdir: str,
    name: str,
    subset: Subset,
    overrides: Sequence[str],
    display: Display,
) -> SweepRecipe:
    """Writes the losses of a file to a workdir.

    Repeating an import changes nothing, and a file with additional models adds these. Under another name, losses become
    another recipe, even if their samples are those of a recipe that the workdir has.

    Args:
      file: the losses.
      workdir: the workdir, which need not exist.
      name: name of the recipe.
      subset: how the members of each model were drawn, as `train.subset`.
      overrides: flags such as ``--config.attack.targets=8``.
      display: shows progress.

    Returns:
      The recipe.

    Raises:
      UserError: with one line per problem. Nothing has been written then, unless the disk is full, or another command
        imports other losses under the same name at the same time.
    """
    _check_overrides(overrides)
    display.stage(0.5)
    problems = _count_problems(file, subset)

    def show(done: int, total: int) -> None:
        display.update("check", done, total)

    collect_errors(problems, lambda: losses.check_values(file, show))
    if problems:
        raise UserError("\n".join(problems))
    losses.raise_first(subset_problems(file, _model_seeds(file), subset))
    is_by_rule = True

    def override(c: Config) -> Config:
        nonlocal is_by_rule
        c = load.apply_overrides(c, overrides)
        c = load.apply_overrides(sweeps.with_stored_attack(workdir, c), overrides)
        is_by_rule = c.attack.headline == "auto"
        return c

    prepared = prepare(file, name, subset, override)
    models, table, c = prepared.models, prepared.table, prepared.config
    _check_attacked(file, models, c.attack.targets)
    sweep = sweeps.imported_sweep(workdir, c)
    sweeps.check_attacked(sweep.recipes)
    [recipe] = sweep.recipes
    _check_stored(file, models, open_store(recipe.config, recipe.folder), recipe.name)
    sweep, disclaim = sweeps.claim_folders(sweep)
    [recipe] = sweep.recipes
    try:
        provenance = {"file": Path(file.source).name, "models": len(models)}
        population = imported.write_population(recipe.population_dir, table, provenance)
        sweeps.record_population(recipe, population.sha256)
    except BaseException:
        disclaim()
        raise
    display.stage(0.5)
    store = open_store(recipe.config, recipe.folder)
    facts = {"recipe": recipe.name, "population_sha256": population.sha256, "subset": subset}
    in_order = sorted(models, key=models.__getitem__)
    with filelock.FileLock(recipe.folder / ".import.lock"):
        # Another command may have imported losses under this name in the meantime.
        _check_stored(file, models, store, recipe.name)
        store.create_or_extend(in_order, population.sample_columns(), facts)
        for done, model in enumerate(in_order):
            display.update("import", done, len(models))
            _write_model(file, models[model], model, store)
        write_atomically(recipe.folder / MODELS, _models_table(file, models))
    display.update("import", len(models), len(models))
    event = {"event": "imported", "recipe": recipe.name, "models": len(models)}
    # The config has the name, whoever chose it.
    event |= {"headline_by_rule": c.attack.headline} if is_by_rule else {}
    recipe.workdir.log_event(event | {"file": file.source})
    return recipe


def _describe(recipe: SweepRecipe, file: LossFile) -> list[str]:
    """Returns the lines that the command prints: what was imported, and the next commands."""
    c = recipe.config.attack
    references = c.references - c.targets
    has_references = not config.has_no_references(recipe.config)
    counts = [plural(references, "reference")] if has_references else []
    counts += [plural(c.targets, "target")] if c.targets else []
    counts += [plural(c.replicas, "replica")] if c.replicas else []
    attacked = c.targets + c.replicas
    counts += ["their base" if attacked > 1 else "its base"] if "base" in file.role_M else []
    unknown = [
        name
        for name in ("tokens", "zlib_bytes", "tfidf")
        if name not in file.columns and not (name == "zlib_bytes" and file.text_N is not None)
    ]
    models = _model_seeds(file)
    lines = [
        f"imported: {plural(file.num_samples, 'sample')}, {', '.join(counts)} -> {recipe.folder}",
        *_compare_texts(file, models, recipe.config.train.subset),
        f"attacks: {', '.join(c.attacks)}",
        f"unit of the losses: {loss_units.describe(are_nats=file.are_nats)}",
        *_describe_losses(open_store(recipe.config, recipe.folder), [*models]),
        *_describe_subsets(subset_design(file, models)[1]),
    ]
    if len(file.role_M) > file.num_samples:
        lines.append(
            f"note: there are more models ({len(file.role_M):,}) than samples ({file.num_samples:,}); if the arrays "
            "are transposed, remove the workdir and import them with one row per model"
        )
    lines += _describe_texts(file)
    if unknown:
        lines.append(
            f"unknown: {', '.join(unknown)} of the samples; attacks and figures do without them"
        )
    if recipe.config.train.subset == "given":
        lines.append(
            "membership: taken as given, so no bound on epsilon is valid; if it was drawn at random, import with "
            "--subset=exact, bernoulli or balanced"
        )
    flag = f"--workdir={recipe.workdir.path}"
    commands = " && ".join(shlex.join(["lm-mia", verb, flag]) for verb in ("attack", "report"))
    return [*lines, f"next: {commands}"]


def _compare_texts(file: LossFile, models: Mapping[ModelSeeds, int], subset: str) -> list[str]:
    """Returns a line about what the texts tell of membership that was given; none if it was drawn at random."""
    if subset != "given" or file.text_N is None:
        return []
    replicas = [index for model, index in models.items() if model.role == "replica"]
    first = (replicas or [*models.values()])[0]
    drawn_S = text_membership.draw_texts(file.num_samples)
    groups = [file.columns[name][drawn_S] for name in ("document", "user") if name in file.columns]
    auc = text_membership.compare_texts(
        file.text_N[drawn_S].tolist(), losses.read_member(file, first)[drawn_S], groups
    )
    model = "" if replicas else f"model {file.names_M[first]}"
    return [] if auc is None else [f"texts: {text_membership.describe(auc, model)}"]


def _describe_texts(file: LossFile) -> list[str]:
    """Returns a line if some samples have the same text; such a non-member may have been trained on."""
    if file.text_N is None:
        return []
    count = collections.Counter(str(text) for text in file.text_N)
    repeated = sum(samples for samples in count.values() if samples > 1)
    if not repeated:
        return []
    return [
        f"note: {plural(repeated, 'sample')} have a text that another sample has too ({len(count):,} different texts "
        f"of {file.num_samples:,}); a model that was trained on one of them has seen the others, so non-members may "
        "look like members; keep one sample of each text"
    ]


def _describe_subsets(design: stats.Design) -> list[str]:
    """Returns a line about what attacks leave out because the subsets are related; none if they are not."""
    if design.columns:
        return [
            "subsets: every sample is in the same number of them, so that each attack leaves out a random reference of "
            "the other class for each target and sample"
        ]
    related = int((np.bincount(design.group_M)[design.group_M] > 1).sum())
    if not related:
        return []
    return [
        f"subsets: those of {plural(related, 'model')} are equal to those of others, or complements of them; each "
        "model is attacked without these"
    ]


def _describe_losses(store: Store, models: Sequence[ModelSeeds]) -> list[str]:
    """Returns a line with the mean losses of members and of non-members; none if no model has both."""
    mean_Mx2 = store.mean_losses(models)
    mean_Mx2 = mean_Mx2[~np.isnan(mean_Mx2).any(axis=1)]
    if not len(mean_Mx2):
        return []
    member, nonmember = mean_Mx2.mean(axis=0)
    line = f"mean loss: {member:.3f} of members, {nonmember:.3f} of non-members"
    difference_M = mean_Mx2[:, 1] - mean_Mx2[:, 0]
    error = difference_M.std() / math.sqrt(len(difference_M))
    if len(difference_M) > 3 and difference_M.mean() < -3 * error:
        line += "; members have clearly higher losses, so check whether True stands for non-members in your file"
    elif difference_M.mean() < 2 * error:
        line += (
            "; members do not have clearly lower losses, so check that rows and columns of losses and membership have "
            "the same order"
        )
    return [line]


def read_flags(file: str, name: str | None, subset: str, problems: list[str]) -> str:
    """Checks the flags of the command, and returns the name of the recipe; messages are appended to `problems`."""
    if subset not in SUBSETS:
        problems.append(f"--subset={subset!r}: must be one of {', '.join(SUBSETS)}")
    if name is not None and folder_name(name) != name:
        problems.append(
            f"--name={name!r}: must be at most 48 letters, digits and '.+=,-_'; try --name={folder_name(name)}"
        )
    stem = Path(file).name.split(".")[0] if Path(file).suffix in COMPRESSED else Path(file).stem
    return name or folder_name(stem)


def _model_seeds(file: LossFile) -> dict[ModelSeeds, int]:
    """Returns the seeds of each model -> its index in the file: targets, references, replicas, and then the base."""
    index = {role: [i for i, r in enumerate(file.role_M) if r == role] for role in losses.ROLES}
    trained_alone = [*index["target"], *index["reference"]]
    seeds = {subsets.reference(n): i for n, i in enumerate(trained_alone)}
    seeds |= {subsets.replica(b): i for b, i in enumerate(index["replica"])}
    return seeds | {subsets.base(): i for i in index["base"]}


def _check_attacked(file: LossFile, models: Mapping[ModelSeeds, int], targets: int) -> None:
    """Raises UserError if a model that is attacked without having the role of a target cannot be attacked.

    The first references are attacked if nobody says which models are. `losses.check_values` checks targets.
    """
    problems = []
    for model, i in models.items():
        if model.role == "reference" and model.subset_seed < targets:
            name, members = file.names_M[i], int(np.count_nonzero(losses.read_member(file, i)))
            if not members:
                problems.append(
                    f"{file.source}: model {name!r} was trained on none of the samples, so it cannot be attacked; if "
                    f"others were fine-tuned from it, add --base={name}, or say which models are attacked by --target"
                )
            elif members == file.num_samples:
                problems.append(
                    f"{file.source}: model {name!r} was trained on all samples, so it cannot be attacked; say which "
                    "models are attacked by --target"
                )
    losses.raise_first(problems)


def _check_overrides(overrides: Sequence[str]) -> None:
    """Raises UserError with a line for each field that an import determines, or that is about training."""
    names = [flag.partition("=")[0] for flag in overrides if flag.startswith("--config.")]
    given = ("--config.attack.references", "--config.attack.replicas")
    losses.raise_first(
        [
            f"{name}: is determined by the file; leave it out"
            if name in given
            else f"{name}: the models were trained elsewhere, so only fields of attack can be set; leave it out"
            for name in names
            if name in given or not name.startswith("--config.attack.")
        ]
    )


def _with_headline(c: Config, file: LossFile, models: Mapping[ModelSeeds, int]) -> Config:
    """Returns the config of an import with the attack and the rate that results are named by, unless it has them.

    Both follow from the subsets of the models alone.
    """
    attack = c.attack
    targets = 0 if attack.replicas else attack.targets  # of models with subsets of their own
    attacked = {*map(subsets.reference, range(targets)), subsets.replica(0)}
    if attack.headline == "auto":
        headline = _headline(file, models, targets, c.train.subset)
        attack = dataclasses.replace(attack, headline=headline)
    nonmembers = min(
        (int((~losses.read_member(file, i)).sum()) for m, i in models.items() if m in attacked),
        default=file.num_samples // 2,
    )
    focus = config.automatic_focus_fpr(nonmembers)
    # Fewer or more than half of the samples may be members.
    if attack.focus_fpr == "auto" and focus != config.automatic_focus_fpr(file.num_samples // 2):
        fprs = tuple(sorted({*attack.fprs, focus}))
        attack = dataclasses.replace(attack, fprs=fprs, focus_fpr=focus)
    return dataclasses.replace(c, attack=attack)


def _headline(
    file: LossFile, models: Mapping[ModelSeeds, int], targets: int, subset: Subset
) -> str:
    """Returns the attack that results are named by.

    Args:
      file: the losses.
      models: the seeds of the models, with their positions in the file.
      targets: how many of the models with subsets of their own are attacked; 0 with replicas.
      subset: how members were drawn.
    """
    index_M, design = subset_design(file, models)
    by_index = {i: model for model, i in models.items()}
    is_reference_M = np.array(
        [by_index[i].role == "reference" and by_index[i].subset_seed >= targets for i in index_M]
    )
    # Those that share a group with a target are left out, and one more if all samples are in equally many subsets.
    group_M = design.group_M
    is_related_M = np.isin(group_M, group_M[~is_reference_M])
    references = int((is_reference_M & ~is_related_M).sum()) - int(design.columns)
    has_in = any(
        losses.read_member(file, i).any()
        for i, is_reference in zip(index_M, is_reference_M, strict=True)
        if is_reference
    )
    return headline_attack(
        is_random=subset != "given",
        references=references,
        has_in=has_in,
        has_pairs=subset == "balanced" or design.has_complements,
        has_base=any(model.role == "base" for model in models),
    )


def _has_no_references(file: LossFile) -> bool:
    """Returns whether all models are attacked, or there is a single one: attacks without references remain."""
    trained = [role for role in file.role_M if role != "base"]
    return {*trained} in ({"target"}, {"replica"}) or trained == ["reference"]


def _count_problems(file: LossFile, subset: Subset) -> list[str]:
    """Returns a line for each role of too few models, and if models or targets cannot be divided into pairs."""
    references, targets, replicas, base = (file.role_M.count(role) for role in losses.ROLES)
    problems: list[str] = []
    models = len(file.role_M) - base
    if not models:
        problems.append(
            f"{file.source}: has only a base, which is not attacked; add the model that was fine-tuned from it"
        )
    elif not (targets or replicas or base) and 1 < models <= _FEWEST_REFERENCES:
        names = [str(name) for name in file.names_M]
        of_base = ""
        if models == 2:
            of_base = f", and --base={names[1]} if it was fine-tuned from the second"
        problems.append(
            f"{file.source}: has {plural(models, 'model')}: must be at least five, since a model is attacked with at "
            f"least four references, unless you name the models to attack, by --target={names[0]}{of_base}"
        )
    elif replicas and references + targets and references < _FEWEST_REFERENCES:
        others = [plural(references, "reference")] + (
            [plural(targets, "target")] if targets else []
        )
        problems.append(
            f"{file.source}: has {plural(replicas, 'replica')}, {' and '.join(others)}: besides replicas and a base, "
            "it must have none or at least four references; leave the others out, or give the replicas the role target"
        )
    if replicas == 1:
        problems.append(
            f"{file.source}: has 1 replica: must be none or at least two, since a flip rate needs two decisions; give "
            "it the role target"
        )
    trained_alone = references + targets
    if not problems and subset == "balanced" and (trained_alone % 2 or targets % 2):
        odd = f"{targets} of them targets" if targets else "all of them references"
        problems.append(
            f"--subset=balanced: {file.source} has {plural(trained_alone, 'model')} besides replicas, {odd}: both "
            "numbers must be even, since models come in pairs with complementary subsets; leave some "
            "out, or use --subset=given"
        )
    return problems


def subset_problems(file: LossFile, models: Mapping[ModelSeeds, int], subset: Subset) -> list[str]:
    """Returns a line for each model whose members cannot have been drawn in the way of `subset`.

    Subsets that overlap, other than by independent draws, are a problem in any case.
    """
    related = _related_subsets(file, models, subset)
    if subset == "given":
        return related
    problems: list[str] = []
    half, first_N2 = file.num_samples // 2, np.zeros(0, bool)
    document_N2 = file.columns.get("document")
    if document_N2 is not None:
        document_N2 = np.unique(document_N2, return_inverse=True)[1]
    for model, index in models.items():
        if model.role == "base":
            continue
        member_N2 = losses.read_member(file, index)
        members = int(member_N2.sum())
        where = f"--subset={subset}: model {file.names_M[index]} of {file.source}"
        unlike_coins = stats.unlike_fair_coins(member_N2)
        if unlike_coins if subset == "bernoulli" else 2 * members != file.num_samples:
            expected = f"{'about ' if subset == 'bernoulli' else ''}{half:,}"
            remedy = "use --subset=given"
            if not unlike_coins:
                remedy = (
                    "use --subset=bernoulli if each sample was drawn with probability 1/2, otherwise "
                    "--subset=given"
                )
            problems.append(
                f"{where} was trained on {members:,} of {file.num_samples:,} samples, not on {expected}; {remedy}"
            )
        if subset == "balanced" and model.role == "reference":
            if model.subset_seed % 2 == 0:
                first_N2 = member_N2
            elif not (member_N2 ^ first_N2).all():
                problems.append(
                    f"{where} was not trained on the complement of the subset of the model before it; use "
                    "--subset=exact"
                )
            else:
                continue
        if document_N2 is not None and stats.drawn_by_cluster(member_N2, document_N2):
            problems.append(
                f"{where} was trained on whole documents, so the membership of a sample reveals that of the other "
                "samples of its document; use --subset=given"
            )
    return [*problems, *related]


def subset_design(
    file: LossFile, models: Mapping[ModelSeeds, int], attacked: Sequence[int] | None = None
) -> tuple[list[int], stats.Design]:
    """Returns the models with subsets of their own, as indices of the file, and how the subsets are related.

    Of replicas, which share their subset by definition, the first one is compared.

    Args:
      file: the losses.
      models: the seeds of the models, with their positions in the file.
      attacked: positions of the attacked models; None: each model is attacked.
    """
    index_M = [
        i for model, i in models.items() if model.role == "reference" or model == subsets.replica(0)
    ]
    any_N2, all_N2 = np.zeros(file.num_samples, bool), np.ones(file.num_samples, bool)
    for i in index_M:
        member_N2 = losses.read_member(file, i)
        any_N2 |= member_N2
        all_N2 &= member_N2
    index_V = design_samples(any_N2, all_N2, len(index_M))
    member_MxV = np.array([losses.read_member(file, i)[index_V] for i in index_M])
    attacked_T = None
    if attacked is not None:
        attacked_T = np.array([m for m, i in enumerate(index_M) if i in attacked], np.intp)
    return index_M, stats.design_of(member_MxV, attacked_T)


def _related_subsets(file: LossFile, models: Mapping[ModelSeeds, int], subset: Subset) -> list[str]:
    """Returns a line for each model whose subset is related to another one, if they cannot have been drawn so."""
    index_M, design = subset_design(file, models)
    names = [file.names_M[i] for i in index_M]
    where = f"--subset={subset}: model"
    if design.overlap:
        first, second = (names[m] for m in design.overlap)
        return [
            f"{where}s {first} and {second} of {file.source} have training subsets that overlap more or less than "
            "independent ones do, so that the models reveal the members of each other; import models whose subsets "
            "were drawn independently, or as complementary halves"
        ]
    if subset == "given":
        return []
    if design.columns:
        return [
            f"--subset={subset}: in {file.source}, every sample is in the same number of training subsets, so that the "
            "other models reveal the members of each; use --subset=given"
        ]
    seeds = {i: model for model, i in models.items()}
    problems = []
    for m, i in enumerate(index_M):
        for other in np.flatnonzero(design.group_M[:m] == design.group_M[m])[:1]:
            pair = [seeds[j] for j in (index_M[other], i)]
            is_pair = all(model.role == "reference" for model in pair)
            is_pair &= pair[0].subset_seed // 2 == pair[1].subset_seed // 2
            if subset == "balanced" and is_pair:
                continue
            problems.append(
                f"{where} {names[m]} of {file.source} was trained on the same samples as model {names[other]}, or on "
                "all others, so membership in the one reveals that in the other; use --subset=given"
            )
    return problems


def _config(file: LossFile, table: dict[str, np.ndarray], name: str, subset: Subset) -> Config:
    """Returns the config of the recipe; it says nothing about the training of the models."""
    count = {role: file.role_M.count(role) for role in losses.ROLES}
    targets, has_references = count["target"], not _has_no_references(file)
    if not has_references:
        targets = 0 if count["replica"] else count["target"] or 1
    elif not targets and not count["replica"]:  # the first references are attacked
        targets = min(_MOST_TARGETS, count["reference"] // 4)
        if subset == "balanced":
            targets = max(targets - targets % 2, 2)
    trained_alone = count["reference"] + count["target"]
    has_texts = not np.isnan(table["zlib_bytes"].astype(float)).any()
    attacks = [
        name
        for name in config.Attack().attacks
        if (has_texts or not registry.ATTACKS[name].uses_texts)
        and (has_references or not registry.ATTACKS[name].uses_references)
    ]
    if count["base"]:
        attacks.append("base_calibrated")
    attacks += [
        name
        for name, attack in registry.ATTACKS.items()
        if attack.statistics and {*attack.statistics} <= {*file.statistics}
    ]
    statistics: Any = file.statistics
    return Config(
        corpus=config.Corpus(
            source="imported",
            path=imported.digest(table),
            split_documents=PIECE_COLUMNS[0] in table,
        ),
        population=config.Population(samples=file.num_samples),
        train=config.Train(subset=subset),
        score=config.Score(statistics=statistics),
        attack=config.Attack(
            references=trained_alone,
            targets=targets,
            replicas=count["replica"],
            attacks=tuple(attacks),
            variance="pooled" if trained_alone - targets < _FEW_REFERENCES else "per_sample",
            leave_one_out=has_references and trained_alone > _FEWEST_REFERENCES,
        ),
        name=name,
    )


def _check_stored(
    file: LossFile, models: Mapping[ModelSeeds, int], store: Store, recipe_name: str
) -> None:
    """Raises UserError if the store has other values of a model, or values that the file lacks for its new models."""
    stored = store.models()
    if stored and subsets.base() in models and subsets.base() not in stored:
        raise UserError(
            f"{file.source}: has a base, but recipe {recipe_name} in {store.path} was imported without one; choose "
            "another --workdir or --name"
        )
    lacking = [name for name in store.statistics if name not in file.statistics]
    if lacking and store.missing_models([*models]):
        raise UserError(
            f"{file.source}: has no {lacking[0]}_MxN, which the models of recipe {recipe_name} have; add it, or choose "
            "another --workdir or --name"
        )
    for name in ("loss", *file.statistics):
        is_loss = name == "loss"
        present = dataclasses.replace(store, statistics=() if is_loss else (name,))
        missing = {*present.missing_models([*models])}
        for model, index in models.items():
            if model in missing:
                continue
            variables = ("loss", "member") if is_loss else (name,)
            [(_, stored)] = present.blocks({v: (v, [model]) for v in variables}, sys.maxsize)
            same = np.array_equal(stored[name][0], file.read(name, index).astype(np.float32))
            if is_loss:
                same &= np.array_equal(stored["member"][0], losses.read_member(file, index))
            if not same:
                what = "losses" if is_loss else f"values {name}"
                raise UserError(
                    f"{file.source}: the {what} of model {file.names_M[index]} are not those of {model} in "
                    f"{store.path}; choose another --workdir or --name"
                )


def _write_model(file: LossFile, index: int, model: ModelSeeds, store: Store) -> None:
    """Writes the values of a model that the store does not have."""
    if not store.missing_models([model]):
        return
    loss_N2 = file.read("loss", index).astype(np.float32)
    statistics = {name: file.read(name, index).astype(np.float32) for name in file.statistics}
    store.write_model(model, loss_N2, losses.read_member(file, index), statistics)


def _models_table(file: LossFile, models: Mapping[ModelSeeds, int]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "name_in_file", "role_in_file"])
    for model, index in models.items():
        writer.writerow([str(model), file.names_M[index], file.role_M[index]])
    return text.getvalue()
