"""The shell command: ``contrastive-text fit | validate | test | predict | views | embed | evaluate``."""

from contrastive_text.cli.main import run

__all__ = ["run"]
