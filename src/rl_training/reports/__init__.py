"""Read runs: tables, plots, the HTML page."""
