"""Profiles of hypothesis: every run takes its default, ``.ci/run deep`` the long one."""

from hypothesis import settings

settings.register_profile("deep", max_examples=2000, deadline=None)
