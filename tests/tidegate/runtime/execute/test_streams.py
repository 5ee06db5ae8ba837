"""Classes that yield: what a stream gives, in what order streams run, and how a generator is closed."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tidegate.runtime.conftest import WriteHandler
from tidegate.runtime.errors import LoadError, ModelError, RequestError
from tidegate.runtime.execute.engine import ModelEngine
from tidegate.runtime.execute.handler import HandlerModel
from tidegate.runtime.execute.model import Outputs
from tidegate.runtime.execute.streams import Streams, joined
from tidegate.runtime.execute.worker import Worker
from tidegate.runtime.metrics import RuntimeCounters
from tidegate.runtime.protocols.tensors import Tensor

Story = Callable[[Streams], Awaitable[Any]]


def text(*words: str) -> list[Outputs]:
    return [{"output": Tensor("output", "BYTES", (), [word.encode()])} for word in words]


def play(path: Path, story: Story, max_batch: int = 1) -> tuple[Any, RuntimeCounters]:
    """Loads the class, runs the story with its streams, and ends the model's thread."""
    counters = RuntimeCounters()

    async def main() -> Any:
        worker = Worker("test")
        engine = ModelEngine(HandlerModel(str(path), "Model", max_batch=max_batch), worker)
        try:
            assert (await engine.load()).streams
            return await story(Streams(engine, counters))
        finally:
            engine.stop()
            worker.stop()
            assert worker.join(5)

    return asyncio.run(main()), counters


async def words(streams: Streams, **parameters: Any) -> list[bytes]:
    async with contextlib.aclosing(streams.run({"messages": ["a"]}, parameters)) as answers:
        return [outputs["output"].data[0] async for outputs in answers]  # type: ignore[misc]  # BYTES holds a list


@pytest.mark.parametrize("keyword", ["", "async "])
def test_each_item_is_an_answer_and_parameters_reach_the_class(write_handler: WriteHandler, keyword: str) -> None:
    path = write_handler(
        f"class Model:\n    {keyword}def predict(self, inputs, parameters):\n"
        "        yield inputs['messages'][0]\n        yield {'output': str(parameters['n'])}\n"
    )
    found, counters = play(path, lambda streams: words(streams, n=3), max_batch=8)
    assert found == [b"a", b"3"]
    assert (counters.executions, counters.inferences) == (1, 1)


@pytest.mark.parametrize(("keyword", "together"), [("", False), ("async ", True)])
def test_plain_generators_run_one_after_the_other_and_asynchronous_ones_at_a_time(
    write_handler: WriteHandler, keyword: str, together: bool
) -> None:
    path = write_handler(
        f"class Model:\n    concurrency = 2\n    running = most = 0\n    {keyword}def predict(self, inputs):\n"
        "        self.running += 1\n        self.most = max(self.most, self.running)\n"
        "        for _ in range(3): yield str(self.most)\n        self.running -= 1\n"
    )

    async def story(streams: Streams) -> list[list[bytes]]:
        return list(await asyncio.gather(words(streams), words(streams)))

    found, _ = play(path, story)
    assert (found[1][-1] == b"2") is together


@pytest.mark.parametrize("keyword", ["", "async "])
def test_closing_a_stream_closes_the_generator_before_the_next_begins(
    write_handler: WriteHandler, keyword: str
) -> None:
    path = write_handler(
        f"class Model:\n    concurrency = 1\n    log = []\n    {keyword}def predict(self, inputs):\n"
        "        self.log.append('begun')\n        try:\n            yield 'one'\n            yield 'two'\n"
        "        finally:\n            self.log.append('closed')\n            yielded = ' '.join(self.log)\n"
        "        yield yielded\n"
    )

    async def story(streams: Streams) -> list[bytes]:
        answers = streams.run({}, {})
        async for _ in answers:
            break
        await answers.aclose()
        return await words(streams)

    found, counters = play(path, story)
    assert found == [b"one", b"two", b"begun closed begun closed"]
    assert counters.inferences == 1, "only the whole stream"
    assert counters.measured == 1


def test_a_cancelled_asynchronous_step_ends_before_its_generator_is_closed(write_handler: WriteHandler) -> None:
    path = write_handler(
        "import asyncio\nclass Model:\n    log = []\n    async def predict(self, inputs):\n"
        "        if self.log: yield ' '.join(self.log); return\n"
        "        try:\n            yield 'one'\n            await asyncio.Event().wait()\n"
        "        except asyncio.CancelledError:\n            await asyncio.sleep(0)\n"
        "            self.log.append('cancelled')\n            raise\n"
        "        finally:\n            self.log.append('closed')\n"
    )

    async def story(streams: Streams) -> list[bytes]:
        begun = asyncio.Event()

        async def client() -> None:
            async with contextlib.aclosing(streams.run({}, {})) as answers:
                async for _ in answers:
                    begun.set()

        task = asyncio.get_running_loop().create_task(client())
        await begun.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await words(streams)

    assert play(path, story)[0] == [b"cancelled closed"]


@pytest.mark.parametrize("keyword", ["", "async "])
def test_an_error_amid_a_stream_has_its_line(
    write_handler: WriteHandler, keyword: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_handler(
        f"class Model:\n    {keyword}def predict(self, inputs):\n        yield 'one'\n        raise ValueError('no')\n"
    )
    with pytest.raises(ModelError, match=r"ValueError: no \(.*line 4\)"):
        play(path, words)
    assert "Traceback" in capsys.readouterr().err


def test_a_generator_that_is_returned_is_explained(write_handler: WriteHandler) -> None:
    path = write_handler("class Model:\n    def predict(self, inputs): return (word for word in 'ab')\n")
    model = HandlerModel(str(path), "Model", max_batch=1)
    assert not model.load().streams
    with pytest.raises(ModelError, match="write predict itself with yield"):
        model.run({})


@pytest.mark.parametrize(
    ("attributes", "keyword", "concurrency"),
    [("", "", 1), ("concurrency = 6", "", 6), ("", "async ", 4), ("max_batch_size = 8", "async ", 4)],
)
def test_what_a_class_that_streams_declares(
    write_handler: WriteHandler, attributes: str, keyword: str, concurrency: int
) -> None:
    path = write_handler(f"class Model:\n    {attributes or 'pass'}\n    {keyword}def predict(self, i): yield 1\n")
    model = HandlerModel(str(path), "Model", max_batch=8)
    spec = model.load()
    if model.loop is not None:
        model.loop.close()
    assert (spec.streams, spec.max_batch, spec.concurrency) == (True, 1, concurrency)


def test_answers_are_joined_where_they_are_texts() -> None:
    assert joined(text("a", "b"))["output"].data == [b"ab"]
    number: Outputs = {"y": Tensor("y", "INT64", (1,), b"\0" * 8)}
    assert joined([number]) is number
    for answers in ([], [number, number]):
        with pytest.raises(RequestError, match="use generate_stream"):
            joined(answers)


def test_a_result_that_is_none_is_refused(write_handler: WriteHandler) -> None:
    path = write_handler("class Model:\n    def predict(self, inputs): yield None\n")
    with pytest.raises(ModelError, match="predict yielded None"):
        play(path, words)


def test_a_class_may_not_stream_and_fail_to_load(write_handler: WriteHandler) -> None:
    path = write_handler("class Model:\n    def load(self): 1/0\n    def predict(self, inputs): yield 1\n")
    with pytest.raises(LoadError, match="ZeroDivisionError"):
        HandlerModel(str(path), "Model", max_batch=1).load()
