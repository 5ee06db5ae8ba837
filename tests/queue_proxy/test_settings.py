"""The environment of a queue_proxy: Knative's names, our own, and every fault at once."""

import pytest

from tidegate.aio.proxy.limits import Limits
from tidegate.errors import InvalidInputError
from tidegate.queue_proxy.live import client_limits
from tidegate.queue_proxy.settings import read_settings
from tidegate.records.replica_state import ColdStartPhases


def test_knatives_environment_alone_is_enough() -> None:
    settings = read_settings(
        {
            "QUEUE_SERVING_PORT": "8012",
            "USER_PORT": "9000",
            "CONTAINER_CONCURRENCY": "3",
            "REVISION_TIMEOUT_SECONDS": "60",
            "SERVING_SERVICE": "resnet",
            "SERVING_REVISION": "resnet-00001",
            "SERVING_POD": "resnet-00001-xyz",
        }
    )
    assert (settings.upstream, settings.limit, settings.timeout_s) == ("127.0.0.1:9000", 3, 60.0)
    assert (settings.function, settings.revision, settings.replica) == ("resnet", "resnet-00001", "resnet-00001-xyz")
    assert settings.listen_fd is None


def test_nothing_set_gives_knatives_defaults() -> None:
    settings = read_settings({})
    assert (settings.serving_port, settings.upstream, settings.admin) == (8012, "127.0.0.1:8080", "127.0.0.1:8022")
    assert (settings.limit, settings.timeout_s, settings.readiness_path) == (0, 300.0, None)
    assert not settings.pre_stop


def test_our_names_win() -> None:
    settings = read_settings(
        {
            "USER_PORT": "9000",
            "TIDEGATE_UPSTREAM": "unix:/run/model.sock",
            "CONTAINER_CONCURRENCY": "3",
            "TIDEGATE_CONCURRENCY": "7",
            "TIDEGATE_CONCURRENCY_UNIT": "inferences",
            "TIDEGATE_LISTEN_FD": "5",
            "TIDEGATE_READINESS_PATH": "/v2/health/ready",
            "TIDEGATE_BYTES_PER_ITEM": "150528",
            "TIDEGATE_PHASES": "decide=0.0018,schedule=0.004",
            "TIDEGATE_EPOCH": "12",
        }
    )
    assert (settings.upstream, settings.limit, settings.unit_inferences) == ("unix:/run/model.sock", 7, True)
    assert (settings.listen_fd, settings.readiness_path, settings.epoch) == (5, "/v2/health/ready", 12)
    assert settings.bytes_per_item == 150528.0
    assert settings.phases == ColdStartPhases(decide_s=0.0018, schedule_s=0.004)


@pytest.mark.parametrize("path", ["metrics", "/a b", "/a\nb", "/é"])
def test_a_metrics_path_is_a_path(path: str) -> None:
    with pytest.raises(InvalidInputError, match=r"TIDEGATE_METRICS_PATH.*a path that begins with /"):
        read_settings({"TIDEGATE_METRICS_PATH": path})


def test_auto_is_asked_of_the_model_server_later() -> None:
    assert read_settings({"TIDEGATE_CONCURRENCY": "auto", "CONTAINER_CONCURRENCY": "3"}).limit is None


def test_every_fault_is_reported_at_once_with_value_and_what_is_allowed() -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_settings(
            {
                "USER_PORT": "eighty",
                "CONTAINER_CONCURRENCY": "-1",
                "REVISION_TIMEOUT_SECONDS": "nan",
                "TIDEGATE_CONCURRENCY_UNIT": "tokens",
                "TIDEGATE_ADMIN": "nowhere",
                "TIDEGATE_BYTES_PER_ITEM": "0",
                "TIDEGATE_PHASES": "decided=1",
            }
        )
    places = [fault.where for fault in caught.value.faults]
    assert places == [
        "USER_PORT",
        "TIDEGATE_ADMIN",
        "CONTAINER_CONCURRENCY",
        "TIDEGATE_CONCURRENCY_UNIT",
        "REVISION_TIMEOUT_SECONDS",
        "TIDEGATE_BYTES_PER_ITEM",
        "TIDEGATE_PHASES",
    ]
    assert "got 'eighty'; allowed: a whole number from 1 to 65535" in str(caught.value)


def test_the_gateways_limits_hold_here_too_and_leave_room_for_what_it_adds() -> None:
    settings = read_settings({"TIDEGATE_LIMITS": '{"body_bytes": 1000, "idle_timeout_s": 5, "trusted_proxies": []}'})
    limits = client_limits(settings)
    assert (limits.body_bytes, limits.idle_timeout_s, limits.trusted_proxies) == (1000, 5.0, ())
    assert (limits.head_bytes, limits.headers) == (Limits().head_bytes + 4096, Limits().headers + 32)
    assert not limits.front_door
    assert "unix" in client_limits(read_settings({})).trusted_proxies


@pytest.mark.parametrize("text", ["[]", "{", '{"body_bytes": -1}', '{"nonsense": 1}', '{"headers": true}'])
def test_limits_that_are_none_are_faults(text: str) -> None:
    with pytest.raises(InvalidInputError, match="TIDEGATE_LIMITS"):
        read_settings({"TIDEGATE_LIMITS": text})
