"""`python -m mainspring` runs the command `mainspring`."""

from mainspring.cli import entry

if __name__ == "__main__":
    entry()
