"""The names that ``from tidegate import ...`` finds, for type checkers: the SDK is imported when it is first used."""

from tidegate.control.api_client import ApiError as ApiError
from tidegate.control.api_client import NotRunningError as NotRunningError
from tidegate.control.async_sdk import AsyncTidegate as AsyncTidegate
from tidegate.control.sdk import InvokeError as InvokeError
from tidegate.control.sdk import StartFailedError as StartFailedError
from tidegate.control.sdk import Tidegate as Tidegate

__version__: str
