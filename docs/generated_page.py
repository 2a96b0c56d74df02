"""What the scripts that generate pages of the documentation have in common: they write a page, or compare it."""

import argparse
from collections.abc import Callable
from pathlib import Path


def main(page: Path, page_text: Callable[[], str], description: str) -> int:
    """Runs a script that generates a page; returns 1 with --check if the page is out of date.

    Args:
      page: the page.
      page_text: returns what the page is to contain.
      description: what the script does.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on differences")
    check = parser.parse_args().check
    text = page_text()
    current = page.exists() and page.read_text(encoding="utf-8") == text
    if not current and not check:
        page.write_text(text, encoding="utf-8")
    print(f"{page}: {'up to date' if current else 'out of date' if check else 'written'}")
    return int(check and not current)
