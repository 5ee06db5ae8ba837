"""OLTunes: prediction that learns online, and batches of tasks on shared devices (Kim, Ha, Kim)."""
