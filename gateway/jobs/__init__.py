"""Jobs: requests whose clients do not wait for the answer (`Prefer: respond-async`), and their answers."""
