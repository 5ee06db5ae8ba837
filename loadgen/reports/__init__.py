"""Results of a load: counts in bounded memory, and the reports made from them."""
