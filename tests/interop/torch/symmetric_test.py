"""Tensors in symmetric memory: where they lie, and that sums and training are those of ordinary memory."""

import contextlib
import threading
import unittest

import torch
import torch.distributed as dist

import ranks
import stretto_torch
import training


def shared(tensor):
    """Whether a tensor lies in memory of a file that other processes can map."""
    address = tensor.data_ptr()
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(each, 16) for each in line.split()[0].split("-"))
            if begin <= address < end:
                return "memfd:" in line
    raise AssertionError(f"{address:x} is in no mapping")


def tensor_on(memory, count):
    with stretto_torch.symmetric_memory() if memory else contextlib.nullcontext():
        tensor = torch.empty(count)
    assert shared(tensor) == memory
    return tensor


def collectives(rank):
    """Where all ranks have symmetric memory, where only the first has, and where the others have."""
    size = dist.get_world_size()
    for has in [True, rank == 0, rank != 0]:
        for count in [1, 1000, 1 << 18]:
            part = torch.arange(count).remainder(1000).float()
            mine, whole = tensor_on(has, count), tensor_on(has, size * count)
            mine.copy_(part).add_(rank)
            dist.all_gather_into_tensor(whole, mine) if hasattr(dist, "all_gather_into_tensor") else \
                dist._all_gather_base(whole, mine)
            expected = torch.cat([part + each for each in range(size)])
            assert torch.equal(whole, expected), (has, count)
            dist.all_reduce(whole)
            assert torch.equal(whole, size * expected), (has, count)
            dist.reduce_scatter_tensor(mine, whole)
            assert torch.equal(mine, size * size * (part + rank)), (has, count)
            dist.broadcast(mine, src=1)
            assert torch.equal(mine, size * size * (part + 1)), (has, count)


def ddp(group=None, **arguments):
    return torch.nn.parallel.DistributedDataParallel(training.model(), process_group=group, bucket_cap_mb=0.01,
                                                     gradient_as_bucket_view=True, **arguments)


def places(net):
    return [shared(parameter.grad) for parameter in net.parameters()]


def buckets(rank):
    """Of DDP over each backend: the losses, and where the gradients lie in the end."""
    result = {}
    for name, group in {"stretto": None, "gloo": dist.new_group(backend="gloo")}.items():
        for arguments in [{}, {"find_unused_parameters": True}, {"static_graph": True}]:
            net = ddp(group, **arguments)
            losses = training.losses_of(net, training.adam(net.parameters()), rank)
            result[name, *arguments] = losses, places(net), net._has_rebuilt_buckets
    return result


def uneven(rank):
    """Ranks with 1 and 4 batches; none waits for another in vain."""
    net = ddp()
    with net.join():
        losses = training.losses_of(net, training.adam(net.parameters()), rank, steps=1 if rank else 4)
    return losses, places(net)


class SymmetricMemory(unittest.TestCase):
    def test_holds_what_is_made_inside_and_by_this_thread(self):
        made = []
        with stretto_torch.symmetric_memory():
            inside = torch.zeros(1000)
            with stretto_torch.symmetric_memory():
                nested = torch.zeros(1000)
            after = torch.zeros(1000)
            thread = threading.Thread(target=lambda: made.append(torch.zeros(1000)))
            thread.start()
            thread.join()
        self.assertEqual([shared(each) for each in [inside, nested, after]], [True] * 3)
        self.assertEqual([shared(each) for each in [*made, torch.zeros(1000)]], [False] * 2)
        self.assertEqual(inside.add(1).sum().item(), 1000)

    def test_is_left_by_an_exception_too(self):
        with self.assertRaises(ZeroDivisionError), stretto_torch.symmetric_memory():
            1 / 0
        self.assertFalse(shared(torch.zeros(1000)))

    def test_is_given_back_with_its_last_tensor(self):
        addresses = set()
        for _ in range(10):
            with stretto_torch.symmetric_memory():
                whole = torch.zeros(1 << 18)
            part = whole[1000:]
            del whole
            part.fill_(1)
            addresses.add(part.data_ptr())
            del part
        self.assertEqual(len(addresses), 1)

    def test_results_are_right_where_all_or_some_ranks_have_it(self):
        ranks.run(2, collectives)
        ranks.run(4, collectives)

    def test_ddp_keeps_its_buckets_there_and_trains_the_same(self):
        for got in ranks.run(2, buckets):
            for arguments in [(), ("find_unused_parameters",), ("static_graph",)]:
                losses, places, rebuilt = got["gloo", *arguments]
                self.assertFalse(any(places), arguments)  # the control
                self.assertEqual(got["stretto", *arguments], (losses, [True] * len(places), rebuilt), arguments)

    def test_ddp_joins_ranks_that_have_run_out(self):
        (long, there), (short, _) = ranks.run(2, uneven)
        self.assertEqual((len(long), len(short)), (4, 1))
        self.assertTrue(all(there))


if __name__ == "__main__":
    unittest.main()
