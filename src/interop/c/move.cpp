// Moves of the C interface: each is a stretto::Move.
#include <cstdint>

#include "interop/c/group.hpp"
#include "interop/c/reduction.hpp"

namespace stretto::c {
namespace {

QuantizedFormat format_of_c(strettoFormat_t format) {
  switch (format) {
    case strettoFormatNone: return QuantizedFormat::none;
    case strettoFormatInt8: return QuantizedFormat::int8;
    case strettoFormatInt4: return QuantizedFormat::int4;
    case strettoFormatFp8: return QuantizedFormat::fp8;
    case strettoFormatOnebit: return QuantizedFormat::onebit;
    default: break;
  }
  fail(ErrorCode::invalid_argument, "There is no strettoFormat_t {}; they are 0 to {}.", static_cast<int>(format),
       strettoNumFormats - 1);
}

Division division_of_c(const strettoDivision_t& division, const Shape& shape, int tensor) {
  require(division.nranks >= 0 && (division.nranks == 0 || division.ranks != nullptr),
          "Tensor {} of a move names {} ranks at {}.", tensor, division.nranks, static_cast<const void*>(division.ranks));
  const std::vector<int> ranks(division.ranks, division.ranks + division.nranks);
  if (division.dimension == STRETTO_REPLICATED) return Division::replicated(shape, ranks);
  require(division.dimension >= 0,
          "Tensor {} of a move is divided along dimension {}, which is negative, and not "
          "STRETTO_REPLICATED.",
          tensor, division.dimension);
  return Division::along(static_cast<std::size_t>(division.dimension), shape, ranks);
}

MovedTensor moved_tensor_of_c(const strettoMovedTensor_t& given, int tensor) {
  require(given.ndims >= 1 && given.ndims <= static_cast<int>(Shape::most) && given.shape != nullptr,
          "Tensor {} of a move has {} dimensions; give 1 to {}, and their extents.", tensor, given.ndims, Shape::most);
  Shape shape;
  for (int d = 0; d < given.ndims; ++d) {
    require(given.shape[d] <= static_cast<std::size_t>(INT64_MAX), "Tensor {} of a move has {} elements along dimension {}.",
            tensor, given.shape[d], d);
    shape.push_back(static_cast<std::int64_t>(given.shape[d]));
  }
  return {dtype_of_c(given.datatype), shape, division_of_c(given.from, shape, tensor),
          division_of_c(given.to, shape, tensor), format_of_c(given.format)};
}

std::shared_ptr<strettoMove> find_move(strettoComm& comm, const strettoMove* handle) {
  const std::lock_guard lock(comm.mutex);
  const auto found = comm.moves.find(handle);
  require_usage(found != comm.moves.end(), "Communicator '{}' has no move {}: it was made elsewhere, or is destroyed.",
                comm.ranks.name(), static_cast<const void*>(handle));
  return found->second;
}

// The memory of this rank's elements of each tensor.
std::vector<Tensor> wrapped(const MovePlan& plan, bool of_output, int rank, const void* const* buffers) {
  require(plan.tensors.empty() || buffers != nullptr, "A move of {} tensors got NULL for its {} buffers.",
          plan.tensors.size(), of_output ? "receive" : "send");
  std::vector<Tensor> result;
  for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
    const MovedTensor& tensor = plan.tensors[t];
    const std::int64_t count = (of_output ? tensor.to : tensor.from).elements(rank);
    require(count == 0 || buffers[t] != nullptr, "Tensor {} of a move got NULL for the {} elements that rank {} {}.", t,
            count, rank, of_output ? "gets" : "sends");
    result.push_back(count == 0 ? Tensor() : Tensor::wrap(const_cast<void*>(buffers[t]), {count}, tensor.dtype));
  }
  return result;
}

}  // namespace
}  // namespace stretto::c

using namespace stretto::c;
using stretto::require;
using Comm = std::shared_ptr<strettoComm>;

strettoResult_t strettoMoveCreate(strettoMove_t* move, const strettoMovedTensor_t* tensors, int ntensors,
                                  size_t maxBufferBytes, strettoComm_t handle) {
  return fail_group(answer_on(handle, [&](const Comm& comm) {
    require(move != nullptr, "strettoMoveCreate got NULL for its result.");
    *move = nullptr;
    require_usage(!in_group(), "strettoMoveCreate was called inside a group; make the move before it.");
    require_open(*comm);
    require(ntensors >= 0 && (ntensors == 0 || tensors != nullptr), "strettoMoveCreate got {} tensors at {}.", ntensors,
            static_cast<const void*>(tensors));
    require(maxBufferBytes <= static_cast<std::size_t>(INT64_MAX), "Buffers of {} bytes are beyond any memory.",
            maxBufferBytes);
    std::vector<stretto::MovedTensor> moved;
    moved.reserve(static_cast<std::size_t>(ntensors));
    for (int t = 0; t < ntensors; ++t) moved.push_back(moved_tensor_of_c(tensors[t], t));
    const stretto::Communicator& ranks = comm->ranks;
    const auto most = static_cast<std::int64_t>(maxBufferBytes);
    auto made = std::make_shared<strettoMove>(
        stretto::Move(ranks, stretto::plan_move(std::move(moved), ranks.size(), ranks.nodes(), most)));
    const std::lock_guard lock(comm->mutex);
    *move = made.get();
    comm->moves.emplace(made.get(), std::move(made));
  }));
}

strettoResult_t strettoMoveCounts(const strettoMove_t move, int tensor, size_t* sendcount, size_t* recvcount,
                                  strettoComm_t handle) {
  return answer_on(handle, [&](const Comm& comm) {
    const std::shared_ptr<strettoMove> found = find_move(*comm, move);
    const std::vector<stretto::MovedTensor>& tensors = found->move.plan().tensors;
    require(tensor >= 0 && tensor < static_cast<int>(tensors.size()), "There is no tensor {} in a move of {}.", tensor,
            tensors.size());
    const stretto::MovedTensor& its = tensors[static_cast<std::size_t>(tensor)];
    const int rank = comm->ranks.rank();
    if (sendcount != nullptr) *sendcount = static_cast<std::size_t>(its.from.elements(rank));
    if (recvcount != nullptr) *recvcount = static_cast<std::size_t>(its.to.elements(rank));
  });
}

strettoResult_t strettoMoveStart(const void* const* sendbuffs, void* const* recvbuffs, strettoMove_t move,
                                 strettoComm_t handle, strettoStream_t stream_handle) {
  return fail_group(answer_on(handle, [&](const Comm& comm) {
    require_usage(!in_group(), "strettoMoveStart was called inside a group; start the move behind it.");
    require_open(*comm);
    const std::shared_ptr<strettoMove> found = find_move(*comm, move);
    const std::shared_ptr<strettoStream> stream = find_stream(stream_handle);
    const int rank = comm->ranks.rank();
    const stretto::MovePlan& plan = found->move.plan();
    const stretto::Work work =
        found->move.start(wrapped(plan, false, rank, sendbuffs), wrapped(plan, true, rank, recvbuffs), stream_of(stream));
    if (!stream) work.wait();
    watch(*comm, stream, work);
  }));
}

strettoResult_t strettoMoveDestroy(strettoMove_t move, strettoComm_t handle) {
  return answer_on(handle, [&](const Comm& comm) {
    find_move(*comm, move);
    const std::lock_guard lock(comm->mutex);
    comm->moves.erase(move);
  });
}
