"""A plan carried out inside a training script, with PyTorch's own parallelism (:func:`apply`)."""
