"""Training loss of every row that the tables are about against the step, from metrics.jsonl.

Beside it, where rows were validated, the loss of held-out samples (StrongMIA Figure 15(a)).
"""

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import rows
import style
import workdir
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from workdir import Record

_LOOKS: dict[str, tuple[str, str, Literal["-", "--"]]] = {
    "reference": ("References", style.BLUE, "-"),
    "replica": ("Replicas", style.ORANGE, "--"),
}
Curve = dict[int, float]


@dataclasses.dataclass(frozen=True)
class Log:
    """What metrics.jsonl says of the rows of the tables; other rows and recipes are left out."""

    curves: dict[str, tuple[str, Curve]]
    steps: int
    """Of a row's training; 0 if the log does not say."""
    trained: list[Record]
    """Events row_trained, in order."""
    scored: list[Record]
    """Events row_scored of the ends of rows, in order."""
    validation: dict[str, tuple[str, Curve]]
    """As curves, of the held-out samples; no rows if none were validated."""


def read(folder: Path) -> Log:
    """The log of a workdir."""
    recipe, names = workdir.flip_facts(folder)["recipe"], set(rows.read(folder).names)
    train, trained, scored, validated = (
        [
            e
            for e in workdir.events(folder, kind)
            if e.get("recipe") == recipe and e.get("row") in names
        ]
        for kind in ("train", "row_trained", "row_scored", "validation")
    )
    scored = [e for e in scored if e.get("last", True)]
    steps = [e["steps"] for e in train if isinstance(e.get("steps"), int)]
    validation = curves(validated, "validation_loss_nats")
    return Log(curves(train), steps[-1] if steps else 0, trained, scored, validation)


def curves(events: Iterable[Record], value: str = "loss_nats") -> dict[str, tuple[str, Curve]]:
    """(role, a value by step) of every row's last training.

    A step that is not after all before it was logged by a later training, begun anew or resumed: what the earlier one
    said of this step and of those after it no longer counts.
    """
    found: dict[str, tuple[str, Curve]] = {}
    for event in events:
        try:
            row, step, loss = str(event["row"]), int(event["step"]), float(event[value])
        except (KeyError, TypeError, ValueError):
            continue
        role, before = found.get(row, (str(event.get("role", "")), {}))
        found[row] = role, {s: old for s, old in before.items() if s < step} | {step: loss}
    return found


def draw(
    lines: Mapping[str, tuple[str, Curve]],
    epoch_steps: float = 0,
    validation: Mapping[str, tuple[str, Curve]] | None = None,
) -> Figure:
    """Thin lines, one a row; dotted lines where an epoch ends, if its length in steps is given.

    With validation losses there are two panels of one scale, training on the left.
    """
    panels = [("Training loss (nats a token)", lines)]
    if validation:
        panels.append(("Validation loss (nats a token)", validation))
    figure = style.new_figure(6.2 if len(panels) == 1 else 9.6, 3.8)
    found = figure.subplots(1, len(panels), sharey=True, sharex=True, squeeze=False)[0]
    for axes, (label, rows_of) in zip(found, panels, strict=True):
        _lines(axes, rows_of, epoch_steps)
        axes.set(xlabel="Step", ylabel=label)
        axes.yaxis.set_tick_params(labelleft=True)
    return figure


def _lines(axes: Axes, lines: Mapping[str, tuple[str, Curve]], epoch_steps: float) -> None:
    """One panel."""
    counts: dict[str, int] = {}
    last = max(max(curve) for _, curve in lines.values())
    for row in sorted(lines):
        role, curve = lines[row]
        _, color, dash = _LOOKS.get(role, (role, style.GREY, "-"))
        steps = sorted(curve)
        axes.plot(
            steps,
            [curve[s] for s in steps],
            color=color,
            linestyle=dash,
            linewidth=0.8,
            marker="." if len(steps) == 1 else "",  # a line of one point would not be seen
            alpha=0.55,
        )
        counts[role] = counts.get(role, 0) + 1
    if epoch_steps > 0 and last / epoch_steps <= 40:
        for epoch in range(1, int(last / epoch_steps + 1e-9) + 1):
            axes.axvline(epoch * epoch_steps, color=style.GREY, linestyle=":", linewidth=0.8)
    handles = []
    for role in counts:
        label, color, dash = _LOOKS.get(role, (role or "Rows", style.GREY, "-"))
        handles.append(
            Line2D([], [], color=color, linestyle=dash, label=f"{label} ({counts[role]})")
        )
    axes.legend(handles=handles, loc="upper right")


def figures(folder: Path) -> dict[str, Figure | None]:
    """The figure of a workdir; None if the log has no training events of its rows."""
    log = read(folder)
    if not log.curves:
        return {"training": None}
    epochs = workdir.run(folder)["config"]["train"]["epochs"]
    return {"training": draw(log.curves, log.steps / epochs, log.validation)}


if __name__ == "__main__":
    sys.exit(workdir.script(__doc__, figures))
