"""`python -m wheeld` is the command `wheeld`."""

from wheeld.cli import app

if __name__ == "__main__":
    app(prog_name="wheeld")
