"""The daemon's options, from the command line, the environment and a file, and their checks."""

from wheeld.config.settings import Config

__all__ = ["Config"]
