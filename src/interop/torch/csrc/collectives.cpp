// The collectives of c10d, as calls of Stretto. Collectives that only move data send bytes, so they serve every type.
#include "checks.hpp"
#include "memory.hpp"
#include "process_group.hpp"

namespace stretto_torch {
namespace {

using c10d::OpType;
using stretto::Communicator;
using stretto::DType;
using stretto::Stream;

constexpr DType bytes_only = DType::u8;

void all_gather(const Communicator& world, const Memory& input, void* output, const Stream& stream) {
  world.all_gather(input.data(), output, input.bytes(), bytes_only, stream).wait();
}

// Reduces `run` in place.
void all_reduce(const Communicator& world, const Reduction& how, const at::Tensor& run, const Stream& stream) {
  if (!how.by_torch) {
    stretto::OperationOptions options;
    options.factor = how.factor;
    world.all_reduce(run.data_ptr(), run.data_ptr(), run.numel(), how.dtype, how.op, stream, options).wait();
    return;
  }
  const at::Tensor all = at::empty({world.size(), run.numel()}, run.options().requires_grad(false));
  all_gather(world, Memory(run), all.data_ptr(), stream);
  combine(how, all, run.view({-1}));
}

// input: one share for each rank. The share of rank r has counts[r] elements; all shares are equal if `counts` is empty.
void reduce_scatter(const Communicator& world, const Reduction& how, const void* input, const at::Tensor& output,
                    const std::vector<std::int64_t>& counts, const Stream& stream) {
  const std::int64_t own = output.numel();
  if (!how.by_torch) {
    stretto::OperationOptions options;
    options.factor = how.factor;
    if (counts.empty()) {
      world.reduce_scatter(input, output.data_ptr(), own, how.dtype, how.op, stream, options).wait();
    } else {
      world.reduce_scatter_v(input, output.data_ptr(), counts, how.dtype, how.op, stream, options).wait();
    }
    return;
  }
  const at::Tensor all = at::empty({world.size(), own}, output.options().requires_grad(false));
  const auto width = static_cast<std::int64_t>(output.element_size());
  if (counts.empty()) {
    world.all_to_all(input, all.data_ptr(), own * width, bytes_only, stream).wait();
  } else {
    std::vector<std::int64_t> sends;
    for (const std::int64_t count : counts) sends.push_back(count * width);
    const std::vector<std::int64_t> receives(counts.size(), own * width);
    world.all_to_all_v(input, sends, all.data_ptr(), receives, bytes_only, stream).wait();
  }
  combine(how, all, output.view({-1}));
}

void check_like(const char* what, const at::Tensor& tensor, const at::Tensor& like) {
  check_tensor(what, tensor);
  TORCH_CHECK(tensor.scalar_type() == like.scalar_type() && tensor.sizes() == like.sizes(), "ProcessGroupStretto::", what,
              ": a tensor of ", tensor.scalar_type(), " ", tensor.sizes(), " belongs to one of ", like.scalar_type(), " ",
              like.sizes(), "; give both the same type and shape.");
}

// Checks that the tensors have one type, that `all` has a share for each rank, and that `share` is the rank's part of it if
// they share memory.
void check_shares(const char* what, const at::Tensor& all, const at::Tensor& share, int size, int rank) {
  check_tensor(what, all);
  check_tensor(what, share);
  TORCH_CHECK(all.scalar_type() == share.scalar_type(), "ProcessGroupStretto::", what, ": the input and the output are of ",
              all.scalar_type(), " and ", share.scalar_type(), "; give both the same type.");
  TORCH_CHECK(all.numel() == share.numel() * size, "ProcessGroupStretto::", what, ": of ", size,
              " ranks, each has a share of ", share.numel(), " elements, but the whole tensor has ", all.numel(), ".");
  const auto* const own = static_cast<const char*>(all.data_ptr()) + static_cast<std::size_t>(rank) * share.nbytes();
  if (share.data_ptr() != own) check_apart(what, share, all);
}

Tensors joined(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace

// Checks a list with one tensor for each rank, as gather and scatter take it.
void ProcessGroupStretto::check_parts(const char* what, const Tensors& parts, const at::Tensor& like) const {
  TORCH_CHECK(parts.size() == static_cast<std::size_t>(size_), "ProcessGroupStretto::", what, ": got a list of ",
              parts.size(), " tensors; give one for each of the ", size_, " ranks.");
  for (const at::Tensor& part : parts) check_like(what, part, like);
}

WorkPtr ProcessGroupStretto::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = single("broadcast", tensors);
  check_root("broadcast", options.rootRank);
  if (rank_ != options.rootRank) check_written("stretto:broadcast", tensors);
  return put(OpType::BROADCAST, "stretto:broadcast", tensors, tensors, options.timeout,
             [tensor, root = static_cast<int>(options.rootRank)](const Communicator& world, const Stream& stream) {
               const Memory memory(tensor);
               world.broadcast(memory.data(), memory.data(), memory.bytes(), bytes_only, root, stream).wait();
               if (world.rank() != root) memory.write_back();
             });
}

WorkPtr ProcessGroupStretto::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors.front().is_sparse()) {
    check_sparse("allreduce", tensors.front(), options.reduceOp);
    return put(OpType::ALLREDUCE, "stretto:all_reduce_sparse", tensors, tensors, options.timeout,
               [tensor = tensors.front()](const Communicator& world, const Stream& stream) {
                 all_reduce_sparse(world, tensor, stream);
               });
  }
  const at::Tensor& tensor = single("allreduce", tensors);
  const Reduction how = reduction_of("ProcessGroupStretto::allreduce", tensor.scalar_type(), options.reduceOp);
  return put(OpType::ALLREDUCE, "stretto:all_reduce", tensors, tensors, options.timeout,
             [tensor, how](const Communicator& world, const Stream& stream) {
               const Memory memory(tensor);
               all_reduce(world, how, memory.run(), stream);
               memory.write_back();
             });
}

