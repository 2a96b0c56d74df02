"""Reuse of a population whose files of texts have changed since it was built."""

import os
import re
from pathlib import Path

from docstring_corpus import PIECES, SIZES, source

from lm_mia import config
from lm_mia.data import build

__all__ = ["source"]  # a fixture


def test_texts_that_changed_later_are_reported(tmp_path: Path, source: config.Corpus):
    built = build.build_population(source, PIECES, SIZES, tmp_path / "p")
    messages: list[str] = []
    build.build_population(source, PIECES, SIZES, built.folder, log=messages.append)
    assert messages == []
    replaced, texts = tmp_path / "replaced.txt", Path(source.path)
    replaced.write_text("another text")
    os.utime(replaced, (0, 0))
    replaced.replace(texts / "001.txt")
    (texts / "000.txt").unlink()
    again = build.build_population(source, PIECES, SIZES, built.folder, log=messages.append)
    assert again.sha256 == built.sha256
    [message] = messages
    assert re.match(
        rf"corpus: 000\.txt and 1 more in {texts} changed .*{built.folder} .*--workdir$",
        message,
    )
