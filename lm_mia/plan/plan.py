"""``lm-mia plan``: estimates the cost of a config and its sweep, in about a second and without JAX.

FLOPs, tokens, bytes and chip-hours follow from the config (`lm_mia.run.costs`). Chip-hours also depend on the measured
or possible speed of an accelerator (`speed`); for CPUs they are unknown. If models of the workdir are finished, the
time for the others follows from theirs (`lm_mia.run.remaining`). If the recipes have been attacked, the plan also says
what more references would add (`more_references`).
"""

import argparse
import dataclasses
import difflib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import rich.box
from rich.table import Table

from lm_mia.attacks.spec import FigureNeed
from lm_mia.errors import UserError
from lm_mia.model import flops
from lm_mia.plan import more_references
from lm_mia.plan import speed as speeds
from lm_mia.plan.speed import Chip, Speed
from lm_mia.printing import format_bytes, format_duration, format_rate, print_table, short
from lm_mia.run import devices, model_sizes, remaining
from lm_mia.run.costs import RecipeCost, count_present, recipe_cost, sample_lengths
from lm_mia.run.sweep import Sweep

_ARCHITECTURE_WIDTH = 120  # of the tables of modules, in characters


@dataclasses.dataclass(frozen=True)
class FinishedModels:
    """How fast the models of a workdir were made, and how long the missing ones take if they are made as fast."""

    per_hour: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Models per hour of each recipe that has at least two finished models, by name."""
    seconds_left: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Seconds of the missing models of each recipe, by name. Empty if no rate is known; the rate of recipes without
    finished models is that of the others, scaled by FLOPs."""
    devices: tuple[str, ...] = ()
    """The names of the devices that made them."""


def finished_models(sweep: Sweep, costs: Sequence[RecipeCost]) -> FinishedModels:
    """Reads how fast the models of a sweep were made from the log of its workdir."""
    rates = remaining.read_rates(sweep.workdir.path)
    known = {c.name: rates[c.name] for c in costs if c.name in rates}
    per_second = {n: value for n, rate in known.items() if (value := rate.per_second())}
    if not per_second:
        return FinishedModels()
    works = [
        remaining.RecipeWork(
            c.name, c.models - c.present_models, (c.train_flops + c.score_flops) / c.models
        )
        for c in costs
    ]
    names = sorted({device for name in per_second for device in known[name].devices})
    return FinishedModels(
        {name: 3600 * value for name, value in per_second.items()},
        remaining.seconds_left(works, per_second),
        tuple(names),
    )


def chip_hours(cost: RecipeCost, speed: Speed) -> tuple[float, float]:
    """Returns the chip-hours of all models, and those of the missing models."""
    train_seconds = cost.train_flops / speed.train_flops_per_second
    hours = (train_seconds + cost.score_flops / speed.score_flops_per_second) / 3600
    return hours, hours * (cost.models - cost.present_models) / cost.models


NO_MODELS = "0 models: all figures are simulations, which need none"


