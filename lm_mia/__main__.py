"""`python -m lm_mia VERB`: the same as `lm-mia VERB`; see `lm_mia.cli`."""

import sys

from lm_mia import cli

sys.exit(cli.main())
