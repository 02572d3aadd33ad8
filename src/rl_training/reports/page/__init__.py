"""The report of runs as one HTML page."""
