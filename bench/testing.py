"""`python -m bench.testing`, as `python -m bench --only testing`."""

import sys

from bench.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["--only", "testing", *sys.argv[1:]]))
