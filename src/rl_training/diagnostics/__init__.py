"""Whether the training, the model and the machine are all right."""
