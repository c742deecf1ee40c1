"""`python -m paribus`: the command `paribus`."""

import sys

from paribus.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
