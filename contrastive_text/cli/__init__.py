"""The shell command: ``contrastive-text fit | validate | test | predict | ensemble | views | embed | ...``."""

from contrastive_text.cli.main import run

__all__ = ["run"]