def totals(costs: Sequence[RecipeCost]) -> dict[str, float]:
    """Returns sums over recipes; a shared population is counted once."""
    names = (
        "models",
        "present_models",
        "train_tokens",
        "train_flops",
        "score_flops",
        "checkpoint_bytes",
        "score_point_bytes",
        "store_bytes",
    )
    populations = {r.population: r.population_bytes for r in costs}
    sums: Mapping[str, float] = {name: sum(getattr(r, name) for r in costs) for name in names}
    return {**sums, "population_bytes": sum(populations.values())}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `lm-mia plan`."""
    add_cost_flags(
        parser.add_argument_group("cost"),
        "cpu (whose time is unknown until models are finished in the workdir), or a chip, such as",
        "the device of this machine",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="also print the modules, shapes and parameters of each model; not with --json",
    )


def add_cost_flags(
    group: argparse._ArgumentGroup, device: str = "chip, such as", default: str = "h100"
) -> None:
    """Adds the flags for `choose_chip`, `parse_chip` and `check_tokens`; the texts are for the help of ``--device``."""
    group.add_argument(
        "--device",
        metavar="NAME",
        help=f"{device} h100 or 'tpu v5p', or its dense bfloat16 rate in TFLOP/s (default: {default})",
    )
    group.add_argument(
        "--mfu",
        type=float,
        help="model FLOPs utilization with one device per model: fraction of the chip's peak rate that is achieved "
        "(default: measured for H100, a scaled roofline bound for TPU v5p, 0.4 for other chips)",
    )
    group.add_argument(
        "--tokens-per-sample",
        type=float,
        metavar="N",
        help="mean tokens per sample after truncation (default: measured if the population exists, else that of C4)",
    )


def print_plan(
    sweep: Sweep,
    chip: Chip | None,
    tokens_per_sample: float | None,
    as_json_text: bool,
    read_needs: Callable[[], Sequence[FigureNeed]],
) -> None:
    """Prints the cost of a sweep, and what more references would add, as tables or as JSON; writes no files.

    Args:
      sweep: the recipes.
      chip: the accelerator; None: a CPU, or another device whose speed is unknown.
      tokens_per_sample: mean tokens of a sample; None: measured if the population exists, else assumed.
      as_json_text: whether to print JSON.
      read_needs: as for `more_references.read_forecast`.

    Raises:
      UserError: if samples of a recipe cannot have ``tokens_per_sample`` tokens on average.
    """
    check_tokens(tokens_per_sample, sweep)
    model_sizes.check([recipe.config for recipe in sweep.recipes])
    costs = [
        recipe_cost(r, sample_lengths(r, tokens_per_sample), count_present(r))
        for r in sweep.recipes
    ]
    finished = finished_models(sweep, costs)
    forecasts = [
        more_references.read_forecast(r, _model_hours(cost, chip, finished), read_needs)
        for r, cost in zip(sweep.recipes, costs, strict=True)
    ]
    if as_json_text:
        plan = as_json(costs, chip, finished)
        for recipe, forecast in zip(plan["recipes"], forecasts, strict=True):
            recipe["more_references"] = more_references.as_json(forecast)
        print(json.dumps(plan, indent=1))
        return
    print_costs(costs, chip, finished)
    table, notes = more_references.to_table(
        [f for f in forecasts if f is not None], "time" if chip is None else "chip time"
    )
    if table is not None:
        print()
        print_table(table, notes)
    else:
        print(*notes, sep="\n", end="\n" if notes else "")


def _model_hours(cost: RecipeCost, chip: Chip | None, finished: FinishedModels) -> float | None:
    """Returns the hours of one chip for a model; without a chip, those at the rate of the finished models, or None."""
    if chip is not None:
        return chip_hours(cost, speeds.speed(cost.batches, chip))[0] / cost.models
    per_hour = finished.per_hour.get(cost.name)
    return None if per_hour is None else 1 / per_hour


def as_json(
    costs: Sequence[RecipeCost], chip: Chip | None, finished: FinishedModels
) -> dict[str, Any]:
    """Returns the plan as plain values: {"chip", "recipes", "total"}, with units in the names; None: unknown."""
    recipes = []
    for r in costs:
        values = {name: v for name, v in dataclasses.asdict(r).items() if name != "batches"}
        values |= {"chip_hours": None, "missing_chip_hours": None, "speed": None}
        if chip is not None:
            speed = speeds.speed(r.batches, chip)
            hours, missing = chip_hours(r, speed)
            values |= {"chip_hours": hours, "missing_chip_hours": missing}
            values["speed"] = dataclasses.asdict(speed)
        values["models_per_hour"] = finished.per_hour.get(r.name)
        values["seconds_left"] = finished.seconds_left.get(r.name)
        recipes.append(values)
    total: dict[str, float | None] = dict(totals(costs))
    for name in ("chip_hours", "missing_chip_hours"):
        total[name] = None if chip is None else sum(values[name] for values in recipes)
    left = finished.seconds_left
    total["seconds_left"] = sum(left.values()) if left else None
    return {
        "chip": chip and {"name": chip.name, "flops_per_second": chip.flops, "mfu": chip.mfu},
        "finished_on": list(finished.devices),
        "recipes": recipes,
        "total": total,
    }


def choose_chip(device: str | None, mfu: float | None) -> Chip | None:
    """Returns the chip of --device and --mfu, by default that of this machine; None: its peak rate is unknown.

    Raises:
      UserError: with one line for each invalid flag.
    """
    name = devices.accelerator() if device is None else device
    if name != "cpu" and (device is not None or flops.chip_peak(name) is not None):
        return parse_chip(name, mfu)
    if mfu is not None:
        raise UserError(
            f"--mfu={mfu:g}: has no effect on {name}, whose peak rate is unknown; add --device=h100, or leave out --mfu"
        )
    return None


def parse_chip(device: str | None, mfu: float | None) -> Chip:
    """Returns the chip of --device and --mfu; raises UserError with one line for each invalid flag."""
    name = "h100" if device is None else device
    problems = []
    if mfu is not None and not 0 < mfu <= 1:
        problems.append(f"--mfu={mfu}: must be above 0 and at most 1; try --mfu=0.4")
    rate = flops.chip_peak(name)
    if rate is None:
        try:
            rate, name = float(name) * 1e12, f"a chip of {float(name):g} TFLOP/s"
        except ValueError:
            names = ["cpu", *flops.DEVICE_NAMES]
            similar = difflib.get_close_matches(name.lower(), names, 1)
            hint = f"did you mean {similar[0]}? " if similar else ""
            problems.append(
                f"--device={name}: unknown chip; {hint}choose one of {', '.join(names)}, or give its dense bfloat16 "
                "rate in TFLOP/s"
            )
        else:
            if not 0 < rate < float("inf"):
                problems.append(
                    f"--device={device}: must be a finite rate above 0, in TFLOP/s; try --device=h100"
                )
    if problems:
        raise UserError("\n".join(problems))
    assert rate is not None
    return Chip(name, rate, mfu)


def chip_of_nodes(label: str) -> str | None:
    """Returns the chip that the label of a node names, such as "tpu v5e" of tpu-v5-lite-podslice; None: unknown."""
    return flops.chip_name(label)


def check_tokens(mean: float | None, sweep: Sweep) -> None:
    """Raises UserError if the samples of a recipe cannot have --tokens-per-sample tokens on average."""
    lengths = [recipe.config.population.length_tokens for recipe in sweep.recipes]
    shortest = min(lengths, default=math.inf)
    if mean is not None and not 3 <= mean <= shortest:
        raise UserError(
            f"--tokens-per-sample={mean:g}: must be from 3 to population.length_tokens={shortest}, the length to which "
            "samples are truncated"
        )


def print_costs(costs: Sequence[RecipeCost], chip: Chip | None, finished: FinishedModels) -> None:
    """Prints a table with one line per recipe, and explanations of its columns."""
    if not costs:
        print(NO_MODELS)
        return
    plan = as_json(costs, chip, finished)
    has_present = plan["total"]["present_models"] > 0
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    for name in (
        "model",
        "params",
        "models",
        *(["present"] if has_present else []),
        "steps\nper model",
        "tokens",
        "FLOPs:\ntrain",
        "\nscore",
        "bytes:\ncheckpoints",
        "\nscores",
        "\npopulation",
        *([] if chip is None else ["MFU", "chip time"]),
        *(["time left"] if finished.seconds_left else []),
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for r in plan["recipes"]:
        table.add_row(
            r["name"],
            r["size"] if r["size"] != "custom" else f"{r['layers']}x{r['width']}",
            short(r["parameters"], "kMB"),
            *_numbers(r, has_present, f"{r['steps_per_model']:,}"),
        )
    if len(costs) > 1:
        table.add_section()
        table.add_row("total", "", "", *_numbers(plan["total"], has_present, ""))
    print_table(table, _footnotes(costs, chip, finished, plan["total"]))


def print_architectures(sweep: Sweep) -> None:
    """Prints a table of modules, output shapes and parameters for each distinct model architecture of a sweep.

    Only shapes are computed, without any device. The parameters of all layers are stacked along their first axis.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"  # do not initialize accelerators
    import jax  # imported here because the other tables do not need it
    from flax.linen.summary import tabulate

    from lm_mia.model import kinds
    from lm_mia.model.transformer import ModelConfig

    recipes: dict[ModelConfig, list[str]] = {}
    for recipe in sweep.recipes:
        c = recipe.config
        model_config = ModelConfig.from_settings(
            c.model, c.tokenizer.vocab_size, c.population.length_tokens
        )
        recipes.setdefault(model_config, []).append(recipe.name)
    for model_config, names in recipes.items():
        tabulate_model = tabulate(
            kinds.build(model_config),
            jax.random.key(0),
            console_kwargs={"force_terminal": False, "width": _ARCHITECTURE_WIDTH},
            table_kwargs={"box": rich.box.SIMPLE_HEAD, "pad_edge": False},
        )
        text = tabulate_model(jax.ShapeDtypeStruct((1, model_config.length_tokens), np.int32))
        print(f"\nmodel of {', '.join(names)}: shapes for one sample, and parameters of all layers")
        print(*(line.rstrip() for line in text.splitlines() if line.strip()), sep="\n")


