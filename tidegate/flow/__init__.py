"""Admission engines without IO: slots, queues, quotas, retry budget, outliers."""
