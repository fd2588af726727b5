"""The built-in family: a small English and French voice that runs offline on a CPU."""
