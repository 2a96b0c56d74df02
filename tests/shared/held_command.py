"""The command `lm-mia` as tests start it: without the report page, and with workers that hold a model at a given step.

The page takes seconds to draw; it is drawn if WITH_PAGE is set. With HOLD_STEP, a worker that has done that many steps
of a model waits until it is asked to stop or the file HOLD_RELEASE exists, so that a test finds it at that step on any
machine; with HOLD_MODEL, only for that model. Workers are spawned, so they run this module too.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_no_page(folder: Path, *_: Any) -> Path:
    """Replaces `analysis.page.write_page`."""
    (folder / "report.html").write_text("")
    return folder / "report.html"


def hold_models() -> None:
    """Patches training in this process, a worker. JAX is imported only when the worker imports it."""
    from lm_mia.run import worker

    work = worker.work

    def holding(*args: Any) -> None:
        from lm_mia.train import loop

        train_model = loop.train_model

        def train_held(
            trainer: Any,
            model: Any,
            steps: Any,
            folder: Any,
            report: Any,
            keep_steps: Any,
            should_stop: Any,
            on_start: Any,
        ) -> None:
            held = os.environ.get("HOLD_MODEL") in (None, str(model))
            stop = waiting(should_stop) if held else should_stop
            train_model(trainer, model, steps, folder, report, keep_steps, stop, on_start)

        setattr(loop, "train_model", train_held)  # noqa: B010 (a plain assignment is none to pyright)
        work(*args)

    setattr(worker, "work", holding)  # noqa: B010


def waiting(should_stop: Callable[[int], bool]) -> Callable[[int], bool]:
    """Returns a function that decides whether to stop after a step, and waits at the step where the model is held."""
    release = os.environ.get("HOLD_RELEASE")

    def wait_or_stop(step: int) -> bool:
        while step == int(os.environ["HOLD_STEP"]) and not should_stop(step):
            if release is not None and Path(release).exists():
                break
            time.sleep(0.01)
        return should_stop(step)

    return wait_or_stop


if __name__ == "__mp_main__" and "HOLD_STEP" in os.environ:
    hold_models()
if __name__ == "__main__":
    if "WITH_PAGE" not in os.environ:
        from analysis import page

        page.write_page = write_no_page
    from lm_mia import cli

    sys.exit(cli.main())
