"""Messages: tags, any source, and that they wait for nothing but their peer."""

import random
import time
import unittest

import torch
import torch.distributed as dist

import ranks


def tags(rank):
    """Random messages among all ranks, received in another order than they were sent in."""
    size = dist.get_world_size()
    plan = random.Random(1)
    messages = []
    for number in range(60):
        source, target = plan.sample(range(size), 2)
        messages.append((source, target, plan.randrange(3), plan.choice([0, 1, 10, 100000]), number))
    works, held = [], []
    for source, target, tag, count, number in messages:
        if source == rank:
            works.append(dist.isend(torch.full((count,), float(number)), target, tag=tag))
    mine = [message for message in messages if message[1] == rank]
    # Of one source and tag they come in order; which is asked for first among others is up to the receiver.
    queues = {}
    for message in mine:
        queues.setdefault((message[0], message[2]), []).append(message)
    own = random.Random(rank)
    while queues:
        key = own.choice(sorted(queues))
        source, _, tag, count, number = queues[key].pop(0)
        if not queues[key]:
            del queues[key]
        got = torch.zeros(2 * count)[::2] if count == 10 else torch.zeros(count)
        works.append(dist.irecv(got, source, tag=tag))
        held.append((got, number))
    for work in works:
        work.wait()
    for got, number in held:
        assert torch.equal(got, torch.full((got.numel(),), float(number))), f"message {number}"


def past_collectives(rank):
    """A message that is waited for holds up neither a collective nor another message."""
    size = dist.get_world_size()
    got = torch.zeros(300000)
    if rank == 0:
        first = dist.irecv(got, 1)
        total = torch.ones(5)
        dist.all_reduce(total)  # rank 1 sends after this
        small = torch.zeros(1)
        dist.recv(small, size - 1, tag=5)
        assert small.item() == 5
        first.wait()
        assert torch.equal(got, torch.full((300000,), 7.0))
    else:
        dist.all_reduce(torch.ones(5))
        if rank == size - 1:
            dist.send(torch.tensor([5.0]), 0, tag=5)
        if rank == 1:
            dist.send(torch.full((300000,), 7.0), 0)
    # Everybody to everybody at once.
    out = [torch.full((50000,), float(rank)) for _ in range(size)]
    into = [torch.zeros(50000) for _ in range(size)]
    operations = []
    for other in range(size):
        if other != rank:
            operations.append(dist.P2POp(dist.isend, out[other], other))
            operations.append(dist.P2POp(dist.irecv, into[other], other))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for other in range(size):
        if other != rank:
            assert torch.equal(into[other], out[0] * 0 + other)


def from_anybody(rank):
    size = dist.get_world_size()
    if rank == 0:
        seen = []
        for _ in range(3 * (size - 1)):
            got = torch.zeros(4)
            with torch.autograd.profiler.profile() as profile:
                source = dist.recv(got)
            assert "stretto:recvAnySource" in [event.name for event in profile.function_events]  # PyTorch's name of it
            assert torch.equal(got, torch.full((4,), float(source)))
            seen.append(source)
        assert sorted(seen) == sorted(list(range(1, size)) * 3), seen
        for other in range(1, size):
            dist.send(torch.tensor([1.0]), other)
    else:
        for _ in range(3):
            dist.send(torch.full((4,), float(rank)), 0)
        dist.recv(torch.zeros(1), 0)


def wrong(rank):
    if rank == 0:
        error = ranks.error_of(lambda: dist.recv(torch.zeros(3), 1))
        assert "16 bytes" in str(error) and "12" in str(error), repr(error)
        got = torch.zeros(4)
        dist.recv(got, 1)  # the channel goes on
        assert got[0] == 2
        late = dist.irecv(torch.zeros(3), 1, tag=9)
        future = dist.irecv(torch.zeros(3), None, tag=9).get_future()
        error = str(ranks.error_of(late.wait))
        assert "tag 9 from rank 1" in error and " Timed out " in error, error
        assert "any rank" in str(ranks.error_of(future.wait))
        dist.recv(got, 1, tag=3)  # though that was in vain
        assert got[0] == 3
        dist.send(torch.zeros(1), 1)
    else:
        for number, tag in [(1.0, 0), (2.0, 0), (3.0, 3)]:
            dist.send(torch.full((4,), number), 0, tag=tag)
        time.sleep(2)  # or this, too, would have waited too long
        dist.recv(torch.zeros(1), 0)  # not before the other has seen all of it
    assert ranks.error_of(lambda: dist.send(torch.ones(1), rank)) is not None


class Messages(unittest.TestCase):
    def test_tags(self):
        for size in [2, 4]:
            ranks.run(size, tags)

    def test_past_collectives(self):
        for size in [2, 3]:
            ranks.run(size, past_collectives)

    def test_from_anybody(self):
        ranks.run(4, from_anybody)

    def test_wrong(self):
        ranks.run(2, wrong, seconds=3)


if __name__ == "__main__":
    unittest.main()
