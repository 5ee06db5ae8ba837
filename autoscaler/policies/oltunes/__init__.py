"""OLTunes' policy, and its two rivals: which accelerator kinds a function gets (Kim, Ha, Kim)."""
