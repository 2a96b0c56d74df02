"""`python -m analysis DIR`: see `analysis.page`."""

import sys

from analysis import page

if __name__ == "__main__":
    sys.exit(page.main(sys.argv[1:]))
