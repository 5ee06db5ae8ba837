"""What processes are started with, read off the records."""

import json
from dataclasses import replace
from importlib.util import find_spec

import pytest

from tidegate.deploy.environment import (
    MAPPED,
    PRELOADS,
    Endpoints,
    Host,
    Launch,
    can_borrow,
    fork_launch,
    inherited,
    is_shipped,
    phases_text,
    preload_of,
    profile_text,
    proxy_launch,
    search_path,
    server_argv,
    server_launch,
    threads_of,
    warmup_path,
)
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind, Assignment, Profile
from tidegate.function import (
    Batching,
    BatchRule,
    ConcurrencyUnit,
    Function,
    GpuNeeds,
    MetricsEndpoint,
    ModelFormat,
    Protocol,
    Readiness,
    Resources,
    Revision,
    Server,
    ServerKind,
    StoredForm,
)
from tidegate.queue_proxy.settings import ProxySettings, read_settings
from tidegate.records.replica_state import ColdStartPhases
from tidegate.runtime import settings as runtime

CPU = Accelerator(name="cpu-2core", kind=AcceleratorKind.CPU, count=1, memory_bytes=1 << 30, cores=2)
T4 = Accelerator(
    name="t4", kind=AcceleratorKind.NVIDIA, count=2, memory_bytes=16 << 30, devices=("GPU-a", "GPU-b"), mps=True
)
EMULATED = Accelerator(
    name="v100",
    kind=AcceleratorKind.EMULATED,
    count=4,
    memory_bytes=16 << 30,
    start_up_s=5.0,
    profile=Profile(base_s=0.00905, per_item_s=0.00553, jitter=0.05),
)
HOST = Host(
    python="/opt/tidegate/bin/python",
    source_root="/src",
    token_file="/state/link-token",
    epoch=7,
    inherited={"PATH": "/bin", "HOME": "/h", "LC_ALL": "C", "AWS_SECRET_ACCESS_KEY": "x", "HTTP_PROXY": "y"},
)
SOCKET = Endpoints(listen_fd=9, admin="unix:/run/r.a", upstream="unix:/run/r.m")
PORT = Endpoints(listen_fd=9, admin="unix:/run/r.a", upstream="127.0.0.1:4711")


def revision(server: Server | None = None, **fields: object) -> Revision:
    server = server or Server(kind=ServerKind.MODEL, target="/m/resnet.onnx")
    function = Function(name="resnet", server=server, models=("resnet", "alias"), workdir="/w", **fields)  # type: ignore[arg-type]
    return Revision(function, 3)


def held(accelerator: Accelerator, unit: int = 0, share: int = 100, memory: int = 0) -> Assignment:
    return Assignment(accelerator=accelerator.name, unit=unit, memory_bytes=memory, share=share)


def launched(server: Server, host: Host, endpoints: Endpoints, **fields: object) -> Launch:
    return server_launch(revision(server, **fields), CPU, held(CPU), endpoints, host, Batching(), None)


COMMAND = Server(kind=ServerKind.COMMAND, argv=("python", "serve.py", "--port", "{port}", "--json", "{a: 1}"))


def test_a_model_is_served_by_the_shipped_runtime() -> None:
    """The runtime itself reads its variables."""
    launch = server_launch(revision(), CPU, held(CPU), SOCKET, HOST, Batching(max_size=32, delay_s=0.005), threads=2)
    assert launch.argv == ("/opt/tidegate/bin/python", "-P", "-m", "tidegate.runtime.main")
    assert launch.cwd == "/w"
    assert launch.env["PYTHONPATH"] == "/src"
    settings = runtime.parse(launch.env)
    assert settings.model == "/m/resnet.onnx"
    assert settings.names == ("resnet", "alias")
    assert settings.listen == "unix:/run/r.m"
    assert (settings.threads, settings.max_batch, settings.batch_delay_s) == (2, 32, 0.005)


def test_a_copy_is_named_beside_what_it_is_a_copy_of() -> None:
    server = Server(kind=ServerKind.HANDLER, target="/code/handler.py:Model", copy="12ab.py")
    host = replace(HOST, copies="/state/copies")
    launch = server_launch(revision(server), CPU, held(CPU), SOCKET, host, Batching(), threads=None)
    settings = runtime.parse(launch.env)
    assert (settings.handler, settings.copy) == (("/code/handler.py", "Model"), "/state/copies/12ab.py")
    emulated = server_launch(revision(server), EMULATED, held(EMULATED), SOCKET, host, Batching(), threads=None)
    shown = runtime.parse(emulated.env)
    assert (shown.handler, shown.copy) == (settings.handler, settings.copy), "it shows the inputs of the same code"
    model = Server(kind=ServerKind.MODEL, target="/code/m.onnx", copy="12ab.onnx")
    onnx = server_launch(revision(model), EMULATED, held(EMULATED), SOCKET, host, Batching(), threads=None)
    assert (runtime.parse(onnx.env).model, runtime.parse(onnx.env).copy) == (None, None)