WorkPtr ProcessGroupStretto::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  check_tensors("allreduce_coalesced", tensors);
  const Reduction how =
      reduction_of("ProcessGroupStretto::allreduce_coalesced", tensors.front().scalar_type(), options.reduceOp);
  return put(OpType::ALLREDUCE_COALESCED, "stretto:all_reduce", tensors, tensors, options.timeout,
             [tensors, how](const Communicator& world, const Stream& stream) {
               Tensors flat;
               for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
               const at::Tensor all = at::cat(flat);
               all_reduce(world, how, all, stream);
               std::int64_t first = 0;
               for (const at::Tensor& tensor : tensors) {
                 tensor.copy_(all.narrow(0, first, tensor.numel()).view(tensor.sizes()));
                 first += tensor.numel();
               }
             });
}

WorkPtr ProcessGroupStretto::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = single("reduce", tensors);
  check_root("reduce", options.rootRank);
  if (rank_ == options.rootRank) check_written("stretto:reduce", tensors);
  const Reduction how = reduction_of("ProcessGroupStretto::reduce", tensor.scalar_type(), options.reduceOp);
  const auto body = [tensor, how, root = static_cast<int>(options.rootRank)](const Communicator& world,
                                                                             const Stream& stream) {
    const Memory memory(tensor);
    const bool here = world.rank() == root;
    if (!how.by_torch) {
      stretto::OperationOptions with;
      with.factor = how.factor;
      void* const output = here ? memory.data() : nullptr;
      world.reduce(memory.data(), output, memory.elements(), how.dtype, how.op, root, stream, with).wait();
    } else {
      const at::Tensor all =
          at::empty({here ? world.size() : 0, memory.elements()}, memory.run().options().requires_grad(false));
      world.gather(memory.data(), all.data_ptr(), memory.bytes(), bytes_only, root, stream).wait();
      if (here) combine(how, all, memory.run().view({-1}));
    }
    if (here) memory.write_back();
  };
  return put(OpType::REDUCE, "stretto:reduce", tensors, tensors, options.timeout, body);
}

WorkPtr ProcessGroupStretto::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) {
  const at::Tensor& input = single("allgather", inputs);
  TORCH_CHECK(outputs.size() == 1, "ProcessGroupStretto::allgather: takes one list of outputs, and got ", outputs.size(),
              ".");
  check_parts("allgather", outputs.front(), input);
  return put(OpType::ALLGATHER, "stretto:all_gather", inputs, outputs.front(), options.timeout,
             [input, parts = outputs.front()](const Communicator& world, const Stream& stream) {
               const Pack pack(parts);
               all_gather(world, Memory(input), pack.data(), stream);
               pack.spread();
             });
}

