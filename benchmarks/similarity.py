"""Measures similarities of texts that have nothing to do with each other, by the length of the generated text.

    python -m benchmarks similarity

Prints a Markdown table in two seconds. Targets are 150 characters of docstrings of the standard library's `argparse`,
`logging`, ... modules; each is compared with texts of the other modules, 1 to 30 times as long.
"""

import difflib
import importlib
import inspect
from collections.abc import Iterator

import numpy as np

from lm_mia import stats

_TARGETS = ("argparse", "datetime", "decimal", "email.message", "logging", "sqlite3", "zipfile")
_OTHERS = ("asyncio", "collections", "concurrent.futures", "ctypes", "heapq", "http.client")
_OTHERS += ("inspect", "ipaddress", "itertools", "json", "multiprocessing", "os", "pathlib")
_OTHERS += ("pickle", "random", "re", "shutil", "socket", "statistics", "subprocess", "tarfile")
_OTHERS += ("tempfile", "threading", "unittest", "urllib.request", "uuid", "xmlrpc.client")
_CHARS = 150
_PAIRS = 100


def main() -> None:
    """Prints the table."""
    targets, others = (list(_docstrings(modules)) for modules in (_TARGETS, _OTHERS))
    targets = [text for text in targets if len(text) >= _CHARS]
    rng = np.random.default_rng(0)
    print(
        "| length of the text / of the target | `edit_similarity` | PrivacyGuard's edit similarity | "
        "`common_substring` | `common_subsequence` | difflib's matching blocks |"
    )
    print("|---|---|---|---|---|---|")
    for times in (1, 2, 5, 10, 30):
        rows = []
        for _ in range(_PAIRS):
            target = targets[rng.integers(len(targets))]
            start = rng.integers(len(target) - _CHARS + 1)
            target = target[start : start + _CHARS]
            text = " ".join(others[i] for i in rng.permutation(len(others)))[: times * _CHARS]
            longer = max(len(target), len(text))
            blocks = difflib.SequenceMatcher(None, target, text).get_matching_blocks()
            lengths = (
                longer - stats.edit_distance(target, text),
                stats.common_substring(target, text),
                stats.common_subsequence(target, text),
                sum(block.size for block in blocks),
            )
            rows.append((stats.edit_similarity(target, text), *np.array(lengths) / len(target)))
        print(f"| {times} | " + " | ".join(f"{mean:.3f}" for mean in np.mean(rows, axis=0)) + " |")


def _docstrings(modules: tuple[str, ...]) -> Iterator[str]:
    for name in modules:
        for _, member in sorted(vars(importlib.import_module(name)).items()):
            if (inspect.isclass(member) or callable(member)) and (text := inspect.getdoc(member)):
                yield stats.clean_text(text, collapse_spaces=True)


if __name__ == "__main__":
    main()
