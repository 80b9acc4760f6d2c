"""Every collective beside Gloo's on the same integers, in the same processes."""

import datetime
import os
import random
import unittest

import torch
import torch.distributed as dist

import ranks
import stretto_torch

Op = dist.ReduceOp
TYPES = [torch.float32, torch.float64, torch.float16, torch.int8, torch.uint8, torch.int32, torch.int64]
SHAPES = [(), (1,), (7, 3), (40000,)]  # of none, Gloo's all-gather divides by zero


def data(shape, dtype, seed, most=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, most, shape, generator=generator).to(dtype)


def differently_laid(tensor):
    """The same elements with a hole behind each."""
    wide = torch.full(tuple(tensor.shape) + (2,), 3, dtype=tensor.dtype)
    result = wide[..., 0]
    result.copy_(tensor)
    assert tensor.numel() <= 1 or not result.is_contiguous()
    return result


def same(got, expected, what):
    assert got.dtype == expected.dtype and got.shape == expected.shape, what
    assert torch.equal(got, expected), f"{what}: {got} is not {expected}"


def beside_gloo(rank):
    size = dist.get_world_size()
    peer = ranks.gloo()
    for dtype in TYPES:
        for shape in SHAPES:
            mine = data(shape, dtype, rank)
            for lay in [torch.clone, differently_laid]:
                what = f"{dtype} {shape} {lay.__name__}"
                for op in [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX]:
                    got, expected = lay(mine), mine.clone()
                    dist.all_reduce(got, op)
                    dist.all_reduce(expected, op, group=peer)
                    same(got, expected, f"all_reduce {op} {what}")
                for root in range(size):
                    got, expected = lay(mine), mine.clone()
                    dist.broadcast(got, root)
                    dist.broadcast(expected, root, group=peer)
                    same(got, expected, f"broadcast {what}")
                root = size - 1
                got, expected = lay(mine), mine.clone()
                dist.reduce(got, root)
                dist.reduce(expected, root, group=peer)
                same(got, expected if rank == root else mine, f"reduce {what}")
                got = [lay(torch.zeros_like(mine)) for _ in range(size)]
                expected = [torch.zeros_like(mine) for _ in range(size)]
                dist.all_gather(got, lay(mine))
                dist.all_gather(expected, mine, group=peer)
                for one, other in zip(got, expected):
                    same(one, other, f"all_gather {what}")
                for got, group in [(lay(mine), None), (mine.clone(), peer)]:
                    parts = [torch.zeros_like(mine) for _ in range(size)] if rank == root else None
                    dist.gather(got, parts, root, group=group)
                    if rank == root:
                        for one, other in zip(parts, expected):
                            same(one, other, f"gather {what}")
                got = lay(torch.zeros_like(mine))
                dist.scatter(got, [lay(part) for part in expected] if rank == root else None, root)
                same(got, mine, f"scatter {what}")
    for kind in [Op.BAND, Op.BOR, Op.BXOR]:
        for dtype in [torch.uint8, torch.int32, torch.int64]:
            got = data((100,), dtype, rank, 100)
            expected = got.clone()
            dist.all_reduce(got, kind)
            dist.all_reduce(expected, kind, group=peer)
            same(got, expected, f"{kind} {dtype}")
    for root in range(size):  # the odd one out
        got = data((100,), torch.int32, rank, 100)
        expected = got.clone()
        dist.reduce(got, root, Op.BXOR)
        dist.reduce(expected, root, Op.BXOR, group=peer)
        if rank == root:
            same(got, expected, "reduce BXOR")


def sparse(rank):
    """Sums of sparse tensors of all kinds: elements of one or all ranks, none, several at one place, and with dense dimensions."""
    peer = ranks.gloo()
    size = dist.get_world_size()
    for dtype in [torch.float32, torch.float64, torch.int64]:
        for shape, dense in [((50,), 0), ((20, 30), 0), ((20, 30, 4), 1), ((8, 3, 2), 2)]:
            for count in [rank, 1, 40, 40 * (rank == size - 1)]:
                generator = torch.Generator().manual_seed(100 + rank)
                places = torch.stack([torch.randint(0, each, (count,), generator=generator)
                                      for each in shape[: len(shape) - dense]])
                values = data((count, *shape[len(shape) - dense :]), dtype, rank)
                got = torch.sparse_coo_tensor(places, values, shape)
                expected = got.clone()
                dist.all_reduce(got)
                dist.all_reduce(expected, group=peer)
                same(got.to_dense(), expected.to_dense(), f"sparse all_reduce of {count} {dtype} {shape}")
                assert got.is_coalesced() and got.shape == shape
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(40, 3, sparse=True))
    net(torch.tensor([rank, 2, 39])).sum().backward()
    wanted = torch.zeros(40, 3)
    for other in range(size):
        wanted[[other, 2, 39]] += 1 / size
        wanted[2] += 1 / size if other == 2 else 0
    assert torch.allclose(net.module.weight.grad.to_dense(), wanted), net.module.weight.grad


