"""Canaries for a model that is trained elsewhere: texts whose place in the training set is decided by fair coins.

Whoever trains the model mixes the texts whose coin is heads into the training set. The number of coins that can be
guessed from the losses of all canaries gives a lower bound on epsilon (`lm_mia.stats.one_run_bound`).

K: canaries.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm_mia import seeds
from lm_mia.atomic import replacing, write_atomically
from lm_mia.errors import UserError

Source = Literal["held_out", "new_words", "random_words"]
SOURCES: tuple[Source, ...] = get_args(Source)
"""What canaries are made of. held_out: texts as they are. new_words: other texts, in which every fourth word is
replaced by a new one of random letters. random_words: words of all texts, drawn uniformly at random, as many as a text
of the median length has."""
TABLE = "canaries.parquet"
"""Name of the file with all canaries and their coins, for the owner."""
INCLUDED = "included.jsonl"
"""Name of the file with the canaries that the model is to be trained on."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_NEW_WORD_LETTERS = 8
_REPLACED = 4  # every fourth word
_MAX_DUPLICATES = 10  # candidates per canary, before the draw of random words is given up


def check(numbers: Mapping[Source, int], seed: int) -> None:
    """Raises UserError, with one line per problem, if numbers of canaries or the seed are impossible."""
    problems = [
        f"{_flag(source, number)}: must be 0 or more; try 0"
        for source, number in numbers.items()
        if number < 0
    ]
    if not any(numbers.values()):
        flags = ", ".join(_flag(source, 0) for source in numbers)
        problems.append(f"{flags}: there are no canaries; set one of them to 100 or more")
    if seed < 0:
        problems.append(f"--seed={seed}: must be 0 or more; try --seed=0")
    if problems:
        raise UserError("\n".join(problems))


def _flag(source: Source, number: int) -> str:
    return f"--{source.replace('_', '-')}={number}"


def make(
    ids: Sequence[str], texts: Sequence[str], numbers: Mapping[Source, int], seed: int
) -> pa.Table:
    """Makes canaries and tosses their coins; both are functions of the texts, the numbers and the seed.

    Args:
      ids: the names of the texts.
      texts: texts that the model is not trained on otherwise. Empty and repeated ones are not used.
      numbers: the number of canaries from each source, and
      seed: the seed of the draws, as `check` accepts them.

    Returns:
      A row for each canary, all of them with different texts: `id`, counted from 0, `text`, `source`, `name` (the id of
      the text from which the canary is made, "" for random words) and `member` (whether its coin is heads).

    Raises:
      UserError: if there are too few texts or words for so many different canaries.
    """
    distinct = {
        text: name for name, text in reversed([*zip(ids, texts, strict=True)]) if text.split()
    }
    usable = sorted(distinct)  # the order of the file does not matter
    needed = numbers["held_out"] + numbers["new_words"]
    if needed > len(usable):
        flags = ", ".join(_flag(source, numbers[source]) for source in ("held_out", "new_words"))
        raise UserError(
            f"{flags}: need {needed:,} different texts, but there are {len(usable):,}; lower them to "
            f"{len(usable) // 2:,} each, or give more texts"
        )
    words = sorted({word for text in usable for word in text.split()})
    first, second = numbers["held_out"], numbers["new_words"]
    drawn = [usable[i] for i in seeds.draw(seed, "canaries/texts", len(usable), first + second)]
    parts: dict[Source, tuple[list[str], list[str]]] = {
        "held_out": (drawn[:first], drawn[:first]),
        "new_words": (_with_new_words(drawn[first:], {*words}, seed), drawn[first:]),
        "random_words": (_random_words(numbers["random_words"], usable, words, seed), []),
    }
    rows = [
        (text, source, distinct[origins[k]] if origins else "")
        for source, (made, origins) in parts.items()
        for k, text in enumerate(made)
    ]
    text_K, source_K, name_K = zip(*rows, strict=True)
    member_K = seeds.coins(seed, "canaries/coins", len(rows))
    columns = {"id": np.arange(len(rows)), "text": text_K, "source": source_K, "name": name_K}
    return pa.table(columns | {"member": member_K})


def write(folder: Path, table: pa.Table, seed: int) -> None:
    """Writes the table of all canaries, and the texts of the members as JSON lines in random order.

    Raises:
      UserError: if the folder has other canaries, whose coins would be lost, or a file that is not of canaries.
      OSError: if the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, included = folder / TABLE, folder / INCLUDED
    if path.exists():
        if not _is_equal(path, table):
            raise UserError(
                f"--out={folder}: {path} has other canaries, and no audit of a model that was trained with them is "
                "possible without their coins; choose another folder"
            )
    elif included.exists():
        raise UserError(f"--out={folder}: {included} would be replaced; choose another folder")
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
    texts = table.filter(table["member"])["text"].to_pylist()
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    order = seeds.permutation(seed, "canaries/order", len(lines))
    write_atomically(included, "".join(f"{lines[k]}\n" for k in order))


def _with_new_words(texts: Sequence[str], words: set[str], seed: int) -> list[str]:
    """Returns texts in which every fourth word, or the last one of a shorter text, is replaced by a new word."""
    new_words = _new_words(words, seed)
    return ["".join(_replace_words(text, new_words)) for text in texts]


def _replace_words(text: str, new_words: Iterator[str]) -> Iterator[str]:
    parts = re.findall(r"\S+|\s+", text)
    total = len(text.split())
    step, number = min(_REPLACED, total), 0
    for part in parts:
        number += not part.isspace()
        yield next(new_words) if not part.isspace() and number % step == 0 else part


def _new_words(words: set[str], seed: int) -> Iterator[str]:
    """Yields words of random letters that are neither in the texts nor repeated."""
    stream = seeds.rng(seed, "canaries/new words").bit_generator
    taken = {word.lower() for word in words}
    while True:
        letters = seeds.uniform_below(stream, len(_LETTERS), _NEW_WORD_LETTERS)
        word = "".join(_LETTERS[int(i)] for i in letters)
        if word not in taken:
            taken.add(word)
            yield word


def _random_words(number: int, texts: Sequence[str], words: Sequence[str], seed: int) -> list[str]:
    """Returns texts of random words; raises UserError if there are too few words for so many different texts."""
    if not number:
        return []
    length = max(int(np.median([len(text.split()) for text in texts])), 1) if texts else 0
    stream = seeds.rng(seed, "canaries/random words").bit_generator
    taken, made = {*texts}, list[str]()
    for _ in range(_MAX_DUPLICATES * number if words else 0):
        drawn = seeds.uniform_below(stream, len(words), length)
        text = " ".join(words[int(i)] for i in drawn)
        if text not in taken:
            taken.add(text)
            made.append(text)
        if len(made) == number:
            return made
    raise UserError(
        f"--random-words={number}: the texts have {len(words):,} different words and a median length of {length:,}, "
        "too few for so many different texts; lower it, or give more texts"
    )


def _is_equal(path: Path, table: pa.Table) -> bool:
    try:
        return pq.read_table(path).equals(table)
    except (pa.ArrowException, OSError):
        return False
