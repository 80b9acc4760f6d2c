"""Callbacks of futures that start operations and wait for them."""

import contextlib
import os
import pathlib
import threading
import time
import unittest

import torch
import torch.distributed as dist

import ranks
import stretto_torch


def by_future(work):
    return work.get_future().wait()[0]


def by_work(work):
    work.wait()
    return work.result()[0]


WAITS = [by_future, by_work]


def total_of(tensor):
    """The sum of all ranks' tensors by a further collective, started and waited for here."""
    return by_future(dist.all_reduce(tensor.clone(), async_op=True))


def is_all(tensor, value, what):
    assert torch.equal(tensor, torch.full_like(tensor, float(value))), f"{what}: {tensor[:4]} is not {value}"


def nested(rank):
    size = dist.get_world_size()
    for wait in WAITS:
        def outermost(done):
            def inner(done):
                def innermost(done):
                    return done.value()[0] + total_of(torch.ones(3))

                work = dist.all_reduce(done.value()[0].clone(), async_op=True)
                return work.get_future().then(innermost).wait()

            work = dist.all_reduce(done.value()[0].clone(), async_op=True)
            then = work.get_future().then(inner)
            wait(work)
            return then.wait()

        for _ in range(5):
            work = dist.all_reduce(torch.ones(3), async_op=True)
            then = work.get_future().then(outermost)
            wait(work)
            is_all(then.wait(), size**3 + size, wait.__name__)
    blocking = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda done: dist.barrier())
    blocking.wait()


def chained(rank):
    size = dist.get_world_size()
    future = dist.all_reduce(torch.ones(1000), async_op=True).get_future().then(lambda done: done.value()[0])
    for _ in range(5):
        future = future.then(lambda done: total_of(done.value()))
    is_all(future.wait(), size**6, "a chain")


def outstanding(rank, late=0.0):
    """Many operations of one size under way, so that one in another's place would be taken for it."""
    size = dist.get_world_size()
    mean = (size - 1) / 2

    def callback(number):
        def call(done):
            time.sleep(late if rank == 0 else 0.001 * ((rank + number) % 3))
            first = total_of(done.value()[0] + 1000)
            second = total_of(torch.full((10,), 2000.0 + number))
            return first, second

        return call

    def check(number, result):
        first, second = result
        is_all(first, size * (size * (number + mean) + 1000), f"the first of {number}")
        is_all(second, size * (2000 + number), f"the second of {number}")

    count = 2 if late else 8
    for attached_at_once in [True, False]:
        works, futures = [], []
        for number in range(count):
            works.append(dist.all_reduce(torch.full((10,), float(number + rank)), async_op=True))
            if attached_at_once:
                futures.append(works[-1].get_future().then(callback(number)))
        if not attached_at_once:
            futures = [work.get_future().then(callback(number)) for number, work in enumerate(works)]
        between = torch.full((10,), -1.0)
        dist.all_reduce(between)
        is_all(between, -size, "a call behind them")
        for number in reversed(range(count)):
            is_all(by_work(works[number]), size * (number + mean), f"operation {number}")
            check(number, futures[number].wait())


def waiting_for_later_ones(rank):
    """A callback may wait for operations that were started before it runs, and behind its own."""
    size = dist.get_world_size()
    for wait in WAITS:
        first = dist.all_reduce(torch.ones(3), async_op=True).get_future()
        second = dist.all_reduce(torch.full((3,), 10.0), async_op=True)
        both = first.then(lambda done: done.value()[0] + wait(second))
        is_all(both.wait(), 11 * size, wait.__name__)


def a_callback_that_blocks(rank):
    size = dist.get_world_size()
    for _ in range(2):
        go_on = threading.Event()
        # If the operation is done before the callback is attached, PyTorch runs it here, where it must not block.
        held = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(
            lambda done: threading.current_thread() is threading.main_thread() or go_on.wait(60))
        started = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(3)]
        for work in started:
            is_all(by_work(work), size, "behind the callback")
        dist.barrier()
        go_on.set()
        assert held.wait() is True