# What Gloo of some version lacks, against the inputs of all ranks.
def beyond_gloo(rank):
    size = dist.get_world_size()
    for dtype in TYPES + [torch.bfloat16, torch.int16]:
        for count in [0, 1, 5, 30000]:
            inputs = [data((size * count,), dtype, seed, 4) for seed in range(size)]
            mine = inputs[rank].clone()
            total = torch.stack([each.to(torch.int64) for each in inputs]).sum(0).to(dtype)
            share = slice(rank * count, (rank + 1) * count)
            what = f"{dtype} {count}"

            got = mine.clone()
            dist.all_reduce(got)
            same(got, total, f"all_reduce {what}")
            got = torch.zeros(count, dtype=dtype)
            dist.reduce_scatter_tensor(got, mine) if hasattr(dist, "reduce_scatter_tensor") else dist._reduce_scatter_base(
                got, mine)
            same(got, total[share], f"reduce_scatter_tensor {what}")
            got = torch.zeros(count, dtype=dtype)
            dist.reduce_scatter(got, list(mine.clone().chunk(size)))
            same(got, total[share], f"reduce_scatter {what}")
            got = torch.zeros(size * count, dtype=dtype)
            dist.all_gather_into_tensor(got, total[share].clone())
            same(got, total, f"all_gather_into_tensor {what}")
            place = torch.zeros(size * count, dtype=dtype)  # in place
            place[share] = total[share]
            dist.all_gather_into_tensor(place, place[share])
            same(place, total, f"all_gather_into_tensor in place {what}")
            swapped = torch.cat([each[share] for each in inputs])
            got = torch.zeros(size * count, dtype=dtype)
            dist.all_to_all_single(got, mine)
            same(got, swapped, f"all_to_all_single {what}")
            got = list(torch.zeros(size * count, dtype=dtype).chunk(size))
            dist.all_to_all(got, list(mine.chunk(size)))
            same(torch.cat(got), swapped, f"all_to_all {what}")
    # Uneven shares: rank r sends s + 1 rows to rank s, and has r + 1 rows of a reduce_scatter.
    rows = torch.arange(size * (size + 1) // 2 * 3).reshape(-1, 3) + 1000 * rank
    sends = [other + 1 for other in range(size)]
    receives = [rank + 1] * size
    got = torch.zeros(sum(receives), 3, dtype=torch.int64)
    dist.all_to_all_single(got, rows, receives, sends)
    first = rank * (rank + 1) // 2
    own = torch.arange(rows.numel()).reshape(-1, 3)[first : first + rank + 1]
    same(got, torch.cat([own + 1000 * other for other in range(size)]), "uneven all_to_all_single")
    got = torch.zeros(rank + 1, 3, dtype=torch.int64)
    dist.reduce_scatter(got, list(rows.split(sends)))
    same(got, own * size + 1000 * sum(range(size)), "uneven reduce_scatter")

    flags = torch.tensor([rank == 0, True, False])
    for op, first in [(Op.SUM, True), (Op.MAX, True), (Op.BOR, True), (Op.PRODUCT, size == 1), (Op.BAND, size == 1),
                      (Op.MIN, size == 1), (Op.BXOR, True)]:
        got = flags.clone()
        dist.all_reduce(got, op)
        same(got, torch.tensor([first, op != Op.BXOR or size % 2 == 1, False]), f"bool {op}")

    average = torch.full((5,), float(rank))
    dist.all_reduce(average, Op.AVG)
    same(average, torch.full((5,), (size - 1) / 2), "AVG")
    pieces = [torch.full((n,), float(rank + n)) for n in range(1, 6)]
    dist.all_reduce_coalesced(pieces)
    for n, piece in enumerate(pieces, 1):
        same(piece, torch.full((n,), float(sum(range(size)) + n * size)), "all_reduce_coalesced")
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((3,), -float(rank))])
    for other in range(size):
        same(lists[other][0], torch.full((2,), float(other)), "all_gather_coalesced")
        same(lists[other][1], torch.full((3,), -float(other)), "all_gather_coalesced")
    moved = torch.full((3,), complex(rank, 1))  # a type without arithmetic here
    dist.broadcast(moved, size - 1)
    same(moved, torch.full((3,), complex(size - 1, 1)), "broadcast of complex numbers")
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(size)]