def _numbers(values: dict[str, Any], has_present: bool, steps: str) -> list[str]:
    """Returns the cells from the number of models to the last column."""
    hours, left = values["chip_hours"], values["seconds_left"]
    mfu = f"{values['speed']['mfu']:.2f}" if values.get("speed") else ""
    return [
        f"{values['models']:,}",
        *([f"{values['present_models']:,}"] if has_present else []),
        steps,
        short(values["train_tokens"], "kMBT"),
        *(f"{values[name]:.2e}" for name in ("train_flops", "score_flops")),
        *(
            format_bytes(values[name])
            for name in ("checkpoint_bytes", "store_bytes", "population_bytes")
        ),
        *([] if hours is None else [mfu, format_duration(3600 * hours)]),
        *([] if left is None else [format_duration(left)]),
    ]


def _text_shares(costs: Sequence[RecipeCost]) -> str:
    """Returns the shares of the text that the samples contain, one for each population in which they are known."""
    shares = {r.population: r.text_share for r in costs if r.text_share is not None}
    if not shares:
        return "unknown until `lm-mia corpus` has tokenized the documents"
    listed = ", ".join(f"{100 * share:.3g}%" for share in dict.fromkeys(shares.values()))
    unknown = len({r.population for r in costs}) - len(shares)
    others = f"; not known yet for {unknown} populations" if unknown else ""
    return f"{listed} of the tokens of the drawn documents are in the samples{others}"


