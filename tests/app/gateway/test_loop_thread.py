from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from app.gateway.loop_thread import LoopThread


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit])
def test_tasks_that_are_left_end_before_what_they_use(error: type[BaseException]) -> None:
    """One has begun. The other has not, and nothing warns of a coroutine that was never awaited."""
    happened: list[str] = []

    async def one(name: str) -> None:
        happened.append(f"{name} begins")
        try:
            await asyncio.sleep(3600.0)
        except asyncio.CancelledError:
            happened.append(f"{name} ends")
            raise error from None

    def begin(name: str) -> None:
        tasks.append(asyncio.get_running_loop().create_task(one(name)))

    async def serve() -> None:
        begin("first")
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(begin, "second")

    tasks: list[asyncio.Task[None]] = []
    thread = LoopThread("loop", "what is tested", serve, [lambda: happened.append("closed")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        thread.run()
        assert all(task.cancelled() or task.exception() for task in tasks)
        tasks.clear()
        gc.collect()
    assert happened == ["first begins", "first ends", "closed"]
    assert thread.crash == ("SystemExit: " if error is SystemExit else "")
    assert thread.has_ended
