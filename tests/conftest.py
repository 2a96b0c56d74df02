import numpy as np
import pytest

from lm_mia import population
from lm_mia.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> population.Population:
    """A real population: 2N = 20 texts of 1-9 words, cut at L = 8 tokens of a vocabulary of 32 pieces."""
    sentence = "the model learns which sample it saw in training and forgets all others"
    words = sentence.split()
    draw = np.random.default_rng(5)
    drawn = (" ".join(draw.choice(words, draw.integers(1, 10))) for _ in range(26))
    texts = list(dict.fromkeys(drawn))
    return population.write(
        tmp_path_factory.mktemp("tiny") / "population",
        [(text, str(i)) for i, text in enumerate(texts)],
        train_tokenizer(texts, 32),
        seed=1,
        samples=20,
        length_tokens=8,
    )
