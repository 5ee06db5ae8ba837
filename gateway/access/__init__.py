"""Authentication, authorisation and quotas."""
