import ast
import errno
import os
import re
from pathlib import Path

import pytest

from lm_mia import errors


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_disk_problems_are_found_in_causes(number: int):
    assert errors.disk_problem(OSError(number, "x")) == os.strerror(number)
    assert errors.disk_problem(
        ValueError(f"FAILED: {os.strerror(number)} [tensorstore]")
    ) == os.strerror(number)
    behind, shown = OSError(number, "x"), RuntimeError("orbax failed")
    shown.__cause__ = behind
    assert errors.disk_problem(shown) == os.strerror(number)
    shown.__cause__, shown.__context__ = None, behind
    assert errors.disk_problem(shown) == os.strerror(number)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOENT, "no file"), ValueError("space"), KeyError(28)]
)
def test_other_errors_are_not_disk_problems(error: Exception):
    assert errors.disk_problem(error) == ""


def test_circular_causes_end():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert errors.disk_problem(first) == ""


def test_full_disk_without_a_file_name_is_reported_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Errors of writes to open files name no file."""
    monkeypatch.setattr(errors.signal, "signal", lambda *_: None)

    def write() -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert errors.run_action(write) == 2
    assert capsys.readouterr().err == f"disk: {os.strerror(errno.ENOSPC)}; {errors.DISK_REMEDY}\n"


def test_commands_in_messages_have_the_flags_of_the_failed_command():
    argv = ["attack", "--workdir", "my runs", "--config=own.py:a b", "--config.attack.targets", "8"]
    argv += ["--json"]
    settings = "'--config=own.py:a b' --config.attack.targets 8 --workdir 'my runs'"
    for message, expected in (
        ("run `lm-mia corpus` first", f"run `lm-mia corpus {settings}` first"),
        ("`lm-mia score --repair`, `x`", f"`lm-mia score --repair {settings}`, `x`"),
        (
            "`lm-mia run --config=quickstart`",
            "`lm-mia run --config=quickstart --workdir 'my runs'`",
        ),
        ("`lm-mia fields` lists all", "`lm-mia fields` lists all"),
    ):
        assert errors.with_flags(message, argv) == expected
    run_first = "run `lm-mia run` first"
    assert errors.with_flags(run_first, ["audit", "x.csv"]) == run_first
    argv = ["import", "--workdir=a", "x.npz"]
    assert errors.with_flags(run_first, argv) == run_first.replace("run`", "run --workdir=a`")


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
def test_a_file_that_cannot_be_read_is_one_line(
    number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(errors.signal, "signal", lambda *_: None)

    def read() -> int:
        raise OSError(number, os.strerror(number), "targets.csv")

    assert errors.run_action(read) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"targets.csv: {os.strerror(number)}; ")


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "missing"),
        NotADirectoryError(errno.ENOTDIR, "missing"),
        OSError("Corrupt snappy compressed data."),  # of PyArrow, for a damaged file
        ValueError("DATA_LOSS: Digest mismatch"),
        ValueError("NOT_FOUND: No such file or directory [os_error_code='2']"),
    ],
)
def test_missing_and_damaged_files_are_no_failed_reads(error: Exception):
    errors.raise_failed_read(error, "file")
    assert errors.file_problem(error) == ""


def test_failed_reads_name_the_file():
    stale = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    behind = RuntimeError("orbax failed")
    behind.__cause__ = stale
    of_tensorstore = ValueError(f"UNKNOWN: Error reading shard [os_error_code='{errno.ESTALE}']")
    for error in (stale, behind, of_tensorstore):
        with pytest.raises(OSError) as caught:  # noqa: PT011
            errors.raise_failed_read(error, "folder/file")
        assert (caught.value.errno, caught.value.filename) == (errno.ESTALE, "folder/file")


WITHOUT_REMEDY = re.compile(
    r"imported|has no rows with|the samples have no|flips.json has the warnings|has no tables"
)
"""Results that no command could make, or that only code of ours looks for."""


def test_what_is_not_available_says_what_would_make_it():
    """A message names a command or a setting, unless it only passes on the reason of another one."""
    root, messages = Path(__file__).resolve().parents[1], list[str]()
    for path in (*root.glob("analysis/**/*.py"), *root.glob("lm_mia/attacks/**/*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Unavailable"):
                parts = [p.value for p in ast.walk(node.args[0]) if isinstance(p, ast.Constant)]
                messages.append("".join(map(str, parts)))
    assert len(messages) > 40
    remedy = re.compile(r"lm-mia |\b(attack|score|extract|train|population)\.[a-z_]+")
    for message in messages:
        is_passed_on = not re.sub(r"\W", "", message)
        assert is_passed_on or remedy.search(message) or WITHOUT_REMEDY.search(message), message
