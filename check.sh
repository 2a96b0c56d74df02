#!/usr/bin/env bash
# Lint, types and tests, at last on a real SLURM where it can be had; stops at the first that fails.
set -euo pipefail
cd "$(dirname "$0")"
ruff check .
ruff format --check .
pyright
pytest --durations=15
bash tests/slurm/slurm_integration.sh