WorkPtr ProcessGroupStretto::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  check_shares("_allgather_base", output, input, size_, rank_);
  return put(OpType::_ALLGATHER_BASE, "stretto:_all_gather_base", {input}, {output}, options.timeout,
             [output, input](const Communicator& world, const Stream& stream) {
               const Memory memory(output);
               all_gather(world, Memory(input), memory.data(), stream);
               memory.write_back();
             });
}

// outputs[r][i] is rank r's inputs[i].
WorkPtr ProcessGroupStretto::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
  check_tensors("allgather_coalesced", inputs);
  TORCH_CHECK(outputs.size() == static_cast<std::size_t>(size_), "ProcessGroupStretto::allgather_coalesced: got ",
              outputs.size(), " lists of outputs; give one for each of the ", size_, " ranks.");
  for (const Tensors& list : outputs) {
    TORCH_CHECK(list.size() == inputs.size(), "ProcessGroupStretto::allgather_coalesced: a list of ", list.size(),
                " outputs belongs to ", inputs.size(), " inputs.");
    for (std::size_t i = 0; i < list.size(); ++i) check_like("allgather_coalesced", list[i], inputs[i]);
  }
  return put(OpType::ALLGATHER_COALESCED, "stretto:all_gather", inputs, joined(outputs), options.timeout,
             [parts = joined(outputs), inputs](const Communicator& world, const Stream& stream) {
               const Pack sent(inputs);
               const Pack got(parts);
               std::int64_t bytes = 0;
               for (const at::Tensor& input : inputs) bytes += static_cast<std::int64_t>(input.nbytes());
               sent.collect();
               world.all_gather(sent.data(), got.data(), bytes, bytes_only, stream).wait();
               got.spread();
             });
}

WorkPtr ProcessGroupStretto::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const at::Tensor& input = single("gather", inputs);
  check_root("gather", options.rootRank);
  const bool here = rank_ == options.rootRank;
  TORCH_CHECK(outputs.size() == (here ? 1U : 0U),
              "ProcessGroupStretto::gather: the root takes one list of outputs, the "
              "other ranks none; rank ",
              rank_, " got ", outputs.size(), ".");
  const Tensors parts = here ? outputs.front() : Tensors();
  if (here) check_parts("gather", parts, input);
  return put(OpType::GATHER, "stretto:gather", inputs, parts, options.timeout,
             [parts, input, root = static_cast<int>(options.rootRank)](const Communicator& world, const Stream& stream) {
               const Memory memory(input);
               std::optional<Pack> pack;
               if (!parts.empty()) pack.emplace(parts);
               world.gather(memory.data(), pack ? pack->data() : nullptr, memory.bytes(), bytes_only, root, stream).wait();
               if (pack) pack->spread();
             });
}

WorkPtr ProcessGroupStretto::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  const at::Tensor& output = single("scatter", outputs);
  check_root("scatter", options.rootRank);
  const bool here = rank_ == options.rootRank;
  TORCH_CHECK(inputs.size() == (here ? 1U : 0U),
              "ProcessGroupStretto::scatter: the root takes one list of inputs, the "
              "other ranks none; rank ",
              rank_, " got ", inputs.size(), ".");
  const Tensors parts = here ? inputs.front() : Tensors();
  if (here) check_parts("scatter", parts, output);
  return put(OpType::SCATTER, "stretto:scatter", parts, outputs, options.timeout,
             [parts, output, root = static_cast<int>(options.rootRank)](const Communicator& world, const Stream& stream) {
               const Memory memory(output);
               std::optional<Pack> pack;
               if (!parts.empty()) pack.emplace(parts);
               if (pack) pack->collect();
               world.scatter(pack ? pack->data() : nullptr, memory.data(), memory.bytes(), bytes_only, root, stream).wait();
               memory.write_back();
             });
}

