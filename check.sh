#!/usr/bin/env bash
# Lint, types and tests; stops at the first that fails.
set -euo pipefail
cd "$(dirname "$0")"
ruff check .
ruff format --check .
pyright
pytest
