"""`python -m mainspring` is `mainspring`."""

from mainspring.cli import entry

if __name__ == "__main__":
    entry()
