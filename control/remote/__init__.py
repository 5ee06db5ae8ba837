"""Gateways on other machines than the control process: their process, and its links to them."""
