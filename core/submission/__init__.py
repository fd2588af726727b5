"""What a job needs before it is queued, and the demo as a chain of jobs. Never loads torch."""
