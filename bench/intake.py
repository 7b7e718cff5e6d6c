"""`python -m bench.intake`, as `python -m bench --only intake`."""

import sys

from bench.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["--only", "intake", *sys.argv[1:]]))
