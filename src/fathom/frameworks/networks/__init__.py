"""One file per network of the performance-factors guide: its layers, a PyTorch module, a Keras model."""
