"""What the scripts that generate pages of the documentation have in common: they write pages, or compare them."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path


def main(texts: Mapping[Path, Callable[[], str]], description: str) -> int:
    """Runs a script that generates pages; returns 1 with --check if one of them is out of date.

    Args:
      texts: page -> a function that returns what the page is to contain.
      description: what the script does.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on differences")
    return write(texts, check=parser.parse_args().check)


def write(texts: Mapping[Path, Callable[[], str]], *, check: bool) -> int:
    """Writes pages, one after the other; or compares them, and returns 1 if one of them is out of date."""
    outdated = False
    for page, page_text in texts.items():
        text = page_text()
        is_current = page.exists() and page.read_text(encoding="utf-8") == text
        outdated |= not is_current
        if not is_current and not check:
            page.parent.mkdir(exist_ok=True)
            page.write_text(text, encoding="utf-8")
        print(f"{page}: {'up to date' if is_current else 'out of date' if check else 'written'}")
    return int(check and outdated)
