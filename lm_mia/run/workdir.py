"""A run's folder: its config.json, where its parts lie, and its log of metrics."""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import filelock

from lm_mia import config
from lm_mia.atomic import EXTRACTION, FACTS, write_atomically
from lm_mia.config.recipe import differences
from lm_mia.errors import UserError


@dataclasses.dataclass(frozen=True)
class Workdir:
    """Paths of a run."""

    path: Path

    @property
    def population(self) -> Path:
        """Tokens, sample table, tokenizer and manifest."""
        return self.path / "population"

    def recipe(self, name: str) -> Path:
        """Scores, checkpoints and locks of one recipe."""
        return self.path / f"recipe_{name}"

    def claim(self, c: config.Config) -> list[Path]:
        """Writes config.json before any work, or checks that the workdir belongs to this config.

        Fields that only say how fast, how many or how shown may change, and so may everything while nothing is made.
        Versions of packages and commit stay those that began the workdir; others that come later are listed.

        Returns:
          What was created, outermost first, for `disclaim`.

        Raises:
          UserError: naming every field that differs, a config.json that is not ours or is lost, or a path that is no
            writable folder; nothing is written then.
        """
        made_by = provenance()
        stored, lock = self.path / "config.json", self.path / ".config.lock"
        created = [p for p in (*reversed(self.path.parents), self.path) if not p.exists()]
        created += [p for p in (lock, stored) if not p.exists()]
        self.check(c)
        if self.path.exists() and not self.path.is_dir():
            raise UserError(
                f"--workdir={self.path}: is a file; choose a folder that can be written"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(lock):
                old = self.check(c)
                # a recipe of a sweep that is at work on by itself is still called so
                if old and not c.name:
                    c = dataclasses.replace(c, name=old["config"].get("name", ""))
                known = [{name: old[name] for name in made_by}, *old["later"]] if old else [made_by]
                later = [*known[1:], *([] if made_by in known else [made_by])]
                new = {"config": config.to_dict(c), **known[0], "later": later}
                write_atomically(stored, json.dumps(new, indent=1) + "\n")
        except OSError as error:
            raise UserError(
                f"--workdir={self.path}: {error.strerror}; choose a folder that can be written"
            ) from error
        return created

    def check(self, c: config.Config) -> dict[str, Any] | None:
        """The stored config.json, None if there is none yet; errors as of `claim`."""
        stored = self.path / "config.json"
        rows = any(self.path.glob("recipe_*"))
        if not stored.exists():
            if rows:
                raise UserError(
                    f"{stored}: missing, but rows are there; put it back or choose another --workdir"
                )
            return None
        try:
            old = json.loads(stored.read_text())
            different = differences(old["config"], c)
            _ = [old[name] for name in ("lm_mia", "packages", "commit", "cpu_cores", "later")]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(
                f"{stored}: not a config written by lm-mia; choose another --workdir"
            ) from error
        if different and (rows or self.population.exists()):
            lines = "\n".join(f"  {line}" for line in different)
            raise UserError(
                f"--workdir={self.path}: belongs to another config:\n{lines}\n"
                "  choose another --workdir, or put these fields back"
            )
        return old

    def disclaim(self, created: list[Path]) -> None:
        """Takes back what `claim` created, when the first stage found the input bad."""
        for path in () if self.population.exists() else reversed(created):
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()

    def table_facts(self) -> dict[str, Any] | None:
        """What the tables are about: flips.json, with at least "config" (of the attack) and "first_target".

        None if there are no tables, or unfinished ones.
        """
        path = self.path / FACTS
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_text())
            return {**found, "config": dict(found["config"]), "first_target": found["first_target"]}
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(f"{path}: damaged; run `lm-mia attack` again") from error

    def other_settings(self, c: config.Config) -> dict[str, tuple[Any, Any]]:
        """Settings of the attack in which finished tables differ from a config: name -> (the config's, the tables')."""
        facts, asked = self.table_facts(), config.to_dict(c)["attack"]
        made = facts["config"] if facts else asked
        return {n: (asked[n], made.get(n)) for n in asked if made.get(n) != asked[n]}

    def report_is_old(self) -> bool:
        """Whether tables were made after the report."""
        report, facts = self.path / "report.html", (self.path / FACTS, self.path / EXTRACTION)
        there = [path.stat().st_mtime for path in facts if path.exists()]
        return report.exists() and bool(there) and report.stat().st_mtime < max(there)

    def log(self, event: Mapping[str, Any]) -> None:
        """Appends a line to metrics.jsonl; whole even where several processes append."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, **event}) + "\n"
        with open(self.path / "metrics.jsonl", "ab", buffering=0) as file:
            file.write(line.encode())


def provenance() -> dict[str, Any]:
    """What is at work here: versions of lm_mia and packages, commit and CPU cores."""
    names = (
        "jax",
        "jaxlib",
        "optax",
        "orbax-checkpoint",
        "tensorstore",
        "numpy",
        "scipy",
        "sentencepiece",
    )
    return {
        "lm_mia": importlib.metadata.version("lm-mia"),
        "packages": {name: importlib.metadata.version(name) for name in names},
        "commit": _commit(),
        "cpu_cores": os.cpu_count(),
    }


def _commit() -> str | None:
    """The checkout's commit, with "+" if files differ from it; None outside a checkout."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10
        )
        dirty = subprocess.run(
            [*git, "status", "--porcelain"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (
        head.stdout.strip() + ("+" if dirty.stdout.strip() else "")
        if head.returncode == 0
        else None
    )