def test_an_onnx_file_on_a_processor_has_a_folder_for_its_mapped_forms() -> None:
    host = replace(HOST, copies="/state/copies", hidden=("/state",))
    model = Server(kind=ServerKind.MODEL, target="/code/m.onnx", copy="12ab.onnx")
    launch = server_launch(revision(model), CPU, held(CPU), SOCKET, host, Batching(), threads=None)
    folder = f"/state/copies/12ab.{revision(model).function.name}.mapped"
    assert runtime.parse(launch.env).mapped == folder
    assert folder in json.loads(launch.env["TIDEGATE_CONFINE"])["show"]
    limited = revision(model, resources=Resources(memory_bytes=1 << 30))
    for made, kind in ((limited, CPU), (revision(replace(model, copy=None)), CPU), (revision(model), EMULATED)):
        other = server_launch(made, kind, held(kind), SOCKET, host, Batching(), threads=None)
        assert MAPPED not in other.env


def test_a_replica_runs_the_form_that_is_stored_for_its_accelerator() -> None:
    forms = (
        StoredForm(
            accelerator="any", path="/r/m/any/fp32/b8.onnx", format=ModelFormat.ONNX, batch_size=8, copy="12.onnx"
        ),
        StoredForm(accelerator=CPU.name, path="/r/m/cpu/int8/b4.onnx", format=ModelFormat.ONNX, batch_size=4),
    )
    stored = Server(kind=ServerKind.MODEL, target="/r", forms=forms)
    host = replace(HOST, copies="/state/copies")
    own = server_launch(revision(stored), CPU, held(CPU), SOCKET, host, Batching(max_size=6), threads=None)
    settings = runtime.parse(own.env)
    assert (settings.model, settings.copy, settings.max_batch) == ("/r/m/cpu/int8/b4.onnx", None, 4)
    other = replace(CPU, name="other")
    any_kind = server_launch(revision(stored), other, held(other), SOCKET, host, Batching(max_size=6), threads=None)
    settings = runtime.parse(any_kind.env)
    assert (settings.model, settings.copy, settings.max_batch) == ("/r/m/any/fp32/b8.onnx", "/state/copies/12.onnx", 6)


def test_a_handler_runs_in_the_interpreter_of_its_function() -> None:
    handler = Server(kind=ServerKind.HANDLER, target="/code/handler.py:Model")
    launch = server_launch(revision(handler, python="/venv/bin/python"), CPU, held(CPU), SOCKET, HOST, Batching(), None)
    assert launch.argv[0] == "/venv/bin/python"
    assert runtime.parse(launch.env).handler == ("/code/handler.py", "Model")


def test_a_command_gets_its_port_twice() -> None:
    launch = server_launch(revision(COMMAND), CPU, held(CPU), PORT, HOST, Batching(), 1)
    assert launch.argv == ("python", "serve.py", "--port", "4711", "--json", "{a: 1}")
    assert launch.env["PORT"] == "4711"
    assert not any(name.startswith("TIDEGATE_RUNTIME") for name in launch.env)


def test_a_command_may_listen_on_a_socket() -> None:
    server = Server(kind=ServerKind.COMMAND, argv=("serve", "--uds", "{socket}"))
    launch = server_launch(revision(server), CPU, held(CPU), SOCKET, HOST, Batching(), 1)
    assert launch.argv == ("serve", "--uds", "/run/r.m")
    assert "PORT" not in launch.env


def test_an_emulated_accelerator_replaces_the_server_and_says_so() -> None:
    assert is_shipped(revision(COMMAND).function, EMULATED)
    launch = server_launch(revision(COMMAND), EMULATED, held(EMULATED), SOCKET, HOST, Batching(max_size=8), None)
    settings = runtime.parse(launch.env)
    assert settings.emulated is not None
    assert (settings.emulated.base_s, settings.emulated.per_item_s) == (0.00905, 0.00553)
    assert (settings.emulated.jitter, settings.emulated.start_s) == (0.05, 5.0)
    assert json.loads(profile_text(Profile(base_s=1.0, per_item_s=0.5), 2.0))["start_s"] == 2.0


