"""How quantities and tables are printed for people. Files, JSON output and event logs contain plain numbers instead."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_MAX_WIDTH = 400  # of a table, in characters


def format_duration(seconds: float) -> str:
    """Formats a duration, such as "1.2 s", "25 s", "43 min", "1 h 20 min" or "1,842 h".

    Two minutes and more are given in minutes, an hour and more in hours and minutes, ten hours and more in hours.
    """
    if 0 < seconds < 0.001:
        return "< 1 ms"
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if not hours:
        return f"{minutes} min"
    if hours >= 10:
        return f"{seconds / 3600:,.0f} h"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def format_rate(per_hour: float) -> str:
    """Formats a number of things per hour with three digits, such as "0.25", "12.5" or "1,842"."""
    return f"{per_hour:,.0f}" if per_hour >= 100 else f"{per_hour:.3g}"


def plural(count: int, noun: str) -> str:
    """Returns a count with its noun, such as "1 model" or "1,024 models"."""
    return f"{count:,} {noun}" + "s" * (count != 1)


def short(amount: float, prefixes: str, unit: str = "") -> str:
    """Formats a number with three digits and a prefix, such as 12.3 k."""
    prefix = ""
    for larger in prefixes:
        if amount < 999.5:
            break
        amount, prefix = amount / 1000, larger
    return f"{amount:.3g} {prefix}{unit}".rstrip()


def format_bytes(amount: float) -> str:
    """Formats a number of bytes with three digits and a prefix."""
    return short(amount, "kMGTP", "B")


def print_table(table: "Table", notes: Sequence[str]) -> None:
    """Prints a table without truncating its numbers, even on a narrow terminal, and notes below it."""
    from rich.console import Console  # here, since most commands print no table

    console = Console()
    # It is better to wrap a line than to truncate a number.
    needed = console.measure(table, options=console.options.update(width=_MAX_WIDTH)).maximum
    console = Console(width=max(console.width, needed))
    console.print(table)
    for line in notes:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
