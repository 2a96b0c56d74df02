"""Training loss of every row against the step, from metrics.jsonl."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import style
import workdir
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from workdir import Record

_LOOKS: dict[str, tuple[str, str, Literal["-", "--"]]] = {
    "reference": ("References", style.BLUE, "-"),
    "replica": ("Replicas", style.ORANGE, "--"),
}
Curve = dict[int, float]


def curves(events: Iterable[Record]) -> dict[str, tuple[str, Curve]]:
    """(role, loss by step) of every row; where a row logged a step twice, the later one counts."""
    found: dict[str, tuple[str, Curve]] = {}
    for event in events:
        try:
            row, step, loss = str(event["row"]), int(event["step"]), float(event["loss_nats"])
        except (KeyError, TypeError, ValueError):
            continue
        found.setdefault(row, (str(event.get("role", "")), {}))[1][step] = loss
    return found


def draw(rows: Mapping[str, tuple[str, Curve]], epoch_steps: float = 0) -> Figure:
    """Thin lines, one a row; dotted lines where an epoch ends, if its length in steps is given."""
    figure = style.new_figure(6.2, 3.8)
    axes = figure.subplots()
    counts: dict[str, int] = {}
    last = max(max(curve) for _, curve in rows.values())
    for row in sorted(rows):
        role, curve = rows[row]
        _, color, dash = _LOOKS.get(role, (role, style.GREY, "-"))
        steps = sorted(curve)
        axes.plot(
            steps, [curve[s] for s in steps], color=color, linestyle=dash, linewidth=0.8, alpha=0.55
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
    axes.set(xlabel="Step", ylabel="Training loss (nats a token)")
    axes.legend(handles=handles, loc="upper right")
    return figure


def figures(folder: Path) -> dict[str, Figure]:
    """The figure of a workdir; none if the log has no training events."""
    events = workdir.events(folder, "train")
    rows = curves(events)
    if not rows:
        return {}
    steps = [e["steps"] for e in events if isinstance(e.get("steps"), int)]
    epochs = workdir.read_json(folder, "config.json")["config"]["train"]["epochs"]
    return {"training": draw(rows, steps[-1] / epochs if steps else 0)}


if __name__ == "__main__":
    sys.exit(workdir.script(__doc__, figures))
