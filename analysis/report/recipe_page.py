"""The page of one recipe: the answer first, then four questions, details, and how it was made."""

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence, Set

from markupsafe import Markup

from analysis import io, markup
from analysis.experiments.recipe import conditions, exposed, extracted, retraining
from analysis.experiments.recipe import strength as of_strength
from analysis.io import RecipeResults
from analysis.report import answer, document, numbers
from analysis.report import details as of_details
from analysis.report import strength as read_strength
from analysis.report.numbers import FRACTION
from analysis.report.strength import Strength
from lm_mia import config
from lm_mia.attacks.registry import attack_name
from lm_mia.data.population import describe_text_use, has_split_documents
from lm_mia.errors import Unavailable, UserError
from lm_mia.printing import plural


def page(
    recipe: RecipeResults, *, links: Sequence[document.Fact] = (), from_workdir: str = ""
) -> document.Page:
    """Returns the page of a recipe; without results, it says what is missing and which command makes it.

    Args:
      recipe: the recipe.
      links: further pages, which are named under "How this was made".
      from_workdir: the path from the page to the workdir, for its links.
    """
    frame = functools.partial(
        document.Page,
        title=f"{recipe.name}: membership inference report",
        name=recipe.name,
        written=document.today(),
        question=answer.QUESTION,
    )
    try:
        strength = read_strength.read(recipe)
    except UserError as error:
        is_expected = isinstance(error, Unavailable)  # otherwise, a file is damaged
        return frame(
            kind="membership inference report",
            lead=(_no_answer(recipe),),
            banners=(nothing(recipe, error),),
            details=of_details.details(recipe, None, from_workdir) if is_expected else (),
            made=made(recipe, None, links),
        )
    result = sentences(recipe, strength)
    sections, banners = [], [*_banners(recipe, strength, result)]
    unit = exposed.score_unit(recipe.view.c.headline)
    for make in (
        lambda: of_strength.section(recipe, strength),
        lambda: exposed.section(recipe, strength, from_workdir),
        lambda: extracted.section(recipe),
        lambda: retraining.section(recipe, strength, unit) if result.has_hits else None,
        lambda: conditions.section(recipe, strength),
    ):
        try:
            section = make()
        except UserError as error:
            banners.append(_missing_part(error))
            continue
        if section is not None:
            sections.append(section)
    return frame(
        kind=_kind(recipe, strength),
        lead=result.lead,
        icons=answer.icons(strength.findings, result),
        facts=_facts(recipe, strength, {section.id for section in sections}),
        banners=tuple(banners),
        sections=document.numbered(sections),
        details=of_details.details(recipe, strength, from_workdir),
        made=made(recipe, strength, links),
    )


def sentences(recipe: RecipeResults, strength: Strength) -> answer.Answer:
    """Returns the first sentences of the page, which commands print too."""
    epsilon = None
    if recipe.config.train.canaries != "all":
        with contextlib.suppress(UserError):  # a damaged file is named among the details
            for row in of_details.one_run(recipe, strength):
                epsilon = answer.Epsilon(float(row["epsilon"]), float(row["delta"]))
    return answer.answer(
        strength.findings,
        epsilon=epsilon,
        so_far=bool(missing_models(recipe)),
        has_references=not config.has_no_references(recipe.config),
    )


def missing_models(recipe: RecipeResults) -> str:
    """Returns how many of the requested models are scored; empty if all are."""
    attack = recipe.config.attack
    have = len(recipe.references) + len(recipe.targets), len(recipe.replicas)
    if have == (attack.references, attack.replicas):
        return ""
    parts = [f"{have[0]} of {attack.references} references"]
    if attack.replicas:
        parts.append(f"{have[1]} of {attack.replicas} trainings of the model under attack")
    return numbers.words(parts)


def not_complete(recipe: RecipeResults, missing: str, name: str = "") -> Markup:
    """Returns the banner of a recipe with `missing_models`, and its name if there are several."""
    where = f" in {name}" if name else ""
    return Markup(
        "<b>Not complete:</b> {} are scored{}. The numbers will change. <code>lm-mia run --workdir={}</code> continues."
    ).format(missing, where, io.parent_workdir(recipe.recipe_dir))


