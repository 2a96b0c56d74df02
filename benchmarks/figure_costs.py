"""Writes what each figure of configs/ costs into its docstring, after the line "Cost".

    python benchmarks/figure_costs.py [--check]

Rows, and chip-hours of an H100, are those of `lm-mia plan`; minutes of two CPU cores are its FLOPs at the rate that a
whole run of configs/paper.py:cpu reached, with starting and compiling.
"""

import argparse
import re
import sys
from pathlib import Path

from lm_mia.config import load
from lm_mia.config.recipe import asked
from lm_mia.model import flops
from lm_mia.run import plan

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
MFU = 0.4
CPU_FLOPS_A_SECOND = 1e11
"""Of two cores; measured, docs/results/figures.md."""
_HEAD = "Cost, by `lm-mia plan` (chip-hours of an H100 at an MFU of 0.4, which small models do not reach):"


def files() -> list[Path]:
    """Configs of figures and tables, and of all of them."""
    found = [*CONFIGS.glob("fig[0-9]*.py"), *CONFIGS.glob("tab[0-9]*.py"), CONFIGS / "paper.py"]
    return sorted(found)


def block(path: Path) -> str:
    """The lines of a docstring that say what its rows cost at each setting."""
    lines = [_HEAD, ""]
    for setting in ("paper", "gpu", "cpu"):
        entries = load.sweep(f"{path}:{setting}")
        found = plan.recipes(entries, lambda c: plan.assumed(c.population.length_tokens))
        rows, work = sum(r.rows for r in found), sum(r.train_flops + r.score_flops for r in found)
        cost = _hours(work / (MFU * (flops.chip_peak("h100") or 0)) / 3600)
        if setting == "cpu":
            cost = f"about {max(round(work / CPU_FLOPS_A_SECOND / 60), 1)} minutes of 2 cores"
        lines.append(f"    {setting:5}  {rows:>5,} rows  {cost}")
    return "\n".join(lines)


def _rows(config: str) -> int:
    entries = load.sweep(config)
    return sum(a.config.attack.references + a.config.attack.replicas for a in asked(entries))


def _hours(hours: float) -> str:
    return f"{hours:,.0f} hours" if hours >= 100 else f"{hours:.2g} hours"


def filled(path: Path) -> str:
    """The file's text, with its costs as they are now."""
    text = path.read_text()
    pattern = re.compile(r"^Cost(:|, by `lm-mia plan`[^\n]*:\n\n(    [^\n]*\n)+)", re.MULTILINE)
    if not pattern.search(text):
        raise ValueError(f"{path}: no line that begins with Cost")
    return pattern.sub(lambda found: block(path) + "\n" * (found[1] != ":"), text, count=1)


def main() -> int:
    """Entry point; 1 if a docstring is to be written anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    known, old = parser.parse_args(), []
    for path in files():
        new = filled(path)
        if new != path.read_text():
            old.append(path.name)
            if not known.check:
                path.write_text(new)
    print("\n".join(old) or "all as planned")
    for setting in ("paper", "gpu", "cpu"):
        each = sum(_rows(f"{p}:{setting}") for p in files() if p.stem != "paper")
        together = _rows(f"{CONFIGS / 'paper.py'}:{setting}")
        print(f"{setting}: {each:,} rows asked for figure by figure, {together:,} together")
    return int(known.check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
