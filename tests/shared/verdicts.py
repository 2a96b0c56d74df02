"""The verdicts on a claim by name, so that tests hold no wording."""

from analysis.claims.compare import VERDICTS

SUPPORTED, SUPPORTED_HERE, CONTRADICTED, UNDECIDED, NOT_TESTED = VERDICTS
