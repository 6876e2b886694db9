"""`python -m mainspring` is `mainspring`."""

import sys

from mainspring.cli import main

if __name__ == "__main__":
    sys.exit(main())
