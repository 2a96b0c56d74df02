"""Draws figures and writes the report page of a workdir, from the tables and score stores in it.

    python -m analysis DIR            the report page, with figures of a paper (page.py)
    python -m analysis.scaling DIR    compares recipes by model size, samples and epochs

The figures of papers are in figures/, grouped by topic.
"""
