"""SentEval: transfer tasks, probing tasks, and the classifiers over frozen vectors."""