def messages(rank):
    """The thread that receives is needed for the message that a callback waits for."""
    other = 1 - rank
    words = [torch.full((1000,), float(10 * rank + i)) for i in range(3)]
    for word in words:
        dist.isend(word, other)
    got = [torch.zeros(1000) for _ in range(3)]

    def second(done):
        def third(done):
            dist.recv(got[2], other)
            return total_of(got[2])

        return dist.irecv(got[1], other).get_future().then(third).wait()

    total = dist.irecv(got[0], other).get_future().then(second).wait()
    for i in range(3):
        is_all(got[i], 10 * other + i, f"message {i}")
    is_all(total, 10 + 4, "the sum of the last ones")


def failing(rank):
    size = dist.get_world_size()

    def error_within(call):
        future = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda done: call())
        return str(ranks.error_of(future.wait))

    sparse = torch.eye(3).to_sparse()
    refusal = "dense" if torch.__version__.startswith("1.") else "SparseCPU"  # PyTorch 2 refuses it itself
    assert refusal in error_within(lambda: dist.broadcast(sparse, 0))
    integers = torch.ones(3, dtype=torch.int32)
    quantized = lambda: stretto_torch.backend_of().quantized_average(integers, "int8")
    assert "i32" in error_within(lambda: by_future(quantized())), error_within(lambda: by_future(quantized()))
    assert "i32" in error_within(lambda: by_work(quantized()))
    is_all(total_of(torch.ones(3)), size, "after errors")


def missing_within(rank):
    """A rank that does not come to the collective of a callback is named, in the future of that callback."""
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    if rank == 1:
        future.wait()
        time.sleep(8)
        return
    error = str(ranks.error_of(future.then(lambda done: total_of(torch.ones(3))).wait))
    assert "waited 4 s for rank 1" in error, error


def threads():
    names = []
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
            names.append((task / "comm").read_text())
    return sum(name.startswith("stretto_torch") for name in names)


def leaves_nothing(rank):
    def deep(done):
        return total_of(done.value()[0])

    dist.all_reduce(torch.ones(3), async_op=True).get_future().then(deep).wait()
    assert threads() > 0
    ended = []

    def slow(done):
        time.sleep(0.5)
        ended.append(True)

    dist.all_reduce(torch.ones(3), async_op=True).get_future().then(slow)  # nobody waits for it
    dist.destroy_process_group()
    stretto_torch._leave()
    assert ended == [True], ended
    until = time.monotonic() + 10
    while threads() > 0 and time.monotonic() < until:  # a thread that has been joined is listed for a moment more
        time.sleep(0.01)
    assert threads() == 0, threads()
    os._exit(0)


class Callbacks(unittest.TestCase):
    def on_2_and_3_ranks(self, body):
        for size in [2, 3]:
            ranks.run(size, body)

    def test_nested(self):
        self.on_2_and_3_ranks(nested)

    def test_chained(self):
        self.on_2_and_3_ranks(chained)

    def test_outstanding(self):
        self.on_2_and_3_ranks(outstanding)

    def test_another_order_would_be_noticed(self):  # the control: longer than any operation waits for a callback
        with self.assertRaisesRegex(AssertionError, "is not"):
            ranks.run(2, lambda rank: outstanding(rank, late=4.0))

    def test_waiting_for_later_ones(self):
        self.on_2_and_3_ranks(waiting_for_later_ones)

    def test_a_callback_that_blocks(self):
        ranks.run(2, a_callback_that_blocks)

    def test_messages(self):
        ranks.run(2, messages)

    def test_failing(self):
        ranks.run(2, failing)

    def test_missing_within(self):
        ranks.run(3, missing_within, seconds=4)

    def test_leaves_nothing(self):
        ranks.run(2, leaves_nothing, killed=[0, 1])


if __name__ == "__main__":
    unittest.main()
