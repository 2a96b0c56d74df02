#!/usr/bin/env bash
# Lint, types, documentation and tests, finally on a real SLURM where possible; stops at the first failure.
set -euo pipefail
cd "$(dirname "$0")"
ruff check .
ruff format --check .
pyright
NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet
pytest --durations=15
bash tests/slurm/slurm_integration.sh
