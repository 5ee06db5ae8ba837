"""Knative ``Service`` manifests."""

from typing import Final

from tidegate.document import Section
from tidegate.draft import Draft
from tidegate.function import Function

KNATIVE_API_VERSION: Final = "serving.knative.dev/v1"
KNATIVE_KIND: Final = "Service"


def read_service(root: Section, draft: Draft) -> Function | None:
    return None
