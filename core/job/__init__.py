"""A job: its directory, its journal, its lock, its place in the queue. Never loads torch."""
