#include "perf/operation.hpp"

#include <tuple>

#include "perf/values.hpp"
#include "stretto/device.hpp"
#include "stretto/error.hpp"

namespace perf {
namespace {

using stretto::Collective;

stretto::Call call_of(const Case& test_case, int rank, const void* input, void* output) {
  stretto::Call call;
  call.collective = test_case.test->collective;
  call.input = input;
  call.output = output;
  call.count = test_case.count;
  call.dtype = test_case.dtype;
  call.op = test_case.op;
  call.root = test_case.root;
  if (!test_case.test->uneven) return call;
  call.count = 0;
  if (call.collective != Collective::all_to_all) {
    call.counts = test_case.counts;
    return call;
  }
  for (int peer = 0; peer < test_case.ranks; ++peer) {
    call.counts.push_back(test_case.sent(rank, peer));
    call.receive_counts.push_back(test_case.sent(peer, rank));
  }
  return call;
}

}  // namespace

Action action_of(const stretto::Communicator& world, const Case& test_case, const stretto::Method& method,
                 const Buffers& buffers, bool prepared, const stretto::Quantization& quantization) {
  // A barrier has no buffers on a GPU.
  const bool barrier = test_case.test->collective == Collective::barrier;
  const stretto::Stream stream = barrier ? stretto::Stream::inline_() : stretto::computation();
  const stretto::OperationOptions options{.method = method,
                                          .tag = "",
                                          .factor = Values::factor(world.rank()),
                                          .quantization = quantization,
                                          .servers = test_case.servers};
  std::vector<stretto::Call> calls;  // one for each copy of the buffers
  calls.reserve(buffers.copies());
  for (int copy = 0; copy < buffers.copies(); ++copy) {
    calls.push_back(call_of(test_case, world.rank(), buffers.input(copy), buffers.output(copy)));
  }
  if (is_ring_exchange(*test_case.test)) {
    const int next = (world.rank() + 1) % world.size();
    const int previous = (world.rank() + world.size() - 1) % world.size();
    return repeated(buffers.copies(), [=](int copy) {
      const stretto::Call& call = calls[copy];
      std::ignore =
          world.send_recv(call.input, call.count, next, call.output, call.count, previous, call.dtype, stream, options);
    });
  }
  if (!prepared) {
    return repeated(buffers.copies(), [=](int copy) { std::ignore = world.start(calls[copy], stream, options); });
  }
  std::vector<stretto::Operation> operations;
  operations.reserve(calls.size());
  for (const stretto::Call& call : calls) operations.push_back(world.prepare(call, options));
  return repeated(buffers.copies(), [=](int copy) { std::ignore = operations[copy].start(stream); });
}

std::string method_of(const stretto::Communicator& world, const Case& test_case, const stretto::Method& method,
                      const void* input, void* output, const stretto::Quantization& quantization) {
  if (is_ring_exchange(*test_case.test) || test_case.test->collective == Collective::barrier) {
    return name(algorithms_for(test_case.test->collective).front());
  }
  return to_string(world
                       .prepare(call_of(test_case, world.rank(), input, output),
                                {.method = method, .quantization = quantization, .servers = test_case.servers})
                       .method());
}

std::string obstacle_to(const stretto::Communicator& world, const Case& test_case, const stretto::Method& method,
                        const Buffers& buffers, const Reach& reach, const stretto::Quantization& quantization) {
  using stretto::Algorithm;
  if (!reach.maps && method.algorithm == Algorithm::push) return "push needs symmetric memory.";
  if (!reach.maps && !reach.reads && method.algorithm == Algorithm::pull) {
    return "the kernel does not let ranks read each other's memory, which pull needs unless memory is symmetric.";
  }
  try {
    method_of(world, test_case, method, buffers.input(0), buffers.output(0), quantization);
    return "";
  } catch (const stretto::Error& error) {
    if (error.code() != stretto::ErrorCode::invalid_argument) throw;
    return error.what();
  }
}

}  // namespace perf