// The inputs may differ in size; inputs[r] must have the same size on all ranks.
WorkPtr ProcessGroupStretto::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                            const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = single("reduce_scatter", outputs);
  TORCH_CHECK(inputs.size() == 1 && inputs.front().size() == static_cast<std::size_t>(size_),
              "ProcessGroupStretto::reduce_scatter: takes one list with a tensor for each of the ", size_, " ranks.");
  const Tensors parts = inputs.front();
  check_tensors("reduce_scatter", parts);
  check_like("reduce_scatter", output, parts[static_cast<std::size_t>(rank_)]);
  std::vector<std::int64_t> counts;
  for (const at::Tensor& part : parts) counts.push_back(part.numel());
  if (std::equal(counts.begin() + 1, counts.end(), counts.begin())) counts.clear();
  const Reduction how = reduction_of("ProcessGroupStretto::reduce_scatter", output.scalar_type(), options.reduceOp);
  return put(OpType::REDUCE_SCATTER, "stretto:reduce_scatter", parts, outputs, options.timeout,
             [parts, output, counts, how](const Communicator& world, const Stream& stream) {
               const Pack pack(parts);
               const Memory memory(output);
               pack.collect();
               stretto_torch::reduce_scatter(world, how, pack.data(), memory.run(), counts, stream);
               memory.write_back();
             });
}

WorkPtr ProcessGroupStretto::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::ReduceScatterOptions& options) {
  check_shares("_reduce_scatter_base", input, output, size_, rank_);
  const Reduction how = reduction_of("ProcessGroupStretto::_reduce_scatter_base", output.scalar_type(), options.reduceOp);
  return put(OpType::_REDUCE_SCATTER_BASE, "stretto:_reduce_scatter_base", {input}, {output}, options.timeout,
             [output, input, how](const Communicator& world, const Stream& stream) {
               const Memory from(input);
               const Memory to(output);
               stretto_torch::reduce_scatter(world, how, from.data(), to.run(), {}, stream);
               to.write_back();
             });
}

// Returns the bytes that go to or come from each rank. `splits` counts rows of the first dimension.
std::vector<std::int64_t> ProcessGroupStretto::split_bytes(const char* what, const at::Tensor& tensor,
                                                           const std::vector<std::int64_t>& splits) const {
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  if (splits.empty()) {
    TORCH_CHECK(rows % size_ == 0, "ProcessGroupStretto::alltoall_base: the ", what, " has ", rows, " rows, which ", size_,
                " ranks cannot share evenly; give split sizes.");
    return std::vector<std::int64_t>(static_cast<std::size_t>(size_), bytes / size_);
  }
  std::int64_t sum = 0;
  for (const std::int64_t split : splits) sum += split;
  TORCH_CHECK(splits.size() == static_cast<std::size_t>(size_) && sum == rows, "ProcessGroupStretto::alltoall_base: got ",
              splits.size(), " split sizes with the sum ", sum, " for an ", what, " of ", rows, " rows and ", size_,
              " ranks; give one for each rank, and all rows.");
  std::vector<std::int64_t> result;
  for (const std::int64_t split : splits) result.push_back(rows == 0 ? 0 : bytes / rows * split);
  return result;
}

WorkPtr ProcessGroupStretto::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                                           std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  check_tensors("alltoall_base", {output, input});
  const std::vector<std::int64_t> receives = split_bytes("output", output, output_splits);
  const std::vector<std::int64_t> sends = split_bytes("input", input, input_splits);
  const bool even = output_splits.empty() && input_splits.empty();
  TORCH_CHECK(!even || output.nbytes() == input.nbytes(), "ProcessGroupStretto::alltoall_base: the input has ",
              input.numel(), " elements and the output ", output.numel(), "; without split sizes both have as many.");
  check_apart("alltoall_base", input, output);
  return put(OpType::ALLTOALL_BASE, "stretto:all_to_all", {input}, {output}, options.timeout,
             [output, input, sends, receives, even](const Communicator& world, const Stream& stream) {
               const Memory from(input);
               const Memory to(output);
               if (even) {
                 world.all_to_all(from.data(), to.data(), sends.front(), bytes_only, stream).wait();
               } else {
                 world.all_to_all_v(from.data(), sends, to.data(), receives, bytes_only, stream).wait();
               }
               to.write_back();
             });
}

