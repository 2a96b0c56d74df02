"""The command `lm-mia VERB`, which is also `python -m lm_mia VERB`; see `lm_mia.cli`."""

import importlib
import sys

from lm_mia.errors import run_action


def main() -> int:
    """Runs the command line of this process; returns its exit code, as defined by `lm_mia.errors.run_action`."""

    def load() -> int:
        importlib.import_module("lm_mia.cli")
        return 0

    # Loading takes up to seconds, in which Ctrl-C must not end in a traceback either.
    if code := run_action(load):
        return code
    from lm_mia import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
