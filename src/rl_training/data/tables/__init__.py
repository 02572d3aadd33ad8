"""Tables to rows."""
