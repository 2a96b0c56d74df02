"""The last stage: tables -> figures and report.html, by the script that the config names.

The packages `analysis` and `lm_mia` are in the same folder, both in a checkout and in an installation.
"""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock

from lm_mia.config import Config
from lm_mia.errors import UserError
from lm_mia.run.progress import Display


def script(c: Config, wanted: bool = True) -> Path:
    """The script that the config names; a misspelt name is told before hours of training, if a report is wanted."""
    from analysis.figures import MODULES, draws

    places = [Path(__file__).resolve().parents[2] / c.report, Path(c.report)]
    script = next((p for p in places if p.is_file()), places[0])
    built_in = MODULES if _module(script) else {}
    bad = (
        [] if script.is_file() else [f"report={c.report!r}: no such script in the checkout or here"]
    )
    bad += [
        f"figures={name!r}: no {name}.py with TITLE, PAPER, STATEMENTS and draw() beside {c.report}"
        for name in c.figures
        if name not in built_in and not draws(script.parent / f"{name}.py")
    ]
    if wanted and bad:
        raise UserError("\n".join(bad))
    return script


def _module(script: Path) -> str | None:
    """The full name of a script that is a module of `analysis`; None for a script of the user's own."""
    import analysis

    ours = Path(analysis.__file__).resolve().parent
    return f"analysis.{script.stem}" if script.resolve().parent == ours else None


def run(script: Path, arguments: Sequence[str], display: Display) -> None:
    """Runs a script of figures, whose lines ``DONE of WHAT`` move a bar, and those ``not drawn...`` are said.

    UserError with what it says of bad input.
    """
    module = _module(script)
    # -P: neither the script's folder nor the current one comes before the standard library
    of_python = ["-P", "-m", module] if module else [str(script.absolute())]
    command = [sys.executable, *of_python, *arguments]
    display.update("report", 0, 1)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as at_work:
        assert at_work.stdout is not None
        assert at_work.stderr is not None
        with ThreadPoolExecutor(1) as pool:
            said = pool.submit(at_work.stderr.read)
            try:
                for line in at_work.stdout:
                    if found := re.match(r"(\d+) of (\d+)\b", line):
                        display.update("report", *map(int, found.groups()))
                    elif line.startswith("not drawn"):
                        display.say(line.strip())
            except BaseException:  # Ctrl-C or SIGTERM: what is drawn so far stays
                at_work.kill()
                raise
    if at_work.returncode == 2:
        raise UserError(said.result().strip())
    if at_work.returncode:
        raise RuntimeError(f"{script} failed:\n{said.result()}")
    display.update("report", 1, 1)


@contextlib.contextmanager
def alone(path: Path, display: Display) -> Iterator[None]:
    """Holds a lock; says so if another command has it."""
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        display.say("waiting for another command, which writes the tables of this workdir")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
