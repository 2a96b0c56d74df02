"""Claims of the paper: estimates with intervals, verdicts, and trends over samples."""
