"""An encoder is worth what it does downstream: tasks, fine-tuning, metrics, results.

tables, conll → glue_files, own_files → tasks      files → examples
encoders, features → cells → grid                  encoder + task → one run → all runs
metrics, results, records, display                 scores, what is kept of them, how they are shown
"""
