"""Output of commands, and the options they share."""
