"""What Lisan does: jobs, and one module a verb. `tests/repository/test_imports.py` lists what never loads torch."""
