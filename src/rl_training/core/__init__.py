"""What every other part needs: options, spaces, batches, errors, files, seeds, signals, statistics."""
