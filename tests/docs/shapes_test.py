"""Names of arrays end in the letters of docs/reference/shapes.md, or in letters that their module defines."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "shapes.md"
OF_MODELS = ("lm_mia/model/", "lm_mia/train/", "lm_mia/score/", "lm_mia/hf/")
NOUNS = {
    "N": "samples texts units members canaries",
    "M": "models references",
    "T": "attacked targets target trainings models replicas",
    "R": "references models replicas",
    "C": "samples",
    "F": "rates rate",
    "Z": "samples",
    "V": "vocabulary words embedding",
}
"""One of these words is in the meaning that a module gives to a letter that means the same everywhere."""
SHAPE = re.compile(r"_((?:\d*[A-Z]+\d*)(?:x[0-9A-Z]+)*)$")
# "N: samples, M: models." and "Legend: N samples, M models."
DEFINITION = re.compile(r"(?<![\w'])\d?([A-Z])\d?(?: \(B\))?: (.*?)(?=, [A-Z]\d?\b|[.;] |[.;]?$)")
SHARED = re.compile(r"(?<![\w'])([A-Z])\d?(?:, | and )(?=[A-Z]\d?(?:, | and |: ))")
LEGEND = re.compile(r"(?:^|, |; )(?:and )?([A-Z])\d? (.*?)(?=, (?:and )?[A-Z]\d? |[.;] |[.;]?$)")


def tables() -> dict[str, list[list[str]]]:
    """Returns {heading: cells of the rows} of the page."""
    sections = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found: dict[str, list[list[str]]] = {}
    for heading, text in zip(sections[1::2], sections[2::2], strict=True):
        rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
        found[heading] = rows[2:]
    return found


@functools.cache
def letters(heading: str) -> frozenset[str]:
    return frozenset(row[0] for row in tables()[heading])


def modules() -> list[str]:
    files = (
        p for folder in ("lm_mia", "analysis", "launch") for p in (ROOT / folder).rglob("*.py")
    )
    return sorted(str(p.relative_to(ROOT)) for p in files)


def used(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields (letter, name) for each letter of the shapes in names of arrays."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                pass
            case _:
                continue
        shape = SHAPE.search(name)
        if shape and name != name.upper():  # otherwise it is a constant
            for letter in re.findall("[A-Z]", shape[1]):
                yield letter, name


def defined(docstring: str) -> dict[str, str]:
    """Returns {letter: meaning} of the letters that a docstring of a module defines."""
    meanings: dict[str, str] = {}
    for paragraph in docstring.split("\n\n"):
        text = " ".join(paragraph.split())
        meanings |= {letter: "" for letter in SHARED.findall(text)}
        meanings |= {letter: meaning for letter, meaning in DEFINITION.findall(text)}
        if (begin := text.find("Legend: ")) >= 0:
            meanings |= dict(LEGEND.findall(text[begin + len("Legend: ") :]))
    return meanings


@pytest.mark.parametrize(
    ("docstring", "meanings"),
    [
        ("N: samples, K1: bins.", {"N": "samples", "K": "bins"}),
        ("Legend: N samples (of a class), R1 all\nof them. More.", {"N": "samples (of a class)", "R": "all of them"}),
        ("A1, R1, H1: as in there.", {"A": "", "R": "", "H": "as in there"}),
        ("No letters here.", {}),
    ],
)  # fmt: skip
def test_definitions_in_docstrings(docstring: str, meanings: dict[str, str]):
    assert defined(docstring) == meanings


@pytest.mark.parametrize("module", modules())
def test_letters_are_those_of_the_page_or_of_the_module(module: str):
    tree = ast.parse((ROOT / module).read_bytes())
    meanings = defined(ast.get_docstring(tree) or "")
    area = "In models, training and scoring"
    if not module.startswith(OF_MODELS):
        area = "In statistics, attacks and figures"
    known = letters("Everywhere") | letters(area) | meanings.keys()
    unknown = sorted({f"{letter} in {name}" for letter, name in used(tree) if letter not in known})
    assert not unknown, f"{module}: {unknown}; define the letters in the docstring of the module"


def test_letters_of_all_modules_mean_the_same():
    """A module that uses one of them in another way is listed on the page."""
    assert letters("Everywhere") == NOUNS.keys()
    others: set[tuple[str, str]] = set()
    for module in modules():
        tree = ast.parse((ROOT / module).read_bytes())
        occurring = {letter for letter, _ in used(tree)}
        for letter, meaning in defined(ast.get_docstring(tree) or "").items():
            is_usual = not {*re.findall(r"\w+", meaning)}.isdisjoint(NOUNS.get(letter, "").split())
            if letter in NOUNS and letter in occurring and meaning and not is_usual:
                others.add((module, letter))
                print(f"| `{module}` | {letter} | {meaning} |")
    listed = {(row[0].strip("`"), row[1]) for row in tables()["Exceptions"]}
    assert others == listed
