"""What Lisan does: jobs, and one module a verb. `tests/unit/test_imports.py` lists what never loads torch."""
