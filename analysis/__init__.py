"""Draws figures and writes the report page of a workdir from its tables.

    python -m analysis DIR            the report page with figures of the paper (page.py)
    python -m analysis.scaling DIR    a comparison of recipes by model size, samples and epochs (scaling.py)

The figures of the paper are in figures/, grouped by topic; what decides its claims is in claims/.
"""
