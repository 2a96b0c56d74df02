#!/usr/bin/env bash
# Opens pages in headless Chromium: the page of single samples loads, sorts, filters, searches, and shows a sample; the
# report page does so too, and axe-core finds nothing that keeps anybody from reading it.
#   tests/browser/browser.sh
# Takes a minute on 2 cores, and as long again to install Chromium by apt-get (as root) if it is missing; without it
# the test is skipped. Not a part of the other tests, since these start before Chromium is installed.
set -uo pipefail
cd "$(dirname "$0")/../.."

skip() {
  echo "SKIPPED browser: $1"
  exit 0
}
if ! { command -v chromium && command -v chromedriver; } >/dev/null; then
  command -v apt-get >/dev/null || skip "Chromium and chromedriver are not installed, and there is no apt-get"
  [ "$(id -u)" = 0 ] || skip "Chromium and chromedriver are not installed, and only root can install them"
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update && apt-get install -y --no-install-recommends chromium chromium-driver; } >/dev/null ||
    skip "apt-get could not install chromium and chromium-driver"
fi
exec pytest -n 0 tests/browser/single_samples.py tests/browser/report_page.py
