"""Which object of a file is served as an ASGI application, and how its faults read."""

import pytest

from tests.tidegate.runtime.conftest import WriteHandler
from tidegate.runtime.asgi.application import load
from tidegate.runtime.errors import LoadError


def test_an_attribute_as_it_is_and_a_class_as_an_instance(write_handler: WriteHandler) -> None:
    path = write_handler("async def app(scope, receive, send): ...\nclass Own:\n    def __call__(self, s, r, t): ...\n")
    assert load(str(path), "app", None, None).__name__ == "app"
    assert type(load(str(write_handler(path.read_text())), "Own", None, None)).__name__ == "Own"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("async def other(scope, receive, send): ...", "has no app; it has other"),
        ("app = 5", "is a int, not an ASGI application"),
        ("class app:\n    def __init__(self): 1/0", r"app failed to load: ZeroDivisionError.*line 2"),
        ("import no_such_module_at_all", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_faults(write_handler: WriteHandler, text: str, says: str) -> None:
    with pytest.raises(LoadError, match=says):
        load(str(write_handler(text)), "app", None, None)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(LoadError, match="there is no file"):
        load("/no/such/file.py", "app", None, None)
