"""Table 7: the recipes of the figures at the published setting, and those of this sweep beside them."""

from collections.abc import Iterator

import pandas as pd

from analysis import figures, formatting, io
from analysis.io import RecipeResults, SweepResults
from analysis.paper_figure import FigureResult, PaperFigure
from lm_mia.config import Config, load
from lm_mia.config.paper import figure_number

DEPARTURES = (
    "Differences from the paper's Table 7 (its values in parentheses): Figures 5 and 22-30 have 2^19 training samples, "
    "as the text of the paper says (7M); Figures 11-13 share the 2^19 samples of Figure 14 (500K), and Figures 12 and "
    "13 its 128 references (64); Figures 9 and 10 go up to 512 references, the models of Figure 1 (256, for RMIA 64); "
    "Figure 7 has the scores of all 528 (128); Figure 15(b) uses 7M samples, as the text says (50K, 50 warm-up steps); "
    "Figure 20 has the 16 targets of Figure 18 (8 in its text); Figure 21 attacks each of 144 models with the others "
    "(64 targets, 64 references)."
)
_HEADS = (
    *(
        ("published setting", head)
        for head in ("samples", "model", "differences from the defaults")
    ),
    *(("this run", head) for head in ("samples", "model", "models")),
)


def draw_tab07(recipes: SweepResults) -> FigureResult:
    """Draws a table with a row per recipe, with the figures that need it."""
    published = published_setting()
    present = set(recipes)
    rows, cells = [], []
    for name, (figure_numbers, c) in published.items():
        recipe = recipes[name] if name in present else None
        here = {f"here_{k}": v for k, v in _facts(recipe.config).items()} if recipe else {}
        rows.append({"recipe": name, "figures": " ".join(figure_numbers), **_facts(c), **here})
        departures = "; ".join(_departures(c))
        samples = f"{c.population.samples // 2:,}"
        cells.append((samples, c.model.size, departures, *_cells_of_run(recipe)))
    index = pd.Index(
        [", ".join(figure_numbers) for figure_numbers, _ in published.values()], name="Figures"
    )
    return FigureResult(
        data=pd.DataFrame(rows),
        table=pd.DataFrame(cells, index, pd.MultiIndex.from_tuples(_HEADS)),
        notes=(
            "From the configs of the figures at the published setting: a row per recipe, with the figures that need "
            "it. A recipe of the same name in this run is shown beside it.",
            "Defaults: 128 references and 16 targets with different training subsets (the paper often has one "
            "target), batches of 128 samples of at most 1,024 tokens, one epoch, AdamW with 750 warm-up steps to a "
            "peak learning rate of 3e-4 and cosine decay to 3e-5, weight decay 0.1, gradients clipped to norm 1.",
            DEPARTURES,
        ),
    )


def published_setting() -> dict[str, tuple[list[str], Config]]:
    """Returns the recipes at the setting ``paper``: name -> (numbers of the figures that need it, config)."""
    recipes: dict[str, tuple[list[str], Config]] = {}
    for figure in (name for name in figures.MODULES if name.startswith("strongmia_fig")):
        number = figure_number(figure).removeprefix("fig").lstrip("0")
        for _, c in load.load_sweep(f"strongmia:{figure},paper"):
            recipes.setdefault(c.name, ([], c))[0].append(number)
    return recipes


def _departures(c: Config) -> Iterator[str]:
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
    if o.schedule != "cosine":
        yield f"{o.schedule} schedule"
    if o.warmup_steps != 750:
        yield f"{o.warmup_steps} warm-up steps"
    if o.weight_decay != 0.1:
        yield f"weight decay {o.weight_decay:g}"
    if o.clip_norm != 1:
        yield f"clip norm {o.clip_norm:g}" if o.clip_norm else "no clipping"
    if c.population.distinct_prefix_tokens:
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
    except io.MissingModelsError:
        models = "not attacked yet"
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


FIGURES = {
    "strongmia_tab07_settings": PaperFigure(
        title="Table 7: Settings of the figures",
        paper=(
            "Models of 10M to 1018M parameters are trained on 50,000 to 50.9M samples of C4, of about 400 tokens "
            "each, with AdamW, 750 warm-up steps and a cosine schedule, and attacked with 128 references unless a "
            "row says otherwise (Appendix G)."
        ),
        expect=(
            "The table is built from configs/strongmia.py, so it lists the same recipes at every setting, with the "
            "models of the run beside them."
        ),
        statements=(),
        draw=draw_tab07,
    ),
}
