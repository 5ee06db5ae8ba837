"""Accelerators of a machine: declared, found and measured."""
