#!/usr/bin/env bash
# Lint, types, documentation and tests, also in a real browser and on a real SLURM where possible. --all adds the tests
# that take long, such as simulations of statistics and kills of several processes, more random examples of properties,
# and the types of all tests.
set -euo pipefail
case "$*" in
  "") tests="not montecarlo and not slow" examples=house typed="lm_mia launch analysis benchmarks configs docs" ;;
  --all) tests="" examples=thorough typed="" ;;
  *) echo "usage: bash check.sh [--all]" >&2; exit 2 ;;
esac
cd "$(dirname "$0")"
# Tests start many processes, each of which would otherwise compile all modules again.
unset PYTHONDONTWRITEBYTECODE
ruff check .
ruff format --check .
# Beside the tests, which often wait; what these print is shown at the end.
logs=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; cat "$logs"/*; rm -r "$logs"' EXIT
pyright $typed >"$logs/pyright" 2>&1 &
pyright=$!
# --quiet would hide warnings from --strict.
NO_MKDOCS_2_WARNING=1 mkdocs build --strict >"$logs/mkdocs" 2>&1 &
mkdocs=$!
# One after the other, since both may install packages by apt-get.
{ bash tests/browser/browser.sh && bash tests/slurm/slurm_integration.sh "$@"; } >"$logs/systems" 2>&1 &
systems=$!
pytest -m "$tests" --hypothesis-profile=$examples --durations=15
wait $pyright
wait $mkdocs
wait $systems
