"""Policy ``tide``: the cheapest fleet that keeps the SLA."""
