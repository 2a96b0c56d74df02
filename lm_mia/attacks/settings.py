"""Settings of attacks and evaluations: the keyword-only parameters of the functions that compute them."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from lm_mia.attacks.user_code import UserCodeError


@functools.cache
def settings_of(*functions: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the settings that functions read: the names of their keyword-only parameters, sorted.

    A function is called with these settings and no others, so that the key of its result cannot leave one out.
    """
    parameters = [p for f in functions for p in inspect.signature(f).parameters.values()]
    return tuple(sorted({p.name for p in parameters if p.kind is p.KEYWORD_ONLY}))


def read_settings(function: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that a function reads, with their values.

    Raises:
      UserCodeError: there is no such setting.
    """
    names = settings_of(function)
    if unknown := [name for name in names if name not in settings]:
        raise UserCodeError(
            f"{inspect.getsourcefile(function)}: {', '.join(unknown)}: keyword-only parameters of "
            f"{function.__name__} are settings, but there are none of this name; choose from "
            f"{', '.join(sorted(settings))}"
        )
    return {name: settings[name] for name in names}
