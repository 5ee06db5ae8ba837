"""Device time and its price: who used it, which part was idle, and which went into starts."""