def refusals(rank):
    """The same wrong call at both: errors of the same kind, and the group goes on."""
    size = dist.get_world_size()
    peer = ranks.gloo()
    one, two = torch.ones(3), torch.ones(4)
    sparse = torch.eye(3).to_sparse()
    wrong = {
        "types differ": lambda group: dist.all_gather([torch.ones(3, dtype=torch.int32)] * size, one, group=group),
        "shapes differ": lambda group: dist.all_gather([two] * size, one, group=group),
        "too few": lambda group: dist.all_gather([one] * (size + 1), one, group=group),
        "sparse": lambda group: dist.broadcast(sparse, 0, group=group),
        "no such type": lambda group: dist.all_reduce(torch.ones(3, dtype=torch.complex64), Op.MAX, group=group),
        "scatter too few": lambda group: dist.scatter(one, [one] * (size + 1) if rank == 0 else None, 0, group=group),
    }
    for name, call in wrong.items():
        if name == "scatter too few" and rank != 0:
            continue
        ours, theirs = ranks.error_of(lambda: call(None)), ranks.error_of(lambda: call(peer))
        assert isinstance(ours, type(theirs)) and ours is not None, f"{name}: {ours!r} beside Gloo's {theirs!r}"
    for call, says in [
        (lambda: dist.all_reduce(torch.ones(3), Op.BAND), "BAND takes integers"),
        (lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), Op.AVG), "AVG has no meaning for bool"),
        (lambda: dist.all_reduce(sparse.clone(), Op.MAX), "SUM alone"),
        (lambda: dist.all_reduce(torch.eye(3 + rank).to_sparse()), "another type or shape"),
        (lambda: stretto_torch.backend_of().quantized_average(torch.ones(3), "int3"), "int3"),
        (lambda: stretto_torch.backend_of().quantized_average(torch.ones(3, dtype=torch.int32), "int8").wait(), "i32"),
        (lambda: stretto_torch.hooks.quantized(bits=2), "8 or 4"),
        (lambda: stretto_torch.backend_of(peer), "stretto"),
        (lambda: dist.all_reduce(torch.ones(1).expand(4)), "share memory"),
        (lambda: dist.all_gather([torch.ones(1).expand(3)] * size, one), "share memory"),
    ]:
        error = ranks.error_of(call)
        assert error is not None and says in str(error), f"{says}: {error!r}"
    total = torch.ones(3)
    dist.all_reduce(total)
    same(total, torch.full((3,), float(size)), "after errors")


def asynchronous(rank):
    size = dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(1000)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        assert not work.is_completed()  # the others have not even come
        error = ranks.error_of(lambda: work.wait(datetime.timedelta(milliseconds=50)))
        assert error is not None and "timed out" in str(error), repr(error)
        store.set("go", "1")
    else:
        store.wait(["go"])
        work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    same(doubled.wait(), torch.full((1000,), 2.0 * size), "a future's result")
    assert work.wait() and work.is_completed() and work.is_success()
    same(work.result()[0], tensor, "result")

    # A callback that communicates, in whichever thread it comes.
    def again(done):
        more = done.value()[0].clone()
        dist.all_reduce(more)
        return more

    tensor = torch.ones(10)
    same(dist.all_reduce(tensor, async_op=True).get_future().then(again).wait(), torch.full((10,), 1.0 * size**2), "again")

    # All ranks start the same, and each waits in an order of its own.
    order = random.Random(0)
    own = random.Random(rank)
    for _ in range(20):
        tensors = [torch.full((order.randrange(5000),), float(rank + i)) for i in range(order.randrange(1, 8))]
        works = [dist.all_reduce(each, async_op=True) for each in tensors]
        kept = list(enumerate(works))
        own.shuffle(kept)
        for i, work in kept:
            if own.random() < 0.5:
                work.wait()
            else:
                work.get_future().wait()
            same(tensors[i], torch.full_like(tensors[i], float(sum(range(size)) + i * size)), "out of order")
    chained = torch.ones(500)  # operations on one tensor follow each other
    works = [dist.all_reduce(chained, async_op=True) for _ in range(4)]
    works[-1].wait()
    same(chained, torch.full((500,), float(size**4)), "chained")


