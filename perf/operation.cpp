#include "operation.hpp"

#include "values.hpp"

namespace perf {

using stretto::Collective;

namespace {

stretto::Call call_of(const stretto::Communicator& world, const Case& what, const void* input, void* output) {
  stretto::Call call;
  call.collective = what.test->collective;
  call.input = input;
  call.output = output;
  call.count = what.count;
  call.dtype = what.dtype;
  call.op = what.op;
  call.root = what.root;
  if (what.test->uneven && call.collective != Collective::all_to_all) call.counts = what.counts;
  if (what.test->uneven && call.collective == Collective::all_to_all) {
    for (int other = 0; other < world.size(); ++other) {
      call.counts.push_back(what.sent(world.rank(), other));
      call.receive_counts.push_back(what.sent(other, world.rank()));
    }
  }
  return call;
}

}  // namespace

void perform(const stretto::Communicator& world, const Case& what, const stretto::Method& method, const void* input,
             void* output) {
  const stretto::Stream stream = stretto::Stream::inline_();
  const stretto::OperationOptions options{method, "", Values::factor(world.rank())};
  if (is_ring_exchange(*what.test)) {
    const int size = world.size();
    world.send_recv(input, what.count, (world.rank() + 1) % size, output, what.count, (world.rank() + size - 1) % size,
                    what.dtype, stream, options);
  } else {
    world.start(call_of(world, what, input, output), stream, options);
  }
}

std::string method_of(const stretto::Communicator& world, const Case& what, const stretto::Method& method, const void* input,
                      void* output) {
  if (is_ring_exchange(*what.test)) return name(stretto::Algorithm::direct);
  return to_string(world.prepare(call_of(world, what, input, output), {.method = method}).method());
}

}  // namespace perf
