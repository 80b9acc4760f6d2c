#include "operation.hpp"

#include "fail.hpp"
#include "values.hpp"

namespace perf {

using stretto::Collective;

void check_method(const Case& what, const stretto::Method& method) {
  // These two are resolved by the communicator, which knows the machine.
  if (method.algorithm == stretto::Algorithm::automatic || method.algorithm == stretto::Algorithm::two_level) return;
  stretto::PlanRequest request{what.test->collective, method, 0, what.ranks, what.count, what.root};
  if (is_ring_exchange(*what.test)) request.root = 1;
  if (what.test->uneven) {
    const bool pairs = what.test->collective == Collective::all_to_all;
    for (int rank = 0; rank < what.ranks; ++rank) {
      request.counts.push_back(pairs ? what.sent(0, rank) : what.share(rank));
      if (pairs) request.receive_counts.push_back(what.sent(rank, 0));
    }
  }
  make_plan(request);
}

void perform(const stretto::Communicator& world, const Case& what, const stretto::Method& method, const void* input,
             void* output) {
  const stretto::Stream stream = stretto::Stream::inline_();
  const stretto::OperationOptions options{method, "", Values::factor(world.rank())};
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  switch (what.test->collective) {
    case Collective::all_reduce: world.all_reduce(input, output, what.count, what.dtype, what.op, stream, options); return;
    case Collective::reduce_scatter:
      if (what.test->uneven) break;
      world.reduce_scatter(input, output, what.count, what.dtype, what.op, stream, options);
      return;
    case Collective::all_gather:
      if (what.test->uneven) break;
      world.all_gather(input, output, what.count, what.dtype, stream, options);
      return;
    case Collective::broadcast: world.broadcast(input, output, what.count, what.dtype, what.root, stream, options); return;
    case Collective::reduce:
      world.reduce(input, output, what.count, what.dtype, what.op, what.root, stream, options);
      return;
    case Collective::barrier: world.barrier(stream); return;
    case Collective::send:
      if (world.rank() == 0) {
        world.send(input, what.count, what.dtype, next, stream, options);
        world.recv(output, what.count, what.dtype, previous, stream, options);
      } else {
        world.recv(output, what.count, what.dtype, previous, stream, options);
        world.send(input, what.count, what.dtype, next, stream, options);
      }
      return;
    default: break;
  }
  fail(stretto::ErrorCode::invalid_argument, "{} is not there yet.", what.test->name);
}

std::string method_of(const stretto::Communicator& world, const Case& what, const stretto::Method& /*method*/,
                      const void* /*input*/, void* /*output*/) {
  const auto records = world.ledger().records();
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    if (record->collective == what.test->collective) return name(record->algorithm);
  }
  return "";
}

}  // namespace perf
