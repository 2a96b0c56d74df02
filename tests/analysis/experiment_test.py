"""Tables in LaTeX and Markdown."""

from pathlib import Path

import pandas as pd

from analysis import experiment


def test_tables_are_formatted_as_latex_and_markdown():
    heads = pd.MultiIndex.from_tuples([("ACC", "All"), ("Share of_TPR", "100%")])
    index = pd.Index(["0.01", "≥ 1"], name="FPR")
    table = pd.DataFrame([["0.5 ± 0.1", "−3%"], ["a_b", "–"]], columns=heads, index=index)
    assert experiment.markdown(table) == (
        "| FPR | ACC All | Share of_TPR 100% |\n"
        "| --- | ---: | ---: |\n"
        "| 0.01 | 0.5 ± 0.1 | −3% |\n"
        "| ≥ 1 | a_b | – |\n"
    )
    text = experiment.latex(table)
    assert text.startswith(r"\begin{tabular}{lll}")
    assert r"& \multicolumn{1}{c}{ACC}" in text or "& ACC & Share of" in text
    assert r"0.01 & 0.5 $\pm$ 0.1 & $-$3\% \\" in text
    assert r"$\geq$ 1 & a\_b & – \\" in text
    assert r"100\%" in text


def test_write_creates_csv_markdown_and_latex(tmp_path: Path):
    data = pd.DataFrame({"x": [1.5]})
    assert experiment.write(tmp_path, "tab09", experiment.Drawing(data, table=data)) is None
    assert sorted(p.name for p in (tmp_path / "tables").iterdir()) == [
        "tab09.csv",
        "tab09.md",
        "tab09.tex",
    ]
