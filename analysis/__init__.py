"""From the tables and score stores of finished runs to figures and pages.

    python -m analysis SWEEP          the figures and tables of StrongMIA of a sweep, and a page of them (page.py)
    python analysis/report.py RUN     the page of a single run
    python analysis/scaling.py DIR    recipes by size, samples and epochs

The figures are in figures/, by idea.
"""
