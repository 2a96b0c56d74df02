"""``lm-mia plan``: what a config and its sweep cost, told before anything runs, in about a second and without JAX."""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rich.box
from rich.console import Console
from rich.table import Table

from lm_mia import costs, flops, identity, parse, sweep
from lm_mia.config import Config
from lm_mia.costs import Lengths, Recipe
from lm_mia.errors import UserError
from lm_mia.workdir import Workdir

_LOOKED_AT = 2**20  # samples whose lengths are looked at; their order is random
_WIDEST = 400  # characters of a table


@dataclasses.dataclass(frozen=True)
class Chip:
    """What computes; hours of one are told, however many work."""

    name: str
    flops: float
    """Dense bfloat16 FLOP/s of one."""
    mfu: float
    """The share of them that is useful work."""


def flags(parser: argparse.ArgumentParser) -> list[str]:
    """Adds the flags of this verb; returns their names."""
    group = parser.add_argument_group("plan only")
    group.add_argument("--device", metavar="NAME", help="such as h100 or 'tpu v5p', or TFLOP/s")
    group.add_argument("--mfu", type=float, help="useful share of its dense bfloat16 FLOP/s; 0.4")
    group.add_argument("--tokens-per-sample", type=float, metavar="N", help="mean after the cut")
    group.add_argument("--json", action="store_true", default=None, help="for scripts")
    return ["device", "mfu", "tokens_per_sample", "json"]


