"""What a daemon is told: options from the command line, the environment and a file, checked."""

from wheeld.config.settings import Config

__all__ = ["Config"]