def test_little_is_inherited_and_nothing_secret() -> None:
    assert inherited(HOST.inherited) == {"PATH": "/bin", "HOME": "/h", "LC_ALL": "C"}
    launch = server_launch(
        revision(COMMAND, env={"MODE": "fast"}, secrets={"TOKEN": "/s/token"}),
        CPU,
        held(CPU),
        PORT,
        HOST,
        Batching(),
        1,
    )
    assert launch.env["MODE"] == "fast"
    assert "AWS_SECRET_ACCESS_KEY" not in launch.env
    assert "TOKEN" not in launch.env, "a secret is read when the process is spawned, not before"
    assert launch.secrets == {"TOKEN": "/s/token"}


def test_the_folder_of_the_interpreter_comes_first_on_the_path() -> None:
    assert search_path(revision().function, HOST) == "/opt/tidegate/bin:/bin"
    assert search_path(revision(python="/venv/bin/python").function, HOST) == "/venv/bin:/bin"


def test_thread_counts_are_the_functions_to_change_but_placement_is_not() -> None:
    env = {"OMP_NUM_THREADS": "9", "CUDA_VISIBLE_DEVICES": "all", "PORT": "1"}
    launch = server_launch(revision(COMMAND, env=env), T4, held(T4, unit=1), PORT, HOST, Batching(), 2)
    assert launch.env["OMP_NUM_THREADS"] == "9"
    assert launch.env["MKL_NUM_THREADS"] == "2"
    assert launch.env["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert launch.env["PORT"] == "4711"


def test_mps_share_and_memory_limit() -> None:
    needs = GpuNeeds(mps=True, core_percentage=30, memory_gb=4.0)
    assignment = held(T4, share=30, memory=4_000_000_000)
    env = server_launch(revision(COMMAND, gpu=needs), T4, assignment, PORT, HOST, Batching(), None).env
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3815M"
    env = server_launch(revision(COMMAND), T4, held(T4), PORT, HOST, Batching(), None).env
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in env
    assert "OMP_NUM_THREADS" not in env


def test_only_what_shares_a_gpu_by_mps_is_given_its_pipes_also_from_a_hidden_folder() -> None:
    host = replace(HOST, mps_pipes="/state/run/mps", hidden=("/state",))
    needs = GpuNeeds(mps=True, core_percentage=30)
    shared = server_launch(revision(COMMAND, gpu=needs), T4, held(T4, share=30), PORT, host, Batching(), None)
    assert shared.env["CUDA_MPS_PIPE_DIRECTORY"] == "/state/run/mps"
    assert '"show": ["/state/run/mps"]' in shared.wrapper[-1]
    whole = server_launch(revision(COMMAND), T4, held(T4), PORT, host, Batching(), None)
    assert "CUDA_MPS_PIPE_DIRECTORY" not in whole.env


def test_a_replica_sees_each_of_its_gpus() -> None:
    kind = replace(T4, count=3, devices=("GPU-a", "GPU-b", "GPU-c"))
    both = replace(held(kind, unit=0), more=(2,))
    env = server_launch(revision(COMMAND, gpu=GpuNeeds(count=2)), kind, both, PORT, HOST, Batching(), None).env
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-c"


def test_a_cpu_replica_sees_no_gpu() -> None:
    assert server_launch(revision(COMMAND), CPU, held(CPU), PORT, HOST, Batching(), 1).env["CUDA_VISIBLE_DEVICES"] == ""


def test_threads_are_what_is_asked_within_the_unit() -> None:
    assert threads_of(revision().function, CPU) == 2
    assert threads_of(revision(resources=Resources(threads=1)).function, CPU) == 1
    assert threads_of(revision(resources=Resources(threads=8)).function, CPU) == 2
    assert threads_of(revision().function, T4) is None


def proxy_settings(made: Revision, accelerator: Accelerator = CPU, endpoints: Endpoints = SOCKET) -> ProxySettings:
    """What the queue_proxy itself understands."""
    phases = ColdStartPhases(decide_s=0.0018, schedule_s=0.00000004, pull_s=0.0)
    return read_settings(proxy_launch("resnet-00003-abcde", made, accelerator, endpoints, HOST, phases).env)


def test_the_queue_proxy_understands_what_it_is_reported() -> None:
    rule = BatchRule(header="batch", bytes_per_item=2048.0, overhead_bytes=10.5, max_batch=64)
    made = revision(
        concurrency=3,
        concurrency_unit=ConcurrencyUnit.INFERENCES,
        batch_rule=rule,
        timeout_s=12.5,
        warmup="/m/warm.json",
        readiness=Readiness(path="/r", start_timeout_s=60.0),
    )
    settings = proxy_settings(made)
    assert settings.listen_fd == 9
    assert (settings.upstream, settings.admin) == ("unix:/run/r.m", "unix:/run/r.a")
    assert (settings.function, settings.revision, settings.group) == ("resnet", "resnet-00003", "cpu-2core")
    assert settings.replica == "resnet-00003-abcde"
    assert (settings.limit, settings.unit_inferences) == (3, True)
    assert (settings.timeout_s, settings.start_timeout_s) == (12.5, 60.0)
    assert (settings.readiness_path, settings.token_file, settings.epoch) == ("/r", "/state/link-token", 7)
    assert (settings.warmup_file, settings.warmup_path) == ("/m/warm.json", "/v2/models/resnet/infer")
    assert (settings.batch_header, settings.bytes_per_item, settings.batch_overhead_bytes) == ("batch", 2048.0, 10.5)
    assert settings.max_batch == 64
    assert settings.phases == ColdStartPhases(decide_s=0.0018, schedule_s=0.0, pull_s=0.0)


def metrics_settings(made: Revision, accelerator: Accelerator, endpoints: Endpoints) -> ProxySettings:
    launch = proxy_launch("resnet-00003-abcde", made, accelerator, endpoints, HOST, ColdStartPhases())
    return read_settings(launch.env)


def test_a_metrics_port_is_reported_to_both_processes() -> None:
    server = Server(kind=ServerKind.COMMAND, argv=("serve", "--http={port}", "--metrics={metrics_port}"))
    made = revision(server, metrics=MetricsEndpoint(path="/stats"))
    endpoints = replace(PORT, metrics_port=9002)
    launch = server_launch(made, CPU, held(CPU), endpoints, HOST, Batching(), 1)
    assert launch.argv == ("serve", "--http=4711", "--metrics=9002")
    assert launch.env["METRICS_PORT"] == "9002"
    settings = metrics_settings(made, CPU, endpoints)
    assert (settings.metrics_address, settings.metrics_path) == ("127.0.0.1:9002", "/stats")
    assert settings.models == ("resnet", "alias")


def test_metrics_are_read_only_where_they_are_declared() -> None:
    assert metrics_settings(revision(COMMAND), CPU, PORT).metrics_path is None
    settings = metrics_settings(revision(COMMAND, metrics=MetricsEndpoint()), CPU, PORT)
    assert (settings.metrics_address, settings.metrics_path) == (settings.upstream, "/metrics")


def test_the_shipped_server_shows_its_metrics_where_it_listens() -> None:
    settings = metrics_settings(revision(COMMAND, metrics=MetricsEndpoint(path="/stats")), EMULATED, SOCKET)
    assert (settings.metrics_address, settings.metrics_path) == ("unix:/run/r.m", "/metrics")


@pytest.mark.parametrize(("concurrency", "limit"), [(None, None), (0, 0), (1, 1)])
def test_the_limit_and_its_two_special_words(concurrency: int | None, limit: int | None) -> None:
    assert proxy_settings(revision(concurrency=concurrency)).limit == limit


def test_no_readiness_path_means_a_connection_is_enough() -> None:
    made = revision(COMMAND, readiness=Readiness(path=None))
    assert proxy_settings(made, endpoints=PORT).readiness_path is None
    assert proxy_settings(made, EMULATED).readiness_path == "/v2/health/ready"


def test_the_shipped_server_is_ready_when_its_model_is_whatever_its_clients_speak() -> None:
    unasked = Readiness(path=None)
    assert proxy_settings(revision(protocol=Protocol.GRPC, readiness=unasked)).readiness_path == "/v2/health/ready"
    asked = revision(protocol=Protocol.GRPC, readiness=Readiness(path="/r"))
    assert proxy_settings(asked).readiness_path == "/r"
    theirs = revision(COMMAND, protocol=Protocol.GRPC, readiness=unasked)
    assert proxy_settings(theirs, endpoints=PORT).readiness_path is None


def test_a_grpc_server_that_is_not_ours_gets_no_warm_up() -> None:
    assert proxy_settings(revision(protocol=Protocol.GRPC, warmup="/w.json")).warmup_path == "/v2/models/resnet/infer"
    theirs = revision(COMMAND, protocol=Protocol.GRPC, warmup="/w.json")
    assert proxy_settings(theirs, endpoints=PORT).warmup_file is None


def test_the_queue_proxy_can_be_another_program() -> None:
    host = replace(HOST, queue_proxy=("/knative/queue",))
    assert proxy_launch("r", revision(), CPU, PORT, host, ColdStartPhases()).argv == ("/knative/queue",)
    launch = proxy_launch("r", revision(), CPU, PORT, HOST, ColdStartPhases())
    assert launch.argv == ("/opt/tidegate/bin/python", "-P", "-m", "tidegate.queue_proxy.main")
    assert launch.env["USER_PORT"] == "4711"


def test_the_warm_up_goes_where_a_first_request_would() -> None:
    assert warmup_path(revision(protocol=Protocol.OPENAI).function) == "/v1/chat/completions"
    assert warmup_path(revision(protocol=Protocol.HTTP).function) == "/"


def test_unknown_phases_are_left_out() -> None:
    assert phases_text(ColdStartPhases(decide_s=0.5, load_s=9.0)) == "decide=0.5"
    assert phases_text(ColdStartPhases()) == ""


def test_the_front_doors_limits_reach_the_queue_proxy() -> None:
    host = replace(HOST, limits={"body_bytes": 2**31, "body_idle_timeout_s": 7.0})
    made = Revision(Function(name="f", server=Server(kind=ServerKind.COMMAND, argv=("x",))), 1)
    endpoints = Endpoints(listen_fd=3, admin="unix:/a", upstream="unix:/m")
    accelerator = Accelerator(name="cpu", kind=AcceleratorKind.CPU, count=1, memory_bytes=1, cores=1)
    launched = proxy_launch("f-00001-a", made, accelerator, endpoints, host, ColdStartPhases())
    limits = read_settings(launched.env).limits
    assert (limits.body_bytes, limits.body_idle_timeout_s) == (2**31, 7.0)


def test_a_confined_server_keeps_what_it_needs_of_the_hidden_folders() -> None:
    hidden = ("/state", "/run/tidegate")
    host = replace(HOST, hidden=hidden, copies="/state/copies")
    endpoints = replace(SOCKET, upstream="unix:/run/tidegate/r.m/s")
    handler = Server(kind=ServerKind.HANDLER, target="/code/h.py:Model", copy="12.py", modules="34.modules.zip")
    launch = launched(handler, host, endpoints, python="/state/environments/ab/bin/python")
    assert launch.wrapper == (), "it confines itself"
    assert json.loads(launch.env["TIDEGATE_CONFINE"]) == {
        "hide": list(hidden),
        "show": [
            "/state/copies/12.py",
            "/state/copies/34.modules.zip",
            "/run/tidegate/r.m",
            "/state/environments/ab",
        ],
    }
    command = Server(kind=ServerKind.COMMAND, argv=("serve", "/state/weights.bin", "--uds", "{socket}"))
    launch = launched(command, host, endpoints)
    assert launch.argv == ("serve", "/state/weights.bin", "--uds", "/run/tidegate/r.m/s")
    assert launch.wrapper[1:3] == ("-I", "-S")
    assert json.loads(launch.wrapper[-1])["show"] == ["/state/weights.bin", "/run/tidegate/r.m/s", "/run/tidegate/r.m"]
    assert "TIDEGATE_CONFINE" not in launch.env
    assert launched(command, HOST, endpoints).wrapper == ()


FORKS = replace(HOST, fork_servers=True)
ONE_CORE = replace(CPU, cores=1)
HANDLER = Server(kind=ServerKind.HANDLER, target="/m/model.py:Model")
SKLEARN = Server(kind=ServerKind.MODEL, target="/m/other.joblib", format=ModelFormat.SKLEARN)


def preloaded(server: Server | None = None, accelerator: Accelerator = CPU, **fields: object) -> str | None:
    return preload_of(revision(server, **fields).function, accelerator, FORKS)


def test_the_shipped_server_comes_from_a_process_that_has_imported_what_its_model_needs() -> None:
    assert preloaded() == "onnx"
    assert preloaded(SKLEARN, ONE_CORE) == "arrays"
    assert preloaded(HANDLER, ONE_CORE) == "arrays"
    assert preloaded(HANDLER, CPU) == "handler", "numpy would have the threads of the process that imported it"
    assert preloaded(HANDLER, EMULATED) == "emulated"
    assert preloaded(python="/env/bin/python") == "runtime", "its packages are imported when it is confined"
    assert proxy_launch("r", revision(), CPU, SOCKET, FORKS, ColdStartPhases()).preload == "queue_proxy"


def test_the_modules_of_fork_servers_are_there() -> None:
    """A fork server leaves out what it cannot import."""
    own = {module for modules in PRELOADS.values() for module in modules if module.startswith("tidegate.")}
    assert own and all(find_spec(module) is not None for module in own)


@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_PRELOAD", "OMP_NUM_THREADS", "ORT_DISABLE_TELEMETRY", "TZ"])
def test_a_variable_that_is_read_at_a_start_alone_has_the_server_spawned(name: str) -> None:
    assert preloaded(env={name: "1"}) is None
    assert preloaded(secrets={name: "/secret"}) is None


def test_commands_gpus_and_deployments_without_fork_servers_spawn() -> None:
    assert preloaded(COMMAND) is None
    assert preloaded(accelerator=T4) is None
    assert preload_of(revision().function, CPU, HOST) is None
    assert proxy_launch("r", revision(), CPU, SOCKET, HOST, ColdStartPhases()).preload is None
    other = replace(FORKS, queue_proxy=("knative",))
    assert proxy_launch("r", revision(), CPU, SOCKET, other, ColdStartPhases()).preload is None


def test_a_fork_server_imports_with_one_thread_and_knows_nothing_of_a_function() -> None:
    launch = fork_launch("onnx", "/env/bin/python", FORKS)
    assert launch.argv[:5] == ("/env/bin/python", "-P", "-m", "tidegate.runtime.fork.main", "{fd}")
    assert launch.argv[-2:] == ("numpy", "onnxruntime")
    assert launch.env["OPENBLAS_NUM_THREADS"] == "1" and launch.env["ORT_DISABLE_TELEMETRY"] == "1"
    assert launch.env["PYTHONPATH"] == "/src" and "TIDEGATE_RUNTIME_LISTEN" not in launch.env


def test_onnx_runtime_reports_nothing_unless_the_function_wants_it() -> None:
    def variable(**fields: object) -> str:
        launch = server_launch(revision(None, **fields), CPU, held(CPU), SOCKET, HOST, Batching(), None)
        return launch.env["ORT_DISABLE_TELEMETRY"]

    assert variable() == "1" and variable(env={"ORT_DISABLE_TELEMETRY": "0"}) == "0"


def test_a_model_is_loaded_in_its_format_with_its_arguments() -> None:
    server = Server(kind=ServerKind.MODEL, target="/code/m.joblib", format=ModelFormat.SKLEARN, copy="12ab.joblib")
    launch = server_launch(
        revision(server, args={"outputs": "predict"}), CPU, held(CPU), SOCKET, HOST, Batching(max_size=8), threads=None
    )
    settings = runtime.parse(launch.env)
    assert (settings.model, settings.format, settings.max_batch) == ("/code/m.joblib", "sklearn", 8)
    assert settings.arguments == {"outputs": "predict"}
    assert settings.copy is not None
    assert settings.copy.endswith("/12ab.joblib")


def test_a_triton_repository_is_a_command_on_ports() -> None:
    server = Server(kind=ServerKind.MODEL, target="/models", format=ModelFormat.TRITON)
    launch = server_launch(revision(server), CPU, held(CPU), PORT, HOST, Batching(), None)
    assert launch.argv == (HOST.python, "-P", "-m", "tidegate.runtime.triton.main", "/models", "http", "4711")
    assert not is_shipped(revision(server).function, CPU)
    assert is_shipped(revision(server).function, EMULATED)
    grpc = revision(server, protocol=Protocol.GRPC, metrics=MetricsEndpoint()).function
    assert server_argv(grpc, "python")[-3:] == ("grpc", "{port}", "{metrics_port}")


def test_only_servers_that_can_use_more_cores_borrow_them() -> None:
    function = revision().function
    assert can_borrow(function, CPU)
    assert not can_borrow(function, EMULATED) and not can_borrow(function, T4)
    assert not can_borrow(function, replace(CPU, quota=40.0)), "a quota holds whatever the cores"
    assert not can_borrow(revision(concurrency=1).function, CPU), "the function says how many at a time"
    assert not can_borrow(revision(HANDLER).function, CPU), "the calls of a class run one after the other"


def test_a_server_knows_its_own_cores() -> None:
    assigned = replace(held(CPU), cores=(0, 1))
    launch = server_launch(revision(), CPU, assigned, SOCKET, HOST, Batching(), None)
    assert runtime.parse(launch.env).cores == 2
