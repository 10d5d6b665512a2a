"""One step from the gradients of several."""
