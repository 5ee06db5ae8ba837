"""The custom resources and their rules, made from the tables that the manifest reader uses."""
