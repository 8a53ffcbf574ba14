"""An encoder is worth what it does downstream: tasks, fine-tuning, metrics, results.

tables, conll, labels → glue_files, own_files → splits → tasks   files → examples, and which of them judge
encoders, features, methods → trials → grid  encoder + task + method → one fine-tuning → all of them
metrics, identity, results, display          scores, what is kept of them, how they are shown
probe_text → probe_tasks; layers → probing   text → questions; a frozen encoder's states → answers (probe_records)
effective_rank                               how many dimensions those states use
finetuning, tabulating, probing, predicting  the verbs finetune, glue, probe and predict
"""
