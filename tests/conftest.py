import dataclasses
import functools
import gc
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import threadpoolctl
from built_once import built_once
from synthetic_scores import SMALL, AttackRun, run_attacks, write_scores

from analysis import plotting
from lm_mia import config
from lm_mia.data import build, tokenizer
from lm_mia.data.population import Population
from lm_mia.data.tokenizer import train_tokenizer

# The objects of modules and tests stay until the end. Looking through all of them for garbage again and again would
# take three quarters of the time of the collection of tests.
gc.disable()


def pytest_collection_finish() -> None:
    """Looks for garbage among what tests make, from now on, and more rarely than by default, which saves time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


# Set before any test imports JAX. All test processes, and those that they start, share one cache of compiled code,
# which is kept between runs.
CACHE = Path(__file__).resolve().parent.parent / ".pytest_cache" / "jax"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# Most tests take longer to compile than to compute. Processes that they start inherit it, so bits stay comparable.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# The older generator of code for fused operations takes a fifth of the time of the newer one, in one thread.
QUICK_COMPILATION = (
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *QUICK_COMPILATION)).strip()

# Test processes run side by side. Threads of BLAS for matrices as small as those of the tests would only wait.
threadpoolctl.threadpool_limits(1, user_api="blas")

# A shell starts background jobs with Ctrl-C ignored, and commands that tests start would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, without deadlines on busy machines: failures come from changes of the code only.
# check.sh --all tries more of them.
thorough = hypothesis.settings(derandomize=True, deadline=None)
hypothesis.settings.register_profile("thorough", thorough)
hypothesis.settings.register_profile("house", thorough, max_examples=20)
hypothesis.settings.load_profile("house")

# A PDF takes half of the time of a figure; the layout, which measures all labels, and compressing a PNG of full size
# take most of the rest. Only the tests that look into these files need them.
LAYOUT, DPI = "figure.constrained_layout.use", "savefig.dpi"
FULL_STYLE, WRITE_PDF = (
    {name: plotting.STYLE[name] for name in (LAYOUT, DPI)},
    plotting.FORMATS["pdf"],
)
plotting.STYLE |= {LAYOUT: False, DPI: 60}
plotting.FORMATS["pdf"] = lambda figure, path: path.touch()


FIRST = ("docs/pages_test.py", "analysis/attacks_test.py", "model/kinds_test.py")
"""Long files, one for each test process. The second makes the sweep that many other files share; the others do not need
it, so that processes do not wait for each other at the start."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets the files in `FIRST` begin; the others keep their order."""
    tests = Path(__file__).resolve().parent
    rank = {tests / file: i for i, file in enumerate(FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(FIRST)))


@pytest.fixture(scope="session", autouse=True)
def _vocabularies_are_trained_once() -> Iterator[None]:
    """Populations that are built from the same texts share one training of their vocabulary in a test process.

    Tests of the training itself have imported the function.
    """
    train = tokenizer.train_tokenizer

    @functools.cache
    def once(texts: tuple[str, ...], vocab_size: int) -> bytes:
        return train(texts, vocab_size)

    def trained(texts: Iterable[str], vocab_size: int) -> bytes:
        return once(tuple(texts), vocab_size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "train_tokenizer", trained)
        yield


@pytest.fixture
def full_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are written as the command writes them."""
    for name, value in FULL_STYLE.items():
        monkeypatch.setitem(plotting.STYLE, name, value)
    monkeypatch.setitem(plotting.FORMATS, "pdf", WRITE_PDF)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Population:
    """Returns a real population: 2N = 20 texts of 1-9 words, cut at L = 8 tokens, and a vocabulary of 32."""
    sentence = "the model learns which sample it saw in training and forgets all others"
    words = sentence.split()
    draw = np.random.default_rng(5)
    drawn = (" ".join(draw.choice(words, draw.integers(1, 10))) for _ in range(26))
    texts = list(dict.fromkeys(drawn))
    settings = config.Population(samples=20, seed=1, length_tokens=8)
    return build.write_population(
        tmp_path_factory.mktemp("tiny") / "population",
        [(text, str(i), "") for i, text in enumerate(texts)],
        build.PopulationSpec(settings, train_tokenizer(texts, 32)),
    )


@pytest.fixture(scope="session")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> AttackRun:
    """Returns an attack with 12 references, 8 replicas and 600 samples, a few of which have too few references."""
    return built_once(tmp_path_factory, "attacked", attack)


def attack(folder: Path) -> AttackRun:
    c = dataclasses.replace(SMALL, headline="stacked")
    return run_attacks(write_scores(folder, c, 600), c, folder / "tables")
