"""Tidegate: a serverless inference gateway and autoscaler. This package is the base that all components import."""

__version__ = "0.1.0"
_SDK = {
    "ApiError": "api_client",
    "AsyncTidegate": "async_sdk",
    "InvokeError": "sdk",
    "NotRunningError": "api_client",
    "StartFailedError": "sdk",
    "Tidegate": "sdk",
}


def __getattr__(name: str) -> object:
    """Imports the SDK when it is first used: the data plane imports this package at every start, and needs none of it
    (docs/adr/0078)."""
    if name not in _SDK:
        raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"tidegate.control.{_SDK[name]}"), name)
