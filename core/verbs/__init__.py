"""One module for each verb of the table (`core.jobs.verbs`): what it refuses, what its jobs are about, and its work.

Importing one loads no torch, because the page and the command line do; `run` imports the work in its body, which takes
seconds and is needed in the worker alone. See `core.jobs.verbs.VerbModule`.
"""
