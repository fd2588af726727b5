"""What each verb refuses beyond what it needs: one module for each that refuses something.

See `core.jobs.verbs.VerbModule`. Importing one loads no torch, because the page and the command line do.
"""
