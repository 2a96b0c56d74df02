"""Table 7: the recipes of the figures at the published setting, and those of this sweep beside them or alone."""

import functools
from collections.abc import Iterator

import pandas as pd

from analysis import formatting, papers
from analysis.experiment import Drawing, Experiment
from analysis.io import RecipeResults, SweepResults
from lm_mia import user_files
from lm_mia.config import Config, load
from lm_mia.config.paper import figure_number
from lm_mia.errors import Unavailable, UserError

_HEADS_OF_RUN = ["samples", "model", "models"]
_HEADS = (
    *(
        ("published setting", head)
        for head in ("samples", "model", "differences from the defaults")
    ),
    *(("this run", head) for head in _HEADS_OF_RUN),
)


def draw_tab07(recipes: SweepResults) -> Drawing:
    """Draws a table with a row per recipe, with the figures that need it; without a comparison, of this run only."""
    if not recipes.compares_with_papers:
        return _settings_of_run(recipes)
    published = published_setting()
    present = set(recipes)
    rows, cells = [], []
    for name, (figure_numbers, c) in published.items():
        recipe = recipes[name] if name in present else None
        here = {f"here_{k}": v for k, v in _facts(recipe.config).items()} if recipe else {}
        rows.append({"recipe": name, "figures": " ".join(figure_numbers), **_facts(c), **here})
        differences = "; ".join(_differences(c))
        samples = f"{c.population.samples // 2:,}"
        cells.append((samples, c.model.size, differences, *_cells_of_run(recipe)))
    index = pd.Index(
        [", ".join(figure_numbers) for figure_numbers, _ in published.values()], name="Figures"
    )
    return Drawing(
        data=pd.DataFrame(rows),
        table=pd.DataFrame(cells, index, pd.MultiIndex.from_tuples(_HEADS)),
        notes=(
            "From the configs of the figures at the published setting: a row per recipe, with the figures that need "
            "it. A recipe of the same name in this run is shown beside it.",
            "Defaults: 128 references and 16 targets with different training subsets (the paper often has one "
            "target), batches of 128 samples of at most 1,024 tokens, one epoch, AdamW with 750 warm-up steps to a "
            "peak learning rate of 3e-4 and cosine decay to 3e-5, weight decay 0.1, gradients clipped to norm 1.",
            *_departure_notes(),
        ),
    )


def _settings_of_run(recipes: SweepResults) -> Drawing:
    shown = recipes.recipes
    if not shown:
        raise Unavailable("no recipe has a population yet; run lm-mia run first")
    rows = [{"recipe": recipe.name, **_facts(recipe.config)} for recipe in shown]
    index = pd.Index([recipe.name for recipe in shown], name="Recipe")
    cells = [_cells_of_run(recipe) for recipe in shown]
    return Drawing(pd.DataFrame(rows), table=pd.DataFrame(cells, index, _HEADS_OF_RUN))


def _departure_notes() -> Iterator[str]:
    """Yields the departures from the paper's protocol, with the figures that they concern."""
    for departure in papers.read("strongmia").departures:
        numbers = [_short_name(number) for number in departure.items]
        yield f"{', '.join(numbers) or 'All figures'}: {departure.text}"


def _short_name(number: str) -> str:
    kind = "Table" if number.startswith("tab") else "Figure"
    return f"{kind} {number[3:].lstrip('0')}"


@functools.cache  # Included configs do not change; loading them takes a second.
def published_setting() -> dict[str, tuple[list[str], Config]]:
    """Returns the recipes at the setting ``paper``: name -> (numbers of the figures that need it, config)."""
    recipes: dict[str, tuple[list[str], Config]] = {}
    for figure in (name for name in papers.read("strongmia").items if "_fig" in name):
        number = figure_number(figure).removeprefix("fig").lstrip("0")
        for _, c in load.load_sweep(f"strongmia:{figure},paper"):
            recipes.setdefault(c.name, ([], c))[0].append(number)
    return recipes


def _differences(c: Config) -> Iterator[str]:
    """Yields the settings that differ from the defaults listed in the note of the table, in words."""
    a, o, t = c.attack, c.optimizer, c.train
    if a.references - a.targets != 128:
        yield f"{a.references - a.targets} references"
    if a.targets not in (0, 16):
        yield f"{a.targets} targets"
    if a.replicas:
        yield f"{a.replicas} replicas of a target"
    if t.epochs != 1:
        yield f"{t.epochs} epochs"
    if t.batch_size != 128:
        yield f"batches of {t.batch_size}"
    if o.name != "adamw":
        yield f"optimizer {user_files.short(o.name)}"
    if o.schedule != "cosine":
        yield f"{o.schedule} schedule"
    if o.warmup_steps != 750:
        yield f"{o.warmup_steps} warm-up steps"
    if o.weight_decay != 0.1:
        yield f"weight decay {o.weight_decay:g}"
    if o.clip_norm != 1:
        yield "no clipping" if o.clip_norm == "none" else f"clip norm {o.clip_norm:g}"
    if c.population.distinct_prefix_tokens != "none":
        yield f"no two samples share their first {c.population.distinct_prefix_tokens} tokens"


def _cells_of_run(recipe: RecipeResults | None) -> tuple[str, str, str]:
    if recipe is None:
        return "–", "–", "–"
    m = recipe.config.model
    try:
        counts = {
            "references": len(recipe.references),
            "targets": len(recipe.targets),
            "replicas": len(recipe.replicas),
        }
        models = ", ".join(f"{n} {role}" for role, n in counts.items() if n) or "none yet"
    except UserError:
        models = "unknown, since its scores are damaged"
    return f"{recipe.samples:,}", f"{formatting.size_label(recipe)} ({m.layers}x{m.width})", models


def _facts(c: Config) -> dict[str, object]:
    a, o = c.attack, c.optimizer
    return {
        "samples": c.population.samples // 2,
        "layers": c.model.layers,
        "width": c.model.width,
        "epochs": c.train.epochs,
        "batch_size": c.train.batch_size,
        "length_tokens": c.population.length_tokens,
        "references": a.references - a.targets,
        "targets": a.targets,
        "replicas": a.replicas,
        "schedule": o.schedule,
        "peak_learning_rate": o.peak_learning_rate,
        "warmup_steps": o.warmup_steps,
        "weight_decay": o.weight_decay,
        "clip_norm": o.clip_norm,
    }


EXPERIMENTS = {
    "strongmia_tab07_settings": Experiment(
        statements=(),
        draw=draw_tab07,
    ),
}