WorkPtr ProcessGroupStretto::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  check_tensors("alltoall", inputs);
  check_tensors("alltoall", outputs);
  TORCH_CHECK(inputs.size() == static_cast<std::size_t>(size_) && outputs.size() == inputs.size() &&
                  inputs.front().scalar_type() == outputs.front().scalar_type(),
              "ProcessGroupStretto::alltoall: takes an input and an output of one type for each of the ", size_,
              " ranks, and got ", inputs.size(), " and ", outputs.size(), ".");
  for (const at::Tensor& input : inputs) {
    for (const at::Tensor& output : outputs) check_apart("alltoall", input, output);
  }
  return put(OpType::ALLTOALL, "stretto:all_to_all", inputs, outputs, options.timeout,
             [outputs, inputs](const Communicator& world, const Stream& stream) {
               const Pack from(inputs);
               const Pack to(outputs);
               std::vector<std::int64_t> sends;
               std::vector<std::int64_t> receives;
               for (const at::Tensor& input : inputs) sends.push_back(static_cast<std::int64_t>(input.nbytes()));
               for (const at::Tensor& output : outputs) receives.push_back(static_cast<std::int64_t>(output.nbytes()));
               from.collect();
               world.all_to_all_v(from.data(), sends, to.data(), receives, bytes_only, stream).wait();
               to.spread();
             });
}

WorkPtr ProcessGroupStretto::barrier(const c10d::BarrierOptions& options) {
  return put(OpType::BARRIER, "stretto:barrier", {}, {}, options.timeout,
             [](const Communicator& world, const Stream& stream) { world.barrier(stream).wait(); });
}

#if TORCH_VERSION_MAJOR >= 2
WorkPtr ProcessGroupStretto::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                             const c10d::AllgatherOptions& options) {
  TORCH_CHECK(!inputs.empty() && outputs.size() == inputs.size(),
              "ProcessGroupStretto::allgather_into_tensor_coalesced: got ", inputs.size(), " inputs and ", outputs.size(),
              " outputs; give one output for each input.");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_shares("allgather_into_tensor_coalesced", outputs[i], inputs[i], size_, rank_);
  }
  return put(OpType::COALESCED, "stretto:all_gather", inputs, outputs, options.timeout,
             [outputs, inputs](const Communicator& world, const Stream& stream) {
               for (std::size_t i = 0; i < inputs.size(); ++i) {
                 const Memory memory(outputs[i]);
                 all_gather(world, Memory(inputs[i]), memory.data(), stream);
                 memory.write_back();
               }
             });
}

WorkPtr ProcessGroupStretto::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                             const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(!inputs.empty() && outputs.size() == inputs.size(),
              "ProcessGroupStretto::reduce_scatter_tensor_coalesced: got ", inputs.size(), " inputs and ", outputs.size(),
              " outputs; give one output for each input.");
  std::vector<Reduction> how;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_shares("reduce_scatter_tensor_coalesced", inputs[i], outputs[i], size_, rank_);
    how.push_back(
        reduction_of("ProcessGroupStretto::reduce_scatter_tensor_coalesced", inputs[i].scalar_type(), options.reduceOp));
  }
  return put(OpType::COALESCED, "stretto:reduce_scatter", inputs, outputs, options.timeout,
             [outputs, inputs, how](const Communicator& world, const Stream& stream) {
               for (std::size_t i = 0; i < inputs.size(); ++i) {
                 const Memory from(inputs[i]);
                 const Memory to(outputs[i]);
                 stretto_torch::reduce_scatter(world, how[i], from.data(), to.run(), {}, stream);
                 to.write_back();
               }
             });
}
#endif

WorkPtr ProcessGroupStretto::quantized_average(const at::Tensor& tensor, const std::string& format,
                                               const std::string& result,
                                               const std::shared_ptr<stretto::ErrorFeedback>& errors,
                                               const std::string& name) {
  check_tensor("quantized_average", tensor);
  const std::optional<DType> dtype = dtype_of(tensor.scalar_type());
  TORCH_CHECK(dtype, "ProcessGroupStretto::quantized_average: got ", tensor.scalar_type(),
              "; float, half and bfloat16 can be quantized.");
  stretto::OperationOptions options;
  options.quantization.format = stretto::quantized_format_from_name(format);
  options.quantization.result = stretto::quantized_format_from_name(result);
  options.quantization.errors = errors.get();
  if (errors) options.quantization.tensor = name;
  return put(
      OpType::ALLREDUCE, "stretto:quantized_average", {tensor}, {tensor}, c10d::kUnsetTimeout,
      [tensor, dtype, options, errors](const Communicator& world, const Stream& stream) {
        const Memory memory(tensor);
        world.all_reduce(memory.data(), memory.data(), memory.elements(), *dtype, stretto::ReduceOp::avg, stream, options)
            .wait();
        memory.write_back();
      });
}

}  // namespace stretto_torch
