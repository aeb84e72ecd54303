"""GLUE: its tasks, its files, and what fine-tuning runs score on them. ``evaluate --suite glue`` runs them."""

from contrastive_text.runs.glue.data import TaskFiles, find_tasks, write_task
from contrastive_text.runs.glue.scores import AVERAGED, Finetuned, glue_table
from contrastive_text.runs.glue.tasks import GLUE, GlueTask

__all__ = ["AVERAGED", "GLUE", "Finetuned", "GlueTask", "TaskFiles", "find_tasks", "glue_table", "write_task"]
