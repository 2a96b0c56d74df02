"""Draws figures and writes HTML reports from the tables and score stores of finished runs.

    python -m analysis SWEEP          StrongMIA's figures and tables for a sweep, with an HTML report (page.py)
    python -m analysis.report RUN     the report of a single run
    python -m analysis.scaling DIR    compares recipes by model size, samples and epochs

The figures are in figures/, grouped by topic.
"""
