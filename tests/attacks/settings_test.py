from typing import Any

import pytest

from lm_mia.attacks.settings import read_settings, settings_of
from lm_mia.attacks.user_code import UserCodeError


def test_settings_are_keyword_only_parameters():
    def evaluation(scores: Any, part: int = 0, *, fprs: Any, alpha: Any) -> None: ...

    def other(scores: Any, *, alpha: Any, delta: Any = 1.0) -> None: ...

    assert settings_of(evaluation) == ("alpha", "fprs")
    assert settings_of(evaluation, other) == ("alpha", "delta", "fprs")
    settings = {"alpha": 0.1, "fprs": (0.2,), "band": (0, 1)}
    assert read_settings(evaluation, settings) == {"alpha": 0.1, "fprs": (0.2,)}
    with pytest.raises(UserCodeError, match=r"settings_test.py: delta: .* alpha, band, fprs"):
        read_settings(other, settings)