def show(known: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Prints the plan of ``known.config``, as a table or as JSON; writes nothing.

    Args:
      known: of a parser with `flags`, and with ``config`` and ``workdir``.
      overrides: ``--config.section.field=value``, for all entries of the sweep.

    Raises:
      UserError: naming every flag whose value is wrong, and every mistake in the config and its sweep.
    """
    chip, entries, wrong = None, [], []
    try:
        chip = chip_of(known.device, known.mfu)
    except UserError as error:
        wrong.append(str(error))
    try:
        entries = parse.sweep(known.config, overrides)
        check_tokens(known.tokens_per_sample, entries)
    except UserError as error:
        wrong.append(str(error))
    if wrong or chip is None:
        raise UserError("\n".join(wrong))
    stored, mean = _stored(known.workdir, entries), known.tokens_per_sample

    def lengths(c: Config) -> Lengths:
        there = stored.get(c)
        measured = _measured(*there, c) if there and mean is None else None
        return measured or costs.assumed(c.population.length_tokens, mean)

    def present(c: Config) -> int:
        there = stored.get(c)
        return _present(*there, c) if there else 0

    found = costs.recipes(entries, lengths, present)
    if known.json:
        print(json.dumps(as_json(found, chip), indent=1))
    else:
        _print(found, chip, len(entries))


def as_json(found: Sequence[Recipe], chip: Chip) -> dict[str, Any]:
    """The plan as plain values: {"chip", "recipes": one a recipe, "total"}, names with their units."""
    total = costs.totals(found)
    rate = chip.flops * chip.mfu
    hours = [costs.chip_hours(r, rate) for r in found]
    return {
        "chip": {"name": chip.name, "flops_per_second": chip.flops, "mfu": chip.mfu},
        "recipes": [
            dataclasses.asdict(r) | {"chip_hours": all_rows, "missing_chip_hours": missing}
            for r, (all_rows, missing) in zip(found, hours, strict=True)
        ],
        "total": total
        | {"chip_hours": sum(h[0] for h in hours), "missing_chip_hours": sum(h[1] for h in hours)},
    }


def chip_of(device: str | None, mfu: float | None) -> Chip:
    """What --device and --mfu say; UserError with a line for each that is wrong."""
    name, share = "h100" if device is None else device, 0.4 if mfu is None else mfu
    bad = []
    if not 0 < share <= 1:
        bad.append(f"--mfu={share}: must be above 0 and at most 1; try --mfu=0.4")
    rate = flops.chip_peak(name)
    if rate is None:
        try:
            rate, name = float(name) * 1e12, f"a chip of {float(name):g} TFLOP/s"
        except ValueError:
            known = ", ".join(flops.DEVICES)
            bad.append(
                f"--device={name}: no peak known; say one of {known}, or its dense bfloat16 rate in TFLOP/s"
            )
        else:
            if not 0 < rate < float("inf"):
                bad.append(f"--device={device}: must be a finite rate above 0, in TFLOP/s")
    if bad:
        raise UserError("\n".join(bad))
    assert rate is not None
    return Chip(name, rate, share)


def check_tokens(mean: float | None, entries: Sequence[costs.Entry]) -> None:
    """UserError if samples of no entry can have --tokens-per-sample tokens on average."""
    shortest = min(c.population.length_tokens for _, c in entries)
    if mean is not None and not 3 <= mean <= shortest:
        raise UserError(
            f"--tokens-per-sample={mean:g}: must lie between 3 and population.length_tokens={shortest}, at which "
            "samples are cut"
        )


_Stored = tuple[Workdir, dict[str, Any]]


def _stored(path: str | None, entries: Sequence[costs.Entry]) -> dict[Config, _Stored]:
    """Of the recipes that have a population in the folder, or in folders of their own in it: workdir and config."""
    if not path:
        return {}
    alone = Workdir(Path(path)).population.exists()  # of one config, whatever its sweep is
    folders = {a.config: Path(path) for a in costs.asked(entries)}
    if not alone:
        folders = {task.config: task.folder for task in sweep.tasks(path, entries)}
    found = {}
    for c, folder in folders.items():
        workdir, file = Workdir(folder), folder / "config.json"
        if not workdir.population.exists():
            continue
        try:
            found[c] = workdir, dict(json.loads(file.read_text())["config"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"{file}: not a config written by lm-mia; choose another --workdir"
            ) from error
    return found


def _measured(workdir: Workdir, stored: dict[str, Any], c: Config) -> Lengths | None:
    """Lengths of the workdir's samples, if they are of the config's corpus, vocabulary and length."""
    of = ("corpus.", "tokenizer.", "population.length_tokens")
    if any(line.startswith(of) for line in identity.differences(stored, c)):
        return None
    return lengths_of(workdir.population)


def lengths_of(population: Path) -> Lengths:
    """Lengths of the samples of a population."""
    from lm_mia.population import open_population  # here: pandas and pyarrow take a second

    offsets_N1 = open_population(population, verify=False).offsets_N1
    lengths_N = np.diff(offsets_N1[: _LOOKED_AT + 1]).astype(float)
    said = f"measured in {population}"
    return Lengths(float(lengths_N.mean()), float((lengths_N**2).mean()), said)


def _present(workdir: Workdir, stored: dict[str, Any], c: Config) -> int:
    """How many of a config's rows are trained and scored in the workdir; by names of files only."""
    if identity.differences(stored, c):
        return 0
    from lm_mia import presence  # here: tensorstore and zarr take half a second
    from lm_mia.population import open_population

    sha256 = open_population(workdir.population, verify=False).sha256
    recipe = workdir.recipe(identity.recipe_hash(c, sha256))
    rows = presence.rows_of(c)
    return len(rows) - len(
        presence.scores_of(c, recipe).missing(rows)
    )  # a diverged row is not there


def _print(found: Sequence[Recipe], chip: Chip, entries: int) -> None:
    plan = as_json(found, chip)
    some = plan["total"]["present_rows"] > 0
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    for name in (
        *("model", "params", "rows", *(["present"] if some else []), "steps\na row", "tokens"),
        *("FLOPs:\ntrain", "\nscore", "bytes:\ncheckpoints", "\nscores", "\npopulation"),
        "chip-hours",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for r in plan["recipes"]:
        table.add_row(
            r["name"].replace("+", ", ")
            or ", ".join(f"{k.rpartition('.')[2]}={v}" for k, v in r["sets"].items())
            or "the config",
            r["size"] if r["size"] != "custom" else f"{r['layers']}x{r['width']}",
            _short(r["parameters"], "kMB"),
            *_numbers(r, some, f"{r['row_steps']:,}"),
        )
    if len(found) > 1:
        table.add_section()
        table.add_row("total", "", "", *_numbers(plan["total"], some, ""))
    console = Console()
    # A figure cut short would be worse than a line that wraps.
    needed = console.measure(table, options=console.options.update(width=_WIDEST)).maximum
    console = Console(width=max(console.width, needed))
    console.print(table)
    for line in _notes(found, chip, entries, plan["total"]):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _numbers(of: dict[str, Any], some_present: bool, steps: str) -> list[str]:
    """The cells from rows to chip-hours."""
    hours = of["chip_hours"]
    return [
        f"{of['rows']:,}",
        *([f"{of['present_rows']:,}"] if some_present else []),
        *(steps, _short(of["train_tokens"], "kMBT")),
        *(f"{of[name]:.2e}" for name in ("train_flops", "score_flops")),
        *(in_bytes(of[name]) for name in ("checkpoint_bytes", "store_bytes", "population_bytes")),
        three_digits(hours),
    ]


def three_digits(value: float) -> str:
    """A number for people, without a prefix."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _short(amount: float, prefixes: str, unit: str = "") -> str:
    """Three digits and a prefix: 12.3 k."""
    prefix = ""
    for larger in prefixes:
        if amount < 999.5:
            break
        amount, prefix = amount / 1000, larger
    return f"{amount:.3g} {prefix}{unit}".rstrip()


def in_bytes(amount: float) -> str:
    """Three digits and a prefix, for people."""
    return _short(amount, "kMGTP", "B")


def _notes(found: Sequence[Recipe], chip: Chip, entries: int, total: dict[str, float]) -> list[str]:
    where = {(r.mean_sample_tokens, r.lengths) for r in found}
    samples = "; ".join(f"{mean:.0f} a sample, {said}" for mean, said in sorted(where))
    counted = sum(len(r.entries) for r in found) - len(found)
    left = total["missing_chip_hours"]
    lines = [
        f"chip-hours   of {chip.name}, {chip.flops / 1e12:g} TFLOP/s of dense bfloat16, at an MFU of {chip.mfu:g}",
        f"tokens       useful ones, {samples} (--tokens-per-sample says another mean)",
        "FLOPs        useful ones; scoring takes all samples, at every score point",
        "checkpoints  the last state of every row: parameters and two moments, float32",
    ]
    if total["score_point_bytes"]:
        lines.append(
            f"             and at score points, for statistics asked for later: "
            f"{in_bytes(total['score_point_bytes'])} more"
        )
    if total["present_rows"]:
        lines.append(
            f"left         {left:,.3g} chip-hours, for the {total['rows'] - total['present_rows']} missing rows"
        )
    if counted:
        lines.append(
            f"counted once {counted} of {entries} entries ask for rows of a recipe that is there already"
        )
    return lines
