"""Plans of loads, simulations and experiments, read from the options of the command line."""
