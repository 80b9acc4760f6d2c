#include "transport/nccl/nccl_links.hpp"

#include <chrono>
#include <exception>
#include <thread>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "transport/gpu/own_messages.hpp"

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

// Work that NCCL does asynchronously mostly takes tens of microseconds.
class Pause {
 public:
  void operator()() {
    if (++looks_ < 200) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(looks_ < 1000 ? 50 : 1000));
  }

 private:
  int looks_ = 0;
};

}  // namespace

NcclLinks::NcclLinks(NcclCalls& nccl, Gpu& gpu, const NcclMember& member, const NcclId& id,
                     const std::function<void()>& check)
    : nccl_(nccl),
      gpu_(gpu),
      member_(member),
      check_(check),
      comm_(nccl.join(member.size, id, member.rank, check)),
      owns_(true) {}

NcclLinks::NcclLinks(NcclCalls& nccl, Gpu& gpu, const NcclMember& member, NcclComm comm)
    : nccl_(nccl), gpu_(gpu), member_(member), comm_(comm), owns_(false) {}

NcclLinks::~NcclLinks() {
  if (comm_ == nullptr || !owns_) return;
  try {
    end();
  } catch (const std::exception& error) {
    log().error("{}", error.what());
    abort();
  }
}

void NcclLinks::end() {
  nccl_.finish(comm_);
  const auto latest = std::chrono::steady_clock::now() + std::chrono::duration<double>(member_.timeout);
  for (Pause pause; !nccl_.settled(comm_); pause()) {
    if (check_) check_();
    if (std::chrono::steady_clock::now() < latest) continue;
    fail(ErrorCode::timeout, "Member {} of {} waited {} s (STRETTO_TIMEOUT) for the others to end a communicator of NCCL's.",
         member_.rank, member_.size, member_.timeout);
  }
  nccl_.destroy(comm_);
}

NcclComm NcclLinks::usable() const {
  if (comm_ == nullptr || aborting_) fail(ErrorCode::peer_gave_up, "{}", aborted);
  return comm_;
}

// Returns when the last operation has been put into its stream.
void NcclLinks::settle(NcclComm comm) const {
  for (Pause pause; !nccl_.settled(comm); pause()) {
    if (aborting_) fail(ErrorCode::peer_gave_up, "{}", aborted);
  }
}

void NcclLinks::exchange(const std::vector<GpuMessage>& messages, GpuStream stream) {
  const std::lock_guard calling(calling_);
  const NcclComm comm = usable();
  // Copies to itself come first: between group_start() and group_end() nothing else may go into the stream.
  const std::vector<GpuMessage> others = without_own(messages, member_.rank, member_.size, gpu_, stream);
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
  settle(comm);
}

bool NcclLinks::knows(const GpuCollective& call) {
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::all_to_all:
    case Collective::broadcast: return true;
    case Collective::all_reduce:
    case Collective::reduce_scatter:
    case Collective::reduce: return call.op != ReduceOp::premul_sum;
    default: return false;
  }
}

bool NcclLinks::does(const GpuCollective& call) const {
  const bool computes = reduces(call.collective);
  // NCCL reduces 8-bit floats from Hopper on.
  return knows(call) && (!computes || !is_f8(call.dtype) || member_.least_major >= 9);
}

void NcclLinks::perform(const GpuCollective& call, GpuStream stream) {
  const std::lock_guard calling(calling_);
  const NcclComm comm = usable();
  ensure(does(call), "NCCL was to do {} of {} by {}, which does() refuses.", name(call.collective), name(call.dtype),
         name(call.op));
  if (call.count == 0) return;
  // NCCL averages floats by multiplying each contribution by 1/size, which rounds and can turn small contributions into 0.
  // Here an average is the sum, divided once.
  const bool divides = call.op == ReduceOp::avg && !is_integer(call.dtype);
  const ReduceOp op = divides ? ReduceOp::sum : call.op;
  switch (call.collective) {
    case Collective::all_reduce: nccl_.all_reduce(call.input, call.output, call.count, call.dtype, op, comm, stream); break;
    case Collective::reduce_scatter:
      nccl_.reduce_scatter(call.input, call.output, call.count, call.dtype, op, comm, stream);
      break;
    case Collective::all_gather: nccl_.all_gather(call.input, call.output, call.count, call.dtype, comm, stream); break;
    case Collective::all_to_all: nccl_.all_to_all(call.input, call.output, call.count, call.dtype, comm, stream); break;
    case Collective::broadcast: {
      // The input matters at the root only; NCCL checks both pointers everywhere.
      const std::byte* const input = member_.rank == call.root ? call.input : call.output;
      nccl_.broadcast(input, call.output, call.count, call.dtype, call.root, comm, stream);
      break;
    }
    case Collective::reduce: {
      std::byte* const output = member_.rank == call.root ? call.output : nullptr;
      nccl_.reduce(call.input, output, call.count, call.dtype, op, call.root, comm, stream);
      break;
    }
    default: return;
  }
  settle(comm);
  const bool has_sum = call.collective != Collective::reduce || member_.rank == call.root;
  if (!divides || !reduces(call.collective) || !has_sum) return;
  const void* const sum = call.output;
  gpu_.kernels().reduce_all(ReduceOp::sum, call.dtype, &sum, 1, call.output, call.count, member_.size, stream);
}

std::string NcclLinks::failure() {
  if (aborting_) return aborted;
  const std::unique_lock calling(calling_, std::try_to_lock);
  if (!calling) return "";  // the thread that is calling NCCL now gets the error itself
  return comm_ == nullptr ? aborted : nccl_.failure(comm_);
}

void NcclLinks::abort() {
  aborting_ = true;  // a thread that waits for peers returns
  const std::lock_guard calling(calling_);
  const NcclComm comm = std::exchange(comm_, nullptr);
  if (comm != nullptr && owns_) nccl_.abort(comm);
}

}  // namespace stretto
