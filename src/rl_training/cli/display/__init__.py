"""What commands print, and the options they share."""
