"""The simulator: the live objects of gateway and autoscaler on an event heap."""