def _checkpoint_parts(costs: Sequence[RecipeCost]) -> str:
    """Returns what the checkpoints contain whose bytes are shown."""
    state = "the state of the optimizer"
    if all(r.keep_moments for r in costs):
        return f"the last state of every model: parameters and {state}"
    if any(r.keep_moments for r in costs):
        return (
            f"the last state of every model: parameters and {state}, but only parameters of recipes with "
            "train.keep_moments=False, once a model is scored"
        )
    return f"the parameters of every model; {state} is deleted once it is scored (train.keep_moments=False)"


def _footnotes(
    costs: Sequence[RecipeCost],
    chip: Chip | None,
    finished: FinishedModels,
    total: dict[str, float],
) -> list[str]:
    lengths = {(r.mean_sample_tokens, r.lengths) for r in costs}
    samples = "; ".join(
        f"{mean:.0f} per sample on average, {source}" for mean, source in sorted(lengths)
    )
    entries = sum(len(r.entries) for r in costs)
    shared = entries - len([cost for cost in costs if cost.entries])
    lines = [
        *_time_footnotes(costs, chip, finished),
        f"tokens       without padding; {samples} (--tokens-per-sample sets another mean)",
        f"text used    {_text_shares(costs)}",
        "FLOPs        without padding; scoring covers all samples, at every score point",
        f"checkpoints  {_checkpoint_parts(costs)}",
    ]
    if total["score_point_bytes"]:
        lines.append(
            f"             and at score points, for statistics that are requested later: "
            f"{format_bytes(total['score_point_bytes'])} more"
        )
    if total["present_models"] and chip is not None:
        missing_time = format_duration(3600 * total["missing_chip_hours"])
        lines.append(
            f"left         {missing_time} of one chip, for the "
            f"{total['models'] - total['present_models']} missing models"
        )
    if shared:
        lines.append(
            f"counted once {shared} of {entries} entries request models of a recipe that is already listed"
        )
    return lines


def _time_footnotes(
    costs: Sequence[RecipeCost], chip: Chip | None, finished: FinishedModels
) -> list[str]:
    lines = []
    if chip is not None:
        lines += speeds.footnotes({r.name: speeds.speed(r.batches, chip) for r in costs}, chip)
    elif not finished.per_hour:
        lines.append(
            "time         unknown until two models of the workdir are finished, since there is no table for CPUs and "
            "unlisted chips (--device=h100 plans for an accelerator)"
        )
    if finished.per_hour:
        on = f" on {', '.join(finished.devices)}" if finished.devices else ""
        rates = [format_rate(rate) for rate in finished.per_hour.values()]
        per_hour = f"{rates[0]} models per hour" if len(rates) == 1 else "as many models per hour"
        scaled = ", scaled by FLOPs for recipes without any" if len(rates) < len(costs) else ""
        lines.append(
            f"time left    at {per_hour}, as the finished models of the workdir were made{on}{scaled}"
        )
    return lines
