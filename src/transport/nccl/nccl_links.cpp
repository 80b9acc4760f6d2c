#include "transport/nccl/nccl_links.hpp"

#include <exception>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "transport/own_messages.hpp"

namespace stretto {
namespace {

bool is_f8(DType dtype) { return dtype == DType::f8e4m3 || dtype == DType::f8e5m2; }
bool is_integer(DType dtype) {
  switch (dtype) {
    case DType::i8:
    case DType::u8:
    case DType::i32:
    case DType::u32:
    case DType::i64:
    case DType::u64: return true;
    default: return false;
  }
}

constexpr const char* aborted = "This communicator was aborted; make a new one.";

}  // namespace

NcclLinks::NcclLinks(NcclCalls& nccl, Gpu& gpu, const Place& place, const NcclId& id, const std::function<void()>& check)
    : nccl_(nccl), gpu_(gpu), place_(place), comm_(nccl.join(place.size, id, place.rank, check)), owns_(true) {}

NcclLinks::NcclLinks(NcclCalls& nccl, Gpu& gpu, const Place& place, NcclComm comm)
    : nccl_(nccl), gpu_(gpu), place_(place), comm_(comm), owns_(false) {}

NcclLinks::~NcclLinks() {
  const NcclComm comm = comm_;
  if (comm == nullptr || !owns_) return;
  try {
    nccl_.destroy(comm);
  } catch (const std::exception& error) {
    log().error("{}", error.what());
  }
}

NcclComm NcclLinks::usable() const {
  const NcclComm comm = comm_;
  if (comm == nullptr) fail(ErrorCode::peer_gave_up, "{}", aborted);
  return comm;
}

void NcclLinks::exchange(const std::vector<GpuMessage>& messages, GpuStream stream) {
  const NcclComm comm = usable();
  // The copies come first: between group_start() and group_end() nothing else may go into the stream.
  const std::vector<GpuMessage> others = without_own(messages, place_.rank, place_.size, gpu_, stream);
  if (others.empty()) return;
  nccl_.group_start();
  try {
    for (const GpuMessage& message : others) {
      if (message.sends) {
        nccl_.send(message.data, message.bytes, message.peer, comm, stream);
      } else {
        nccl_.recv(message.data, message.bytes, message.peer, comm, stream);
      }
    }
  } catch (...) {
    const std::exception_ptr first = std::current_exception();
    try {
      nccl_.group_end();  // a group that stays open would swallow all that this thread calls later
    } catch (const std::exception&) {
      // The first error says more.
    }
    std::rethrow_exception(first);
  }
  nccl_.group_end();
}

bool NcclLinks::does(const GpuCollective& call) const {
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::all_to_all:
    case Collective::broadcast: return true;
    case Collective::all_reduce:
    case Collective::reduce_scatter:
    case Collective::reduce:
      if (call.op == ReduceOp::premul_sum) return false;
      return !is_f8(call.dtype) || place_.least_major >= 9;  // NCCL computes with 8 bits from Hopper on
    default: return false;
  }
}

void NcclLinks::perform(const GpuCollective& call, GpuStream stream) {
  const NcclComm comm = usable();
  ensure(does(call), "NCCL was to do {} of {} by {}, which does() refuses.", name(call.collective), name(call.dtype),
         name(call.op));
  if (call.count == 0) return;
  // NCCL's average of floats multiplies each contribution by 1/size, which rounds, or lets small ones vanish: an average
  // here is the sum, divided once.
  const bool divides = call.op == ReduceOp::avg && !is_integer(call.dtype);
  const ReduceOp op = divides ? ReduceOp::sum : call.op;
  switch (call.collective) {
    case Collective::all_reduce: nccl_.all_reduce(call.input, call.output, call.count, call.dtype, op, comm, stream); break;
    case Collective::reduce_scatter:
      nccl_.reduce_scatter(call.input, call.output, call.count, call.dtype, op, comm, stream);
      break;
    case Collective::all_gather: return nccl_.all_gather(call.input, call.output, call.count, call.dtype, comm, stream);
    case Collective::all_to_all: return nccl_.all_to_all(call.input, call.output, call.count, call.dtype, comm, stream);
    case Collective::broadcast: {
      // The input matters at the root only; NCCL checks both pointers everywhere.
      const std::byte* const input = place_.rank == call.root ? call.input : call.output;
      return nccl_.broadcast(input, call.output, call.count, call.dtype, call.root, comm, stream);
    }
    case Collective::reduce: {
      const bool is_root = place_.rank == call.root;
      std::byte* const output = is_root ? call.output : nullptr;
      nccl_.reduce(call.input, output, call.count, call.dtype, op, call.root, comm, stream);
      if (!is_root) return;
      break;
    }
    default: return;
  }
  if (!divides) return;
  const void* const sum = call.output;
  gpu_.kernels().reduce_all(ReduceOp::sum, call.dtype, &sum, 1, call.output, call.count, place_.size, stream);
}

std::string NcclLinks::failure() {
  const NcclComm comm = comm_;
  return comm == nullptr ? aborted : nccl_.failure(comm);
}

void NcclLinks::abort() {
  const NcclComm comm = comm_.exchange(nullptr);
  if (comm != nullptr && owns_) nccl_.abort(comm);
}

}  // namespace stretto
