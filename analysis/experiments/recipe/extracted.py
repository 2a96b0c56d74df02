"""Which texts can be extracted: the section that the page has only if the first replica generates some of the texts.

N: samples that were to be extracted.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from analysis.io import RecipeResults
from analysis.report import document
from lm_mia.printing import plural

if TYPE_CHECKING:
    from analysis.extraction import Extraction

LIKELY = 0.01
"""A text can be extracted if the probability of its continuation is above this, or if the model has written it."""
_ROWS = 8
_MAX_CHARS = 200  # of a text


def extracted(result: "Extraction") -> np.ndarray:
    """Returns extracted_N: whether a continuation is likely, or was written word for word by a decoding scheme."""
    extracted_N = result.column("log_p_sampled") > math.log(LIKELY)
    for scheme in result.facts["schemes"]:
        if f"exact_{scheme}" in result.samples[0]:
            extracted_N |= result.column(f"exact_{scheme}") > 0
    return extracted_N


def section(recipe: RecipeResults) -> document.Section | None:
    """Returns the section "Which texts can be extracted?"; None if there are none."""
    from analysis import (
        extraction,
    )  # loads matplotlib, which the last line of a command does without

    result = extraction.read(recipe)
    if result is None:
        return None
    extracted_N, member_N = extracted(result), result.member_N
    if not extracted_N.any():
        return None
    log_p_N = result.column("log_p_sampled")
    chosen = np.flatnonzero(extracted_N)
    chosen = chosen[np.argsort(-log_p_N[chosen], kind="stable")][:_ROWS]
    id_N = result.column("id").astype(int)
    position_N = id_N - recipe.attacked.first_id
    rows = tuple(
        document.Row(
            (
                f"{id_N[n]}",
                _shortened(recipe.attacked.text(int(position_N[n]))),
                "member" if member_N[n] else "not a member",
                extraction.format_exponent(float(log_p_N[n])),
                ", ".join(
                    title
                    for name, title in result.facts["schemes"].items()
                    if result.samples[n].get(f"exact_{name}")
                )
                or "–",
            )
        )
        for n in chosen
    )
    columns = (
        document.Column("Sample"),
        document.Column("Text", "text", is_text=True),
        document.Column("Membership", "membership", is_text=True),
        document.Column("Probability at temperature 1", "probability"),
        document.Column("Written word for word", "written word for word", is_text=True),
    )
    count = int(extracted_N.sum())
    sentence = (
        f"{count:,} of {plural(len(extracted_N), 'tried text')} can be extracted, {int(member_N[extracted_N].sum()):,} "
        f"of them members: after their first {result.facts['config']['prefix_tokens']} tokens, the model writes the "
        f"next {result.facts['config']['suffix_tokens']} word for word, or with a probability above 1 % in each try."
    )
    caption = (
        "The texts whose continuations are likeliest."
        if count > len(rows)
        else "All of them, the likeliest first."
    )
    table = document.Table(caption, columns, rows)
    return document.Section(
        "extracted",
        "Extraction",
        "Which texts can be extracted?",
        (sentence, table),
        continues=True,
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]} …"
