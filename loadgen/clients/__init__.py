"""Load clients: they send what a schedule says, when it says so, and write down what came of it."""
