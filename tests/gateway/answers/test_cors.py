"""CORS before the chain: preflights are answered, every other answer gets its fields."""

from tests.support.worlds.fake_exchange import FakeExchange, request
from tests.support.worlds.gateway_chain import ONE, Door, table
from tidegate.aio.proxy.exchange import Exchange
from tidegate.gateway.answers.cors import Cors, CorsPolicy

APP = "https://app.example"
POLICY = {"origins": (APP,), "methods": ("GET", "POST"), "headers": ("*",), "max_age_s": 600.0}


class Site:
    """A gateway whose settings name origins; ``added`` has the lines of each answer."""

    def __init__(self, *replicas: object, **changes: object) -> None:
        self.door = Door(table(1, *replicas))  # type: ignore[arg-type]  # replicas of the route table
        self.added: list[bytes] = []
        self.cors = Cors(CorsPolicy(**(POLICY | changes)), self.door.chain, self._add)  # type: ignore[arg-type]  # as above

    def _add(self, ex: Exchange, lines: bytes) -> None:
        self.added.append(lines)

    def arrive(self, line: str, *fields: str) -> FakeExchange:
        lines = "".join(f"{field}\r\n" for field in fields)
        head = request(f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n")
        return FakeExchange(self.cors, head, b"", complete=True, now=self.door.now).start()

    def preflight(self, *fields: str, origin: str = APP) -> FakeExchange:
        asked = (f"Origin: {origin}", "Access-Control-Request-Method: POST", *fields)
        return self.arrive("OPTIONS /v2/models/m/infer", *asked)


def test_a_preflight_is_answered_at_once_and_wakes_nothing() -> None:
    site = Site()
    ex = site.preflight("Access-Control-Request-Headers: authorization,content-type")
    assert ex.log == ["answer 204"]
    assert ex.extra.decode().split("\r\n")[:-1] == [
        f"access-control-allow-origin: {APP}",
        "vary: origin",
        "access-control-allow-methods: GET, POST",
        "access-control-max-age: 600",
        "access-control-allow-headers: authorization,content-type",
        "vary: access-control-request-headers",
    ]
    assert not site.door.activations()
    assert site.door.report.unmatched == 0


def test_named_headers_are_listed_and_any_origin_is_a_star() -> None:
    ex = Site(origins=("*",), headers=("authorization", "x-a")).preflight("Access-Control-Request-Headers: other")
    assert b"access-control-allow-origin: *\r\n" in ex.extra
    assert b"access-control-allow-headers: authorization, x-a\r\n" in ex.extra
    assert b"vary" not in ex.extra


def test_a_page_that_is_not_allowed_is_refused_with_the_reason() -> None:
    ex = Site().preflight(origin="https://evil.example")
    assert (ex.log, ex.extra) == (["answer 403"], b"vary: origin\r\n")
    assert ex.error["error"]["code"] == "origin_not_allowed"
    assert "https://evil.example" in ex.error["error"]["message"]


def test_other_requests_pass_and_each_answer_gets_the_fields_of_its_origin() -> None:
    site = Site(ONE)
    site.door.ready(ONE, 1)
    own = site.arrive("POST /v2/models/m/infer", f"Origin: {APP}")
    own.gets_answer(101.0, 200, "Access-Control-Allow-Origin: *")
    assert own.log == [f"to {ONE.address}"]
    missing = site.arrive("POST /functions/none/x", f"Origin: {APP}")
    assert missing.log == ["answer 404"]
    site.arrive("POST /functions/none/x", "Origin: https://evil.example")
    site.arrive("OPTIONS /functions/none/x", f"Origin: {APP}")
    allowed = f"access-control-allow-origin: {APP}\r\nvary: origin\r\n".encode()
    assert site.added == [allowed, allowed, b"vary: origin\r\n", allowed]


def test_the_gateways_field_takes_the_place_of_the_model_servers() -> None:
    from tests.support.worlds.fake_exchange import response

    site = Site(ONE)
    site.door.ready(ONE, 1)
    ex = site.arrive("POST /v2/models/m/infer", f"Origin: {APP}")
    head = response("HTTP/1.1 200 X\r\nAccess-Control-Allow-Origin: *\r\nx-a: 1\r\ncontent-length: 0\r\n\r\n")
    ex._state = 3
    assert site.cors.answering(ex, head) is not None
    assert b"access-control-allow-origin" not in head._block.lower()
    assert b"x-a: 1" in head._block.lower()
