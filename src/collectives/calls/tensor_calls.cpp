#include <numeric>
#include <tuple>

#include "core/fail.hpp"
#include "stretto/communicator.hpp"

// The functions of Communicator that take whole tensors.
namespace stretto {
namespace {

using Counts = std::vector<std::int64_t>;

std::int64_t sum_of(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); }

// Of the calling rank. Counts of another number than the ranks are refused with the call.
std::int64_t own_count(const Counts& counts, const Communicator& ranks) {
  const auto rank = static_cast<std::size_t>(ranks.rank());
  return rank < counts.size() ? counts[rank] : 0;
}

Call in_place(Collective collective, const Tensor& tensor, ReduceOp op, int root) {
  Call call{collective, tensor.raw(), tensor.raw(), tensor.size(), tensor.dtype(), op, root};
  call.keep_alive[0] = tensor;
  return call;
}

// reads, writes: the elements of the input and the output that the call uses on this rank.
Call between(Collective collective, const Tensor& input, std::int64_t reads, const Tensor& output, std::int64_t writes) {
  require(input.size() == reads && output.size() == writes,
          "{} got an input of {} elements and an output of {}; of these sizes it reads {} and writes {}.", name(collective),
          input.size(), output.size(), reads, writes);
  require(!input || !output || input.dtype() == output.dtype(),
          "{} got an input of {} and an output of {}; give tensors of one element type.", name(collective),
          name(input.dtype()), name(output.dtype()));
  Call call{collective, input.raw(), output.raw()};
  call.dtype = input ? input.dtype() : output.dtype();
  call.keep_alive = {input, output};
  return call;
}

}  // namespace

Work Communicator::all_reduce(const Tensor& tensor, ReduceOp op, const Stream& stream, const OperationOptions& options,
                              CallSite site) const {
  require(
      tensor || options.servers == 0,
      "all_reduce with {} servers got no tensor on rank {}; give one of the others' size, or call with a count and nullptr.",
      options.servers, rank());
  return start(in_place(Collective::all_reduce, tensor, op, 0), stream, options, site);
}

Work Communicator::broadcast(const Tensor& tensor, int root, const Stream& stream, const OperationOptions& options,
                             CallSite site) const {
  return start(in_place(Collective::broadcast, tensor, ReduceOp::sum, root), stream, options, site);
}

Work Communicator::reduce(const Tensor& tensor, ReduceOp op, int root, const Stream& stream, const OperationOptions& options,
                          CallSite site) const {
  return start(in_place(Collective::reduce, tensor, op, root), stream, options, site);
}

Work Communicator::reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op, const Stream& stream,
                                  const OperationOptions& options, CallSite site) const {
  Call call = between(Collective::reduce_scatter, input, size() * output.size(), output, output.size());
  call.count = output.size();
  call.op = op;
  return start(call, stream, options, site);
}

Work Communicator::reduce_scatter_v(const Tensor& input, const Tensor& output, const Counts& counts, ReduceOp op,
                                    const Stream& stream, const OperationOptions& options, CallSite site) const {
  Call call = between(Collective::reduce_scatter, input, sum_of(counts), output, own_count(counts, *this));
  call.counts = counts;
  call.op = op;
  return start(call, stream, options, site);
}

Work Communicator::all_gather(const Tensor& input, const Tensor& output, const Stream& stream,
                              const OperationOptions& options, CallSite site) const {
  Call call = between(Collective::all_gather, input, input.size(), output, size() * input.size());
  call.count = input.size();
  return start(call, stream, options, site);
}

Work Communicator::all_gather_v(const Tensor& input, const Tensor& output, const Counts& counts, const Stream& stream,
                                const OperationOptions& options, CallSite site) const {
  Call call = between(Collective::all_gather, input, own_count(counts, *this), output, sum_of(counts));
  call.counts = counts;
  return start(call, stream, options, site);
}

Work Communicator::all_to_all(const Tensor& input, const Tensor& output, const Stream& stream,
                              const OperationOptions& options, CallSite site) const {
  Call call = between(Collective::all_to_all, input, input.size() / size() * size(), output, input.size());
  call.count = input.size() / size();
  return start(call, stream, options, site);
}

Work Communicator::all_to_all_v(const Tensor& input, const Counts& send_counts, const Tensor& output,
                                const Counts& receive_counts, const Stream& stream, const OperationOptions& options,
                                CallSite site) const {
  Call call = between(Collective::all_to_all, input, sum_of(send_counts), output, sum_of(receive_counts));
  call.counts = send_counts;
  call.receive_counts = receive_counts;
  return start(call, stream, options, site);
}

Work Communicator::gather(const Tensor& input, const Tensor& output, int root, const Stream& stream,
                          const OperationOptions& options, CallSite site) const {
  Call call =
      between(Collective::gather, input, input.size(), output, rank() == root ? size() * input.size() : output.size());
  call.count = input.size();
  call.root = root;
  return start(call, stream, options, site);
}

Work Communicator::gather_v(const Tensor& input, const Tensor& output, const Counts& counts, int root, const Stream& stream,
                            const OperationOptions& options, CallSite site) const {
  Call call =
      between(Collective::gather, input, own_count(counts, *this), output, rank() == root ? sum_of(counts) : output.size());
  call.counts = counts;
  call.root = root;
  return start(call, stream, options, site);
}

Work Communicator::scatter(const Tensor& input, const Tensor& output, int root, const Stream& stream,
                           const OperationOptions& options, CallSite site) const {
  Call call =
      between(Collective::scatter, input, rank() == root ? size() * output.size() : input.size(), output, output.size());
  call.count = output.size();
  call.root = root;
  return start(call, stream, options, site);
}

Work Communicator::scatter_v(const Tensor& input, const Tensor& output, const Counts& counts, int root, const Stream& stream,
                             const OperationOptions& options, CallSite site) const {
  Call call =
      between(Collective::scatter, input, rank() == root ? sum_of(counts) : input.size(), output, own_count(counts, *this));
  call.counts = counts;
  call.root = root;
  return start(call, stream, options, site);
}

Work Communicator::send(const Tensor& tensor, int peer, const Stream& stream, const OperationOptions& options,
                        CallSite site) const {
  Call call = in_place(Collective::send, tensor, ReduceOp::sum, peer);
  call.output = nullptr;
  return start(call, stream, options, site);
}

Work Communicator::recv(const Tensor& tensor, int peer, const Stream& stream, const OperationOptions& options,
                        CallSite site) const {
  Call call = in_place(Collective::recv, tensor, ReduceOp::sum, peer);
  call.input = nullptr;
  return start(call, stream, options, site);
}

Work Communicator::send_recv(const Tensor& input, int to, const Tensor& output, int from, const Stream& stream,
                             const OperationOptions& options, CallSite site) const {
  OperationGroup both;
  std::ignore = send(input, to, stream, options, site);
  std::ignore = recv(output, from, stream, options, site);
  return both.end();
}

}  // namespace stretto