def _no_answer(recipe: RecipeResults) -> Markup:
    attack = recipe.config.attack
    if attack.references and not attack.targets and not attack.replicas:
        return Markup(
            "<b>No model of this recipe is under attack:</b> its references are attacked with each other, for the "
            "figures of papers."
        )
    return Markup("<b>Nothing has been attacked yet.</b>")


def nothing(recipe: RecipeResults, error: UserError) -> Markup:
    """Returns why there are no numbers, and the next command."""
    reason = markup.reason(error).removeprefix(f"{recipe.name}: ")
    workdir = io.parent_workdir(recipe.recipe_dir)
    return Markup("{}{}. Next: <code>lm-mia run --workdir={}</code>.").format(
        reason[:1].upper(), reason[1:], workdir
    )


def _missing_part(error: UserError) -> Markup:
    return Markup(
        "<b>One part is missing:</b> {}. The rest of the page is not affected; <code>lm-mia attack</code> with this "
        "workdir computes it again."
    ).format(markup.reason(error))


def _kind(recipe: RecipeResults, strength: Strength) -> str:
    if recipe.is_imported:
        has_no_references = config.has_no_references(recipe.config)
        own = plural(strength.trainings, "training" if strength.has_replicas else "model")
        if has_no_references and "base_calibrated" in strength.attacks:
            fine_tuned = f"{strength.trainings} fine-tuned models and their base model"
            if strength.has_replicas:
                fine_tuned = f"{own} of a fine-tuned model and its base model"
            elif strength.trainings == 1:
                fine_tuned = "one fine-tuned model and its base model"
            return f"imported losses of {fine_tuned}"
        return f"imported losses of {own}{_and_references(strength)}"
    return "membership inference report"


def _and_references(strength: Strength) -> str:
    return f" and {plural(strength.references, 'reference')}" if strength.references else ""


def _facts(
    recipe: RecipeResults, strength: Strength, sections: Set[str]
) -> tuple[document.Fact, ...]:
    name = attack_name(recipe.view.c.headline)
    with_what = (
        f" with {plural(strength.references, 'reference model')}" if strength.references else ""
    )
    if strength.headline == "base_calibrated":
        with_what = ", with the base model as its only reference"
    chosen = "chosen by rule before the results were seen" if is_by_rule(recipe) else "as requested"
    facts = [
        document.Fact(
            "Attack",
            Markup("<b>{}</b>{}, {}. AUC {}.").format(
                name, with_what, chosen, numbers.plain(strength.auc, FRACTION)
            ),
        )
    ]
    if config.has_no_references(recipe.config):
        text = Markup("<b>LiRA</b> needs 4 or more reference models; there are none.")
        facts.append(document.Fact("For papers", text))
    lira = strength.estimate("lira_online", "tpr")
    if strength.headline != "lira_online" and lira.is_known:
        auc = strength.estimate("lira_online", "auc")
        facts.append(
            document.Fact(
                "For papers",
                Markup("<b>LiRA</b> finds {}; AUC {}.").format(
                    numbers.plain(lira), numbers.plain(auc, FRACTION)
                ),
            )
        )
    counts = f"{plural(strength.members, 'member')} and {plural(strength.nonmembers, 'non-member')}"
    if strength.has_replicas:
        tried = f"{counts}, in {strength.trainings} trainings that differ in batch order only."
        covers = "over the choice of texts and the batch order; not over other training data"
    elif strength.trainings > 1:
        tried = (
            f"{strength.trainings} models, each on its own random half of the texts: {counts} each."
        )
        covers = "over the choice of texts and the models; not over other references"
    else:
        tried = f"{counts} of one model."
        covers = "over the choice of texts; not over retraining or other training data"
    facts.append(document.Fact("Tried on", tried))
    intervals = Markup("95 % intervals, {}").format(covers)
    if "change" in sections:
        intervals += Markup(' (<a href="#change">what would change the answer</a>)')
    facts.append(document.Fact("In brackets", intervals + "."))
    return tuple(facts)


def is_by_rule(recipe: RecipeResults) -> bool:
    """Returns whether the headline attack was chosen by rule: by the config "auto", or by the import of the losses."""
    if recipe.chosen_headline == "auto":
        return True
    imports = io.read_events(recipe, "imported")
    return any(event.get("headline_by_rule") == recipe.chosen_headline for event in imports)


