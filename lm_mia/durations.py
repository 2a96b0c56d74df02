"""Formats durations and rates for people. Files, JSON output and event logs contain plain numbers instead."""


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
