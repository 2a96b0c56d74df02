import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lm_mia import interrupts

# Commands that take a minute unless they are stopped: one in Python, one in a callback of the garbage collector, where
# Python ignores exceptions, and one in the C++ code of sentencepiece.
COMMAND = """
import gc, random, sys, time
from lm_mia import errors
from lm_mia.data import tokenizer

def sleep():
    print("ready", flush=True)
    time.sleep(60)
    return 0

def collect():
    gc.callbacks.append(lambda phase, info: sleep() if phase == "start" else 0)
    gc.collect()
    gc.callbacks.clear()
    time.sleep(60)
    return 0

def train():
    words = ["".join(random.choices("abcdefghijklmnop", k=6)) for _ in range(20_000)]
    def texts():
        for _ in range(9_000):
            yield " ".join(random.choices(words, k=300))
        print("ready", flush=True)
    tokenizer.train_apart(texts(), 4000)
    return 0

if __name__ == "__main__":
    sys.exit(errors.run_action({"sleep": sleep, "collect": collect, "train": train}[sys.argv[1]]))
"""


@pytest.mark.process
@pytest.mark.parametrize("what", ["sleep", "collect", "train"])
def test_ctrl_c_is_confirmed_at_once_and_ends_the_command(tmp_path: Path, what: str):
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    # Tests that run a worker in this process leave it ignoring Ctrl-C, which processes inherit.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [sys.executable, str(script), what],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)  # all texts are read, and sentencepiece trains
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.stderr.readline() == "stopping\n"
        confirmed_seconds = time.monotonic() - began
        rest = process.stderr.read()
    assert process.returncode == 130
    assert re.fullmatch(r"stopped; [^\n]*\n", rest)
    # Generous, since other tests may run beside this one.
    assert confirmed_seconds < 2
    assert time.monotonic() - began < 10


@pytest.mark.process
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_still_loading_ends_without_a_traceback(number: int, code: int):
    script = f"""
import os, signal, sys
from lm_mia import __main__

class SignalAtImport:
    def find_spec(self, name, *_):
        if name == "tyro":
            os.kill(os.getpid(), {int(number)})

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, SignalAtImport())
sys.exit(__main__.main())
"""
    ended = subprocess.run([sys.executable, "-c", script, "status"], capture_output=True, text=True)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.removeprefix("stopping\n") == (
        "stopped; run the same command again to continue\n"
    )


def test_the_handler_is_restored_and_ignored_signals_stay_ignored():
    before = signal.getsignal(signal.SIGINT)
    try:
        for handler in (signal.default_int_handler, signal.SIG_IGN):
            signal.signal(signal.SIGINT, handler)
            with interrupts.confirmed():
                is_replaced = signal.getsignal(signal.SIGINT) is not handler
                assert is_replaced == (handler is signal.default_int_handler)
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.process
def test_processes_that_are_started_in_the_block_are_not_interrupted():
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    argv = [sys.executable, "-c", code]
    with interrupts.blocked():
        inside = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    after = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert (inside, after) == ("True\n", "False\n")
