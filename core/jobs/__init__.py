"""Jobs: a folder, a journal and a lock each; the queue, the worker, and the table of verbs. Never loads torch."""
