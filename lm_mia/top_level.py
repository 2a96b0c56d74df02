"""Imports our top-level packages `analysis` and `launch` from the folder beside lm_mia.

Many projects have an ``analysis`` or ``launch`` of their own, and Python finds that one first if it is in the current
folder. Hence entry points call `import_packages` before they import ours.
"""

import importlib.util
import sys
from pathlib import Path

from lm_mia.errors import UserError

NAMES = ("analysis", "launch")


def import_packages() -> None:
    """Imports the packages in `NAMES` from beside lm_mia, whatever comes first on ``sys.path``.

    Their modules are then found in the same folders, since Python looks for modules of a package that is already
    loaded in its ``__path__`` only.

    Raises:
      UserError: if another module of one of these names is already loaded, which names its place.
    """
    for name in NAMES:
        file = Path(__file__).resolve().parent.parent / name / "__init__.py"
        loaded = sys.modules.get(name)
        if loaded is None:
            spec = importlib.util.spec_from_file_location(name, file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
            continue
        # A folder without an __init__.py has no file.
        place = loaded.__file__ or next(iter(loaded.__path__))
        if Path(place).resolve() != file:
            raise UserError(
                f"{name}={place}: lm_mia has a package of this name, but another one is already loaded; rename your "
                f"{name}, or use lm_mia in a process that does not import it"
            )
