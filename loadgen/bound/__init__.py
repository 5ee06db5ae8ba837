"""Lower bounds of cost: the best schedule with knowledge of the future."""