def _banners(
    recipe: RecipeResults, strength: Strength, result: answer.Answer
) -> list[document.Text]:
    banners: list[document.Text] = []
    if missing := missing_models(recipe):
        banners.append(not_complete(recipe, missing))
    if result.is_reversed:
        banners.append(
            Markup(
                "If low scores mean “member”, bring them again with <code>--lower-is-member</code>; otherwise check "
                "that losses and membership have the same order."
            )
        )
    elif recipe.is_imported and (models := _with_higher_member_loss(recipe)):
        banners.append(
            Markup(
                "<b>Is membership inverted?</b> Members have clearly higher losses than non-members under {}, and "
                "training lowers losses. Attacks with references learn from their membership, and find members all "
                "the same. If True stands for non-members in your file, invert it and import it again."
            ).format(plural(models, "model"))
        )
    # The banner says itself how members came about.
    given = "Members and non-members were given, not drawn at random; "
    warnings: list[str] = []
    with contextlib.suppress(UserError):
        warnings = [text.removeprefix(given) for text in io.read_warnings(recipe)]
    warnings = [text[:1].upper() + text[1:] for text in warnings]
    if recipe.config.train.subset == "given":
        banners.append(
            Markup(
                "<b>Members and non-members were given, not drawn at random.</b> If they differ in date, source or "
                "topic, an attack finds that difference too, and the number above may say nothing about training. {}"
            ).format(" ".join(warnings))
        )
    else:
        banners += [Markup("<b>Careful:</b> {}").format(warning) for warning in warnings]
    return banners


def _with_higher_member_loss(recipe: RecipeResults) -> int:
    """Returns the number of models if members have clearly higher losses under them, on average; otherwise 0."""
    with contextlib.suppress(UserError):
        table = recipe.view.table("models.csv")[
            ["member_loss_nats", "nonmember_loss_nats"]
        ].dropna()
        difference_M = (table["member_loss_nats"] - table["nonmember_loss_nats"]).to_numpy()
        M = len(difference_M)
        if M > 3 and difference_M.mean() > 3 * difference_M.std(ddof=1) / math.sqrt(M):
            return M
    return 0


def made(
    recipe: RecipeResults, strength: Strength | None, links: Sequence[document.Fact] = ()
) -> tuple[document.Fact, ...]:
    """Returns how the results were produced: texts, models, headline rule, cost, versions, command and files."""
    facts = []
    c = recipe.config
    with contextlib.suppress(UserError):
        manifest = io.read_manifest(recipe)
        count = f"{c.population.samples:,} texts"
        if recipe.is_imported:
            file = manifest.get("provenance", {}).get("file", "")
            facts.append(
                document.Fact(
                    "Losses", Markup("imported from <code>{}</code>: {}").format(file, count)
                )
            )
        else:
            source = _SOURCES.get(c.corpus.source, c.corpus.source)
            text = f"{count} of {source}, each of at most {c.population.length_tokens} tokens"
            parts = (text, *_special_texts(recipe, manifest), describe_text_use(manifest))
            facts.append(document.Fact("Texts", "; ".join(part for part in parts if part)))
    facts.append(document.Fact("Models", _models(recipe)))
    if strength is not None:
        rate = numbers.false_alarms(strength.fpr)
        rule = (
            "by the rule for how members were drawn and for the number of references"
            if is_by_rule(recipe)
            else "by attack.headline"
        )
        facts.append(
            document.Fact(
                "Headline",
                Markup(
                    "{}, {}; <code>attack.headline</code> sets another. {}: the lowest of 1, 5 and 10 at which {} "
                    "allow ten, or attack.focus_fpr"
                ).format(
                    attack_name(recipe.view.c.headline),
                    rule,
                    rate[:1].upper() + rate[1:],
                    plural(strength.nonmembers, "non-member"),
                ),
            )
        )
    if strength is not None:
        parts = "halves of the texts"
        if strength.trainings > 1:
            parts += f" and from leaving out some of the {strength.trainings} models"
        facts.append(
            document.Fact(
                "Intervals",
                Markup(
                    "Student's t, from {}; <code>intervals.csv</code> and <code>lm-mia audit</code> bootstrap the "
                    "texts of one model instead"
                ).format(parts),
            )
        )
    if cost := _cost(recipe):
        facts.append(document.Fact("Cost", cost))
    with contextlib.suppress(UserError):
        run = io.read_run_record(recipe)
        packages = run.get("packages") or {}
        named = ", ".join(
            f"{name} {packages[name]}" for name in ("jax", "numpy", "scipy") if name in packages
        )
        facts.append(
            document.Fact(
                "Versions",
                Markup(
                    "lm_mia {}, commit <code>{}</code>{}; recipe <code>{}</code>, samples <code>{}</code>"
                ).format(
                    run.get("lm_mia") or "unknown",
                    str(run.get("commit") or "unknown")[:7],
                    f"; {named}" if named else "",
                    run.get("recipe_hash", ""),
                    run.get("population", ""),
                ),
            )
        )
    facts.append(
        document.Fact(
            "Files",
            Markup(
                "<code>config.json</code> (all settings), <code>recipes/{}/tables/</code> (every number of this page)"
            ).format(recipe.name),
        )
    )
    return (*facts, *links)


