"""What came of a load: counts of bounded memory, and the reports that are made of them."""
