"""What may be wrong with a dataset: one function per check."""