_SOURCES = {
    "text": "text files",
    "jsonl": "JSONL files",
    "csv": "CSV files",
    "parquet": "Parquet files",
    "c4": "C4",
}
"""corpus.source -> what the texts are from, where the name itself is no plural noun."""


def _special_texts(recipe: RecipeResults, manifest: io.Record) -> Iterator[str]:
    """Yields what is unusual about the texts, and what it means for the numbers."""
    c, attacked = recipe.config, len(recipe.attacked)
    if c.population.samples > attacked:
        yield (
            f"the last {plural(attacked, 'text')} are canaries, which alone are attacked; all others are in the "
            "training data of every model"
        )
    if c.population.random_samples:
        count = plural(min(c.population.random_samples, attacked), "text")
        yield f"the last {count} are pieces of the vocabulary, drawn at random"
    if has_split_documents(manifest):
        yield (
            "they are pieces of documents, each a member or not on its own, so that non-members resemble members of "
            "their document; intervals are over documents"
        )


def _models(recipe: RecipeResults) -> str:
    c = recipe.config
    counts = []
    if not config.has_no_references(c):
        counts.append(plural(c.attack.references - c.attack.targets, "reference"))
    if c.attack.targets:
        counts.append(plural(c.attack.targets, "target"))
    if c.attack.replicas:
        counts.append(f"{plural(c.attack.replicas, 'training')} of the model under attack")
    text = numbers.words(counts)
    if c.attack.step != "last":
        text += f", at step {c.attack.step:,} of training"
    if recipe.is_imported:
        return f"{text}; members: {c.train.subset}"
    return (
        f"{text}; transformer, {c.model.layers} layers of width {c.model.width}, {recipe.parameters:,} parameters "
        f"without embeddings, {plural(c.train.epochs, 'epoch')}, {plural(config.total_steps(c), 'step')}"
    )


def _cost(recipe: RecipeResults) -> str:
    """Returns what the results cost by the log of the workdir, without the page itself; empty if it lists nothing."""
    seconds: dict[str, list[float]] = {}
    models: set[str] = set()
    for event in io.read_events(recipe, *_WORK_ON_MODELS, "stage"):
        work = _WORK_ON_MODELS.get(event["event"]) or str(event.get("stage"))
        seconds.setdefault(work, []).append(float(event.get("seconds") or 0.0))
        if "model" in event:
            models.add(event["model"])
    durations = {work: _duration(sum(parts)) for work, parts in seconds.items()}
    parts = [f"{work} {durations[work]}" for work in _WORK_ON_MODELS.values() if work in durations]
    text = numbers.words(parts)
    if parts:
        text += f", summed over {plural(len(models), 'model')}, which may be made at the same time"
    stages = [
        f"{stage} {durations[stage]}"
        + (f" in {len(seconds[stage])} runs" if len(seconds[stage]) > 1 else "")
        for stage in ("corpus", "attack", "extract")
        if stage in durations
    ]
    return "; ".join(part for part in (text, numbers.words(stages)) if part)


_WORK_ON_MODELS = {"model_trained": "training", "model_scored": "scoring"}
"""Event of the log -> the work that it ends."""


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"