def groups(rank):
    size = dist.get_world_size()
    halves = [list(range(size // 2)), list(range(size // 2, size))]
    groups = [dist.new_group(members) for members in halves]
    evens = dist.new_group(list(range(0, size, 2)))
    single = [dist.new_group([member]) for member in range(size)]
    half = rank // (size // 2)
    # Several jobs of Stretto's in one process, at work at the same time.
    works = []
    for turn in range(10):
        world, part, alone = torch.ones(2000), torch.ones(2000), torch.ones(5)
        works.append((dist.all_reduce(world, async_op=True), world, size))
        works.append((dist.all_reduce(part, group=groups[half], async_op=True), part, len(halves[half])))
        works.append((dist.all_reduce(alone, group=single[rank], async_op=True), alone, 1))
        if rank % 2 == 0:
            even = torch.ones(3000)
            works.append((dist.all_reduce(even, group=evens, async_op=True), even, (size + 1) // 2))
    for work, tensor, expected in reversed(works):
        work.wait()
        same(tensor, torch.full_like(tensor, float(expected)), "groups")
    source = torch.full((3,), float(rank))
    dist.broadcast(source, halves[half][-1], group=groups[half])
    same(source, torch.full((3,), float(halves[half][-1])), "ranks of the world name roots of groups")
    dist.destroy_process_group(evens) if rank % 2 == 0 else None
    dist.barrier()


def one_store_twice(rank):
    """A group may be made over a store which still has what an earlier one wrote: PyTorch 2 lets programs begin again."""
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, rank == 0)
    for turn in range(3):
        group = stretto_torch._C.ProcessGroupStretto(store, rank, 2, datetime.timedelta(seconds=30))
        total = torch.tensor([rank + 10 * turn])
        group.allreduce([total]).wait()
        assert total.item() == 1 + 20 * turn, total
        del group


def barriers(rank):
    size = dist.get_world_size()
    second = datetime.timedelta(seconds=1)
    assert ranks.error_of(stretto_torch.monitored_barrier) is None
    alone = dist.new_group([0])
    stretto_torch.monitored_barrier(alone)  # of no concern to the others, as in PyTorch's
    if not torch.__version__.startswith("1."):  # PyTorch's own function takes every backend for the CPU
        dist.monitored_barrier()
    store = dist.distributed_c10d._get_default_store()
    if rank == size - 1:
        store.wait(["missed"])  # and has not come
        backend = stretto_torch.backend_of()
        error = ranks.error_of(lambda: backend.monitored_barrier(timeout=second))
        assert f"Rank {rank} successfully reached monitoredBarrier" in str(error), repr(error)
    else:
        error = ranks.error_of(lambda: stretto_torch.monitored_barrier(timeout=second, wait_all_ranks=True))
        assert f"rank {size - 1} " in str(error) and " Timed out " in str(error), repr(error)
        said = ["Rank 0 timed out in monitoredBarrier", "Rank 1 successfully reached monitoredBarrier"][rank]  # as Gloo's does
        assert said in str(error), repr(error)
        if rank == 0:
            store.set("missed", "1")
    dist.barrier()  # nothing is broken


class Collectives(unittest.TestCase):
    def test_beside_gloo_on_2_ranks(self):
        ranks.run(2, beside_gloo)

    def test_beside_gloo_on_4_ranks(self):
        ranks.run(4, beside_gloo)

    def test_sparse(self):
        for size in [1, 2, 3]:
            ranks.run(size, sparse)

    def test_beyond_gloo(self):
        for size in [1, 2, 4]:
            ranks.run(size, beyond_gloo)

    def test_refusals(self):
        ranks.run(2, refusals)

    def test_asynchronous(self):
        for size in [2, 4]:
            ranks.run(size, asynchronous)

    def test_groups(self):
        ranks.run(4, groups)

    def test_one_store_twice(self):
        ranks.run(2, one_store_twice, backend=None)

    def test_barriers(self):
        ranks.run(3, barriers)

    def test_a_wrong_sum_is_noticed(self):  # the control
        def body(rank):
            got = torch.full((3,), float(rank))
            dist.all_reduce(got)
            same(got, torch.full((3,), 2.0), "all_reduce")

        with self.assertRaisesRegex(AssertionError, "is not"):
            ranks.run(2, body)


if __name__ == "__main__":
    unittest.main()
