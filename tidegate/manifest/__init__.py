"""A function's manifest: the tables of annotations and spec values, and the reader that checks them."""
