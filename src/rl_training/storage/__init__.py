"""Everything a run keeps outside its process."""
