"""Builds the collaborators of one gateway worker's chain, each from those before it."""

import random
from dataclasses import dataclass

from tidegate.activator.room import WaitingRoom
from tidegate.gateway.access.control import AccessControl
from tidegate.gateway.access.settlement import Settlement
from tidegate.gateway.access_log.records import AccessLog
from tidegate.gateway.answers.caller_check import CallerCheck
from tidegate.gateway.answers.cold_answers import ColdAnswers
from tidegate.gateway.answers.cold_starts import ColdStarts
from tidegate.gateway.answers.errors import ErrorResponses
from tidegate.gateway.answers.grpc import GrpcFrontend
from tidegate.gateway.answers.health import HealthResponder
from tidegate.gateway.counting.counters import Report
from tidegate.gateway.direct_answers import DirectAnswers
from tidegate.gateway.effects import ChainEffects
from tidegate.gateway.head_fields import HeadFields
from tidegate.gateway.jobs.jobs import Jobs
from tidegate.gateway.jobs.reader import JobReader
from tidegate.gateway.jobs.recorder import JobRecorder
from tidegate.gateway.payloads.sampler import Payloads
from tidegate.gateway.pipelines.metadata import PipelineMetadata
from tidegate.gateway.pipelines.pipelines import Pipelines
from tidegate.gateway.resilience.recovery import Recovery
from tidegate.gateway.resilience.resilience import Resilience
from tidegate.gateway.resilience.shadow import Shadows
from tidegate.gateway.routing.variants import VariantSwitch
from tidegate.gateway.token_steps import TokenAccounting
from tidegate.gateway.tracing.trace import Tracer


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The objects that one gateway worker consists of, each of them once."""

    room: WaitingRoom
    report: Report
    rng: random.Random
    effects: ChainEffects
    access_log: AccessLog | None
    """None if no access log is written."""
    tracer: Tracer | None
    """None if nothing is traced."""
    cold_starts: ColdStarts
    health: HealthResponder
    grpc: GrpcFrontend
    errors: ErrorResponses
    callers: CallerCheck
    direct: DirectAnswers
    fields: HeadFields
    access_control: AccessControl
    tokens: TokenAccounting
    settlement: Settlement
    resilience: Resilience
    shadows: Shadows
    payloads: Payloads
    recovery: Recovery
    cold_answers: ColdAnswers
    jobs: Jobs
    job_reader: JobReader
    pipelines: Pipelines
    variants: VariantSwitch


def build_parts(
    *,
    room: WaitingRoom,
    report: Report,
    rng: random.Random,
    effects: ChainEffects,
    access_log: AccessLog | None,
    tracer: Tracer | None,
) -> Parts:
    """Builds the parts of one worker."""
    time, upstreams, exchanges = effects.time, effects.upstreams, effects.exchanges
    cold_starts = ColdStarts(report)
    health = HealthResponder(cold_starts, room, upstreams.fetch_metadata)
    metadata = PipelineMetadata(health)
    grpc = GrpcFrontend(health)
    errors = ErrorResponses(grpc, report)
    access_control = AccessControl(
        wall=time.wall,
        open_quota_counters=effects.quotas.open_counters,
        ask_pool=effects.quotas.ask_pool,
    )
    callers = CallerCheck(access_control, errors)
    fields = HeadFields(errors, grpc, callers)
    recorder = JobRecorder(effects.jobs, time.wall)
    jobs = Jobs(effects.jobs, errors, recorder, clock=time.clock, wall=time.wall)
    job_reader = JobReader(effects.jobs, jobs, recorder, errors, access_control, time.wall)
    tokens = TokenAccounting(time.clock, exchanges.tap_response)
    resilience = Resilience(room, second_copy=exchanges.second_copy, alarm=time.alarm, probe=upstreams.probe)
    shadows = Shadows(
        room,
        report,
        pool_of=upstreams.pool_of,
        shadow_copy=exchanges.shadow_copy,
        tap_response=exchanges.tap_response,
    )
    payloads = Payloads(
        clock=time.clock, wall=time.wall, rng=rng, put=effects.put_payloads, tap_response=exchanges.tap_response
    )
    return Parts(
        room=room,
        report=report,
        rng=rng,
        effects=effects,
        access_log=access_log,
        tracer=tracer,
        cold_starts=cold_starts,
        health=health,
        grpc=grpc,
        errors=errors,
        callers=callers,
        direct=DirectAnswers(
            health=health,
            metadata=metadata,
            jobs=job_reader,
            callers=callers,
            fields=fields,
            errors=errors,
            clock=time.clock,
        ),
        fields=fields,
        access_control=access_control,
        tokens=tokens,
        settlement=Settlement(room, tokens, access_control),
        resilience=resilience,
        shadows=shadows,
        payloads=payloads,
        recovery=Recovery(
            room, resilience, shadows, payloads, errors, clock=time.clock, swap_clients=exchanges.swap_clients
        ),
        cold_answers=ColdAnswers(cold_starts, room, exchanges.begin_stream),
        jobs=jobs,
        job_reader=job_reader,
        pipelines=Pipelines(
            room,
            errors,
            metadata=metadata,
            clock=time.clock,
            run=effects.room.run,
            next_exchange=exchanges.next_exchange,
            convert_elsewhere=effects.convert_elsewhere,
            tracer=tracer,
        ),
        variants=VariantSwitch(room, report, resilience.outliers.open_circuits),
    )
