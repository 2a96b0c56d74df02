#!/usr/bin/env bash
# Lint, types, documentation and tests, also on a real SLURM where possible; stops at the first failure.
set -euo pipefail
cd "$(dirname "$0")"
ruff check .
ruff format --check .
# Beside the other checks, since the tests on SLURM mostly wait for SLURM.
slurm_log=$(mktemp)
bash tests/slurm/slurm_integration.sh >"$slurm_log" 2>&1 &
slurm=$!
trap 'kill $(jobs -p) 2>/dev/null || true; wait; cat "$slurm_log"; rm "$slurm_log"' EXIT
NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet &
mkdocs=$!
pyright
wait $mkdocs
pytest --durations=15
wait $slurm
