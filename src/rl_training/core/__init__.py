"""The library of all districts: options, spaces, batches, errors, files, seeds, signals, statistics."""
