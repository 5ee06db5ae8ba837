"""Decisions after the policy: limits, groups, totals, reasons, explanations."""
