"""Choose among policies, and what may be claimed afterwards."""
